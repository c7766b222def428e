package lmstfy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/lua"
)

// Defaults of a request.
const (
	defaultTTL = 86400 // seconds
	defaultTTR = 120
)

// Headers of attributes, and limits.
const (
	versionHeader   = "Enable-Job-Version"
	attributeHeader = "Job-Attr-" // in the canonical form of net/http
	maxNameBytes    = 32
	maxValueBytes   = 128
	maxBulkBytes    = 16 << 20
)

// options are the settings of a request's jobs.
type options struct {
	delay, ttl time.Duration
	tries      int
	versioned  bool
	attributes map[string]string
}

// options reads the options from the query.
func (c *call) options() (o options, err error) {
	if o.delay, err = c.seconds("delay", 0); err != nil {
		return o, err
	}
	if o.ttl, err = c.seconds("ttl", defaultTTL); err != nil {
		return o, err
	}
	if o.ttl > 0 && o.delay > o.ttl {
		return o, failure(http.StatusBadRequest, "ttl is shorter than delay")
	}
	tries, err := c.number("tries", 1, 16)
	if err == nil && tries == 0 {
		err = failure(http.StatusBadRequest, "tries shouldn't be zero")
	}
	o.tries = int(tries)
	return o, err
}

// attributed reads the attributes from the headers.
func (c *call) attributed(o *options) error {
	if !strings.EqualFold(c.r.Header.Get(versionHeader), "YES") {
		return nil
	}
	o.versioned = true
	for name, values := range c.r.Header {
		name, is := strings.CutPrefix(name, attributeHeader)
		if name = name[:min(len(name), maxNameBytes)]; !is || name == "" || len(values) == 0 || values[0] == "" {
			continue
		}
		if o.attributes == nil {
			o.attributes = map[string]string{}
		}
		value := values[0][:min(len(values[0]), maxValueBytes)]
		o.attributes[strings.ToLower(name)] = strings.ToValidUTF8(value, "�")
	}
	if len(o.attributes) > MaxAttributes {
		return failure(http.StatusBadRequest, "too many attributes, cannot exceed 16")
	}
	return nil
}

// body reads the whole body.
func (c *call) body(most int) ([]byte, error) {
	if c.r.ContentLength > int64(most) {
		return nil, errLarge
	}
	done, ok := c.cfg.Reading(c.w, c.r, c.grant.Name())
	if !ok {
		return nil, errBodies
	}
	text, err := io.ReadAll(io.LimitReader(c.r.Body, int64(most)+1))
	done(err)
	switch {
	case errors.Is(err, ErrBusy):
		return nil, err
	case err != nil:
		return nil, failure(http.StatusBadRequest, "the body could not be read")
	case len(text) > most:
		return nil, errLarge
	}
	return text, nil
}

var errBodies = failure(http.StatusServiceUnavailable, "too many bodies of this token are being read: try again")

var errAnswers = failure(http.StatusServiceUnavailable, "too many answers to this token wait to be read: try again")

var errLarge = failure(http.StatusRequestEntityTooLarge, "body too large")

// schedule stores jobs and returns their IDs. If one was not stored it returns an error, because clients repeat the
// whole call then.
func (c *call) schedule(o options, bodies ...[]byte) ([]string, error) {
	now, err := c.clock.now(c.ctx)
	if err != nil {
		return nil, err
	}
	found, messages := make([]string, len(bodies)), make([]bridge.NewMessage, len(bodies))
	for i, data := range bodies {
		found[i] = c.ids.next(now, o.delay, o.versioned)
		j := Job{Namespace: c.namespace, Queue: c.queue, ID: found[i], Data: data, Attributes: o.attributes, Tries: o.tries,
			Delay: o.delay}
		if o.delay > lua.MaxDelay {
			j.Delay, j.Due = 0, now.Add(o.delay)
		}
		if o.ttl > 0 {
			j.Expires = now.Add(max(o.ttl, o.delay+time.Millisecond))
		}
		if messages[i], err = j.Message(); err != nil {
			return nil, err
		}
	}
	ready := true
	if len(messages) == 1 {
		receipt, failed := c.cfg.Client.Send(c.ctx, c.name, messages[0])
		ready, err = receipt.Ready, failed
	} else {
		results, failed := c.cfg.Client.SendBatch(c.ctx, c.name, messages)
		err = failed
		for _, r := range results {
			ready, err = ready && r.Ready, errors.Join(err, r.Err)
		}
	}
	if err == nil && o.delay == 0 && !ready {
		c.makeReady()
	}
	return found, err
}

// makeReady makes due jobs ready before the request is answered, so that the next consumer gets them. An error is only
// logged: the jobs are scheduled, and a bridge makes them ready.
func (c *call) makeReady() {
	if err := c.cfg.Admin.MakeReady(c.ctx, c.name); err != nil {
		c.log.Warn("a job that is due becomes ready after its request is answered", slog.String("queue", c.name),
			slog.Any("error", err))
	}
}

func (c *call) publishOne() (string, error) {
	o, err := c.options()
	if err != nil {
		return "", err
	}
	data, err := c.body(MaxData)
	if err == nil {
		err = c.attributed(&o)
	}
	if err != nil {
		return "", err
	}
	if err := c.take(access.Publish, 1); err != nil {
		return "", err
	}
	all, err := c.schedule(o, data)
	if err != nil {
		return "", err
	}
	c.refund = nil // the job is published: keep the charge even if the request fails later
	return all[0], nil
}

func publish(c *call) (int, any, error) {
	id, err := c.publishOne()
	return http.StatusCreated, map[string]any{"job_id": id, "msg": "published"}, err
}

// republish publishes a new job first, and then finishes the old one, so that no job is lost in between.
func republish(c *call) (int, any, error) {
	id, err := c.publishOne()
	if err == nil {
		err = c.finish(c.name, c.id)
	}
	return http.StatusCreated, map[string]any{"job_id": id, "msg": "published"}, err
}

// jobsOf returns the values of a JSON array, but at most one above MaxBulk, because a value of a few bytes costs
// hundreds of bytes of memory.
func jobsOf(text []byte) (raw []json.RawMessage, err error) {
	if !json.Valid(text) {
		return nil, errNoArray
	}
	d := json.NewDecoder(bytes.NewReader(text))
	switch begin, _ := d.Token(); begin {
	case json.Delim('['):
	case nil: // null
		return nil, nil
	default:
		return nil, errNoArray
	}
	for d.More() && len(raw) <= MaxBulk {
		var one json.RawMessage
		if err := d.Decode(&one); err != nil {
			return nil, errNoArray
		}
		raw = append(raw, one)
	}
	return raw, nil
}

var errNoArray = failure(http.StatusBadRequest, "request body should be an array of objects")

// publishBulk publishes an array of jobs. The data of a job is the JSON text of its element. Each job is charged to the
// token's rate.
func publishBulk(c *call) (int, any, error) {
	o, err := c.options()
	if err != nil {
		return 0, nil, err
	}
	if err := c.take(access.Publish, 1); err != nil { // before the body, which may be large
		return 0, nil, err
	}
	text, err := c.body(maxBulkBytes)
	if err != nil {
		return 0, nil, err
	}
	raw, err := jobsOf(text)
	if err != nil {
		return 0, nil, err
	}
	bodies := make([][]byte, len(raw))
	for i, one := range raw {
		bodies[i] = one
		if len(one) > MaxData {
			return 0, nil, failure(http.StatusRequestEntityTooLarge, "job too large")
		}
	}
	switch {
	case len(raw) == 0:
		err = failure(http.StatusBadRequest, "no jobs")
	case len(raw) > MaxBulk:
		err = failure(http.StatusBadRequest, "too many jobs")
	default:
		err = c.attributed(&o)
	}
	if err == nil {
		c.refund() // so that the whole array is charged at once: above the burst it needs a full bucket
		err = c.take(access.Publish, len(raw))
	}
	if err != nil {
		return 0, nil, err
	}
	all, err := c.schedule(o, bodies...)
	return http.StatusCreated, map[string]any{"job_ids": all, "msg": "published"}, err
}
