package lmstfy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/pull"
)

var errNone = &failed{status: http.StatusNotFound, body: map[string]any{"msg": "no job available"}}

// frozenSpare is added to the visibility timeout of a job with frozen tries, so that this gateway takes the job back
// before a bridge does.
const frozenSpare = 5 * time.Second

// consume delivers jobs, and waits for the first one as long as the caller asks. A job that is not acknowledged
// within its ttr is delivered again. If the caller hangs up, its jobs are released.
func consume(c *call) (int, any, error) {
	if err := c.take(access.Consume, 1); err != nil {
		return 0, nil, err
	}
	ttr, err := c.seconds("ttr", defaultTTR)
	if err != nil {
		return 0, nil, err
	}
	timeout, err := c.seconds("timeout", 0)
	if err != nil {
		return 0, nil, err
	}
	count, err := c.number("count", 1, 32)
	if err == nil && (count < 1 || count > pull.MaxCount) {
		err = failure(http.StatusBadRequest, "invalid count")
	}
	if err != nil {
		return 0, nil, err
	}
	queues, err := c.queues()
	if err != nil {
		return 0, nil, err
	}
	// With an unread body the server does not notice that the caller hangs up.
	err = c.ReadBody(func(body io.Reader) error {
		_, err := io.Copy(io.Discard, io.LimitReader(body, 64<<10))
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	frozen, _ := strconv.ParseBool(c.R.URL.Query().Get("freeze_tries"))
	ttr = min(max(ttr, time.Millisecond), MaxTTR)
	request := pull.Request{Queues: queues, Group: Group, Count: int(count), Within: ttr}
	if frozen { // this gateway must take the job back first, because a bridge that reclaims the job counts a try
		ttr = min(ttr, MaxTTR-frozenSpare)
		request.Within = ttr + frozenSpare
	}
	var found []pull.Delivery
	err = c.Poll(timeout, func(ctx context.Context) (err error) {
		found, err = c.pull(ctx, request, time.Now().Add(timeout))
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	if len(found) == 0 {
		return 0, nil, errNone
	}
	if timeout > 0 { // somebody may have revoked the token during the wait
		if err := c.mayStill(); err != nil {
			c.parts.Puller.GiveBack(c.Ctx, found)
			return 0, nil, err
		}
	}
	return 0, nil, c.respond(found, count == 1, frozen, ttr)
}

// queues returns the full names of the queues in the request, without duplicates.
func (c *call) queues() ([]string, error) {
	var all []string
	for one := range strings.SplitSeq(c.queue, ",") {
		if one == "" {
			continue
		}
		if !isName(one) {
			return nil, failure(http.StatusBadRequest, badQueue)
		}
		name := c.namespace + ":" + one
		if lua.CheckQueue(name) != nil {
			return nil, failure(http.StatusBadRequest, "namespace or queue name too long")
		}
		if err := c.may(name, access.Consume); err != nil {
			return nil, err
		}
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
		if len(all) > pull.MaxQueues {
			return nil, errNames
		}
	}
	if len(all) == 0 {
		return nil, errNames
	}
	return all, nil
}

var errNames = failure(http.StatusBadRequest, "invalid queue name(s)")

// mayStill checks again that the token is valid and allows the queues.
func (c *call) mayStill() error {
	err := c.AuthenticateAgain()
	if err == nil {
		err = c.MayAnswer()
	}
	if err == nil {
		_, err = c.queues()
	}
	return err
}

// waitTimeouts is the longest wait of one Puller.Pull, in multiples of Config.Timeout. After each Pull the token is
// checked again.
const waitTimeouts = 6

// pull is Puller.Pull for a wait of any length. It leaves out jobs that have expired or were acknowledged before. It
// ends when the token is no longer valid.
func (c *call) pull(ctx context.Context, r pull.Request, deadline time.Time) ([]pull.Delivery, error) {
	names := r.Queues
	for {
		var unreached error
		var err error
		if r.Queues, unreached, err = c.ensured(ctx, names); err != nil {
			return nil, err
		}
		r.Wait = min(max(0, time.Until(deadline)), waitTimeouts*c.parts.Timeout, pull.MaxWait)
		if unreached != nil {
			r.Wait = min(r.Wait, ensureAgain) // the next pass checks all settings again
		}
		found, err := c.parts.Puller.Pull(ctx, r)
		if errors.Is(err, bridge.ErrInvalid) {
			err = c.refused(err, r.Queues, unreached)
		}
		if err != nil {
			return nil, err
		}
		live, err := c.dropStale(ctx, found)
		if err != nil {
			c.parts.Puller.GiveBack(ctx, found)
			return nil, err
		}
		isOver := len(found) == 0 && time.Until(deadline) <= 0 // after stale jobs, pull tries once more
		if len(live) > 0 || isOver {
			return live, nil
		}
		if err := c.mayStill(); err != nil {
			return nil, err
		}
	}
}

// ensured returns the queues from which the call can receive. If the request names several queues, it leaves out those
// whose settings are unknown because their server cannot be reached; unreached is the error of one of these.
func (c *call) ensured(ctx context.Context, names []string) (queues []string, unreached, failed error) {
	for i, err := range c.ensureAll(ctx, names) {
		switch {
		case err == nil, len(names) > 1 && errors.Is(err, bridge.ErrWrongType): // the Puller skips such a queue
			queues = append(queues, names[i])
		case len(names) > 1 && lua.Temporary(err):
			unreached = err
		default:
			return nil, nil, err
		}
	}
	if len(queues) == 0 {
		return nil, nil, unreached
	}
	return queues, unreached, nil
}

// refused returns the error for a request that the Puller refused. It returns nil if only some of the queues have too
// many groups, and the other queues have no job.
func (c *call) refused(err error, queues []string, unreached error) error {
	settings, groups := reasons(err)
	switch {
	case settings > 0 || groups == 0: // another client changed the settings, and the next call writes them again
		c.forget(queues)
		return errSettings
	case groups < len(queues):
		c.floods.Log(c.log, slog.LevelWarn, "a queue cannot be received from", slog.Any("error", err))
		return nil
	case unreached != nil:
		return unreached
	}
	return errGroups
}

// reasons returns how many queues the Puller refused because of their settings, and how many because they have too many
// groups.
func reasons(err error) (settings, groups int) {
	if several, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // reasons counts each part
		for _, one := range several.Unwrap() {
			s, g := reasons(one)
			settings, groups = settings+s, groups+g
		}
		return settings, groups
	}
	var invalid *lua.InvalidError
	switch {
	case !errors.As(err, &invalid):
	case invalid.Field == "group":
		groups++
	default:
		settings++
	}
	return settings, groups
}

var errGroups = failure(http.StatusUnprocessableEntity, fmt.Sprint("the queue has ", pull.MaxGroups,
	" groups, and a consumer creates no further one: destroy a group that nobody reads"))

var errSettings = failure(http.StatusServiceUnavailable, "the settings of the queue were changed: try again")

// forget makes the next request check the settings of the queues again.
func (s *server) forget(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.ensured, name)
	}
}

// isExpired reports whether a job has expired; zero = it never expires.
func isExpired(expires, now time.Time) bool { return !expires.IsZero() && !now.Before(expires) }

// dropStale acknowledges the jobs that expired or were acknowledged before, and returns the others.
func (s *server) dropStale(ctx context.Context, found []pull.Delivery) (live []pull.Delivery, err error) {
	now, err := s.clock.now(ctx)
	if err != nil {
		return nil, err
	}
	var stale []pull.Token
	for _, d := range found {
		if isExpired(d.Expires, now) || s.acknowledged.has(d.Queue, d.ID) {
			stale = append(stale, d.Token)
			continue
		}
		live = append(live, d)
	}
	if len(stale) > 0 {
		if _, err := s.parts.Puller.Ack(context.WithoutCancel(ctx), stale); err != nil {
			s.log.Warn("jobs that have expired stay pending, and will come back", slog.Any("error", err))
		}
	}
	return live, nil
}

// respond answers with jobs, and releases them if the caller is gone. With asObject the answer is one job, otherwise an
// array.
func (c *call) respond(found []pull.Delivery, asObject, frozen bool, ttr time.Duration) error {
	now, err := c.clock.now(c.Ctx)
	if err == nil && c.Ctx.Err() != nil { // the caller hung up, but a write would still succeed, into a buffer
		err = context.Cause(c.Ctx)
	}
	if err != nil {
		c.parts.Puller.GiveBack(c.Ctx, found)
		return err
	}
	leave, err := c.HoldBytes(pull.PayloadBytes(found))
	if err != nil { // without GiveBack the messages would stay pending, and lose an attempt
		c.parts.Puller.GiveBack(c.Ctx, found)
		return err
	}
	defer leave()
	jobs := make([]map[string]any, len(found))
	for i := range found {
		d := &found[i]
		jobs[i] = jobBody(d.Queue, &d.Message, now)
		used := d.Attempt
		if frozen {
			used--
		}
		jobs[i]["remain_tries"] = max(0, max(1, d.MaxAttempts)-used)
		jobs[i]["msg"] = "new job"
		c.delivered.add(d.Queue, d.ID, d.Token, min(d.Within, ttr), frozen)
	}
	if asObject {
		write(c.W, http.StatusOK, jobs[0])
	} else {
		write(c.W, http.StatusOK, jobs)
	}
	if err := http.NewResponseController(c.W).Flush(); err != nil {
		for _, d := range found {
			c.delivered.take(d.Queue, d.ID)
		}
		c.parts.Puller.GiveBack(c.Ctx, found)
	}
	return nil
}

// jobBody returns the JSON form of a job.
func jobBody(name string, m *stream.Message, now time.Time) map[string]any {
	namespace, queue, _ := SplitQueue(name)
	published, _, _, ok := ParseID(m.ID)
	if !ok { // a message of another producer
		published = m.Due
	}
	if published.IsZero() {
		published = now
	}
	data := m.Payload
	if data == nil {
		data = []byte{}
	}
	ttl := 0.0
	if !m.Expires.IsZero() {
		ttl = math.Round(max(0, m.Expires.Sub(now).Seconds()))
	}
	return map[string]any{"attributes": attributesOf(m.Headers), "data": data, "job_id": m.ID, "namespace": namespace,
		"queue": queue, "elapsed_ms": max(0, now.Sub(published).Milliseconds()), "ttl": int64(ttl)}
}
