package lmstfy

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/internal/ndjson"
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

// readAttributes reads the attributes of the jobs from the request's headers.
func (c *call) readAttributes(o *options) error {
	if !strings.EqualFold(c.R.Header.Get(versionHeader), "YES") {
		return nil
	}
	o.versioned = true
	for name, values := range c.R.Header {
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

// schedule stores jobs and returns their IDs. If any job was not stored, schedule returns an error, so that the client
// repeats the whole call.
func (c *call) schedule(o options, bodies ...[]byte) ([]string, error) {
	now, err := c.clock.now(c.Ctx)
	if err != nil {
		return nil, err
	}
	ids, messages := make([]string, len(bodies)), make([]bridge.NewMessage, len(bodies))
	for i, data := range bodies {
		ids[i] = c.ids.next(now, o.delay, o.versioned)
		j := Job{Namespace: c.namespace, Queue: c.queue, ID: ids[i], Data: data, Attributes: o.attributes,
			Tries: o.tries, Delay: o.delay}
		if o.delay > lua.MaxDelay { // a due time may be later than the longest delay
			j.Delay, j.Due = 0, now.Add(o.delay)
		}
		if o.ttl > 0 {
			j.Expires = now.Add(max(o.ttl, o.delay+time.Millisecond))
		}
		if messages[i], err = j.Message(); err != nil {
			return nil, err
		}
	}
	allReady := true
	if len(messages) == 1 {
		var receipt bridge.Receipt
		receipt, err = c.parts.Client.Send(c.Ctx, c.name, messages[0])
		allReady = receipt.Ready
	} else {
		var results []bridge.Result
		results, err = c.parts.Client.SendBatch(c.Ctx, c.name, messages)
		for _, r := range results {
			allReady = allReady && r.Ready
			err = errors.Join(err, r.Err)
		}
	}
	if err == nil && o.delay == 0 && !allReady {
		c.makeReady()
	}
	return ids, err
}

// makeReady makes due jobs ready before the request is answered, so that the next consumer gets them. An error is only
// logged: the jobs are scheduled, and a bridge makes them ready.
func (c *call) makeReady() {
	if err := c.parts.Admin.MakeReady(c.Ctx, c.name); err != nil {
		c.log.Warn("a job that is due becomes ready after its request is answered", slog.String("queue", c.name),
			slog.Any("error", err))
	}
}

func (c *call) publishOne() (string, error) {
	o, err := c.options()
	if err != nil {
		return "", err
	}
	data, err := c.Body(MaxData)
	if err == nil {
		err = c.readAttributes(&o)
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
	c.refund = nil // the job is published, so keep the charge even if the request fails later
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

// jobsOf returns the values of a JSON array, at most MaxBulk+1 values.
func jobsOf(text []byte) ([]json.RawMessage, error) {
	if bytes.Equal(bytes.TrimSpace(text), []byte("null")) {
		return nil, nil
	}
	raw, _, err := ndjson.Items(text, MaxBulk+1)
	if err != nil || !json.Valid(text) {
		return nil, failure(http.StatusBadRequest, "request body should be an array of objects")
	}
	return raw, nil
}

// publishBulk publishes an array of jobs. The data of a job is the JSON text of its element. Each job is charged to the
// token's rate.
func publishBulk(c *call) (int, any, error) {
	o, err := c.options()
	if err != nil {
		return 0, nil, err
	}
	if err := c.take(access.Publish, 1); err != nil { // before reading the body, which may be large
		return 0, nil, err
	}
	text, err := c.Body(maxBulkBytes)
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
		err = c.readAttributes(&o)
	}
	if err == nil {
		// Charge the whole array at once. An array with more jobs than the burst passes only if the bucket is full, so
		// give back the first charge before.
		c.refund()
		err = c.take(access.Publish, len(raw))
	}
	if err != nil {
		return 0, nil, err
	}
	all, err := c.schedule(o, bodies...)
	return http.StatusCreated, map[string]any{"job_ids": all, "msg": "published"}, err
}
