package lmstfy

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Bounds of the entries that size reads, to tell live jobs from expired jobs. Size counts further entries without
// reading them.
const (
	maxSizeEntries = 1000
	maxSizeBytes   = 2 << 20
)

// ready yields the unread entries of one partition, oldest first.
func (c *call) ready(ctx context.Context, keys lua.Keys) iter.Seq2[lua.Entry, error] {
	return func(yield func(lua.Entry, error) bool) {
		s, err := view.ReadStream(ctx, c.parts.Redis.Client, keys.Stream)
		if err != nil {
			yield(lua.Entry{}, err)
			return
		}
		from := "-"
		if g, ok := s.Group(Group); ok {
			from = "(" + g.Last.String()
		}
		for found, err := range view.Walk(ctx, c.parts.Redis.Client, keys.Stream, from, "+", false) {
			if err != nil {
				yield(lua.Entry{}, err)
				return
			}
			if e := lua.ParseEntry(found.ID, found.FieldValues); (e.For == "" || e.For == Group) && !yield(e, nil) {
				return
			}
		}
	}
}

// partitions returns the keys of each partition of the queue.
func (c *call) partitions() ([]lua.Keys, error) {
	counts, err := c.parts.Admin.Partitions(c.Ctx, c.name)
	var all []lua.Keys
	for _, name := range counts.Names(c.name) {
		all = append(all, lua.NewKeys(c.parts.Prefix, name))
	}
	return all, err
}

// peek shows the job that would be consumed next.
func peek(c *call) (int, any, error) {
	now, err := c.clock.now(c.Ctx)
	if err != nil {
		return 0, nil, err
	}
	all, err := c.partitions()
	if err != nil {
		return 0, nil, err
	}
	var next *lua.Entry
	for _, keys := range all {
		for e, err := range c.ready(c.Ctx, keys) {
			if err != nil {
				return 0, nil, err
			}
			if c.isStale(e, now) {
				continue
			}
			if next == nil || isBefore(e.EntryID, next.EntryID) {
				next = &e
			}
			break
		}
	}
	if next == nil {
		return 0, nil, failure(http.StatusNotFound, "the queue is empty")
	}
	m := stream.Delivered(*next, c.name, 0, Group)
	body := jobBody(c.name, &m, now)
	body["remain_tries"] = max(0, max(1, next.MaxAttempts)-next.Attempt+1)
	return http.StatusOK, body, nil
}

// isStale reports whether the job of an entry has expired or was acknowledged before.
func (c *call) isStale(e lua.Entry, now time.Time) bool {
	return isExpired(e.Expires, now) || c.acknowledged.has(c.name, e.ID)
}

// isBefore reports whether entry ID a is less than b. It returns false for an unreadable ID.
func isBefore(a, b string) bool {
	x, errX := view.ParseEntryID(a)
	y, errY := view.ParseEntryID(b)
	return errX == nil && errY == nil && x.Compare(y) < 0
}

// size counts the jobs that are ready.
func size(c *call) (int, any, error) {
	now, err := c.clock.now(c.Ctx)
	if err != nil {
		return 0, nil, err
	}
	all, err := c.partitions()
	if err != nil {
		return 0, nil, err
	}
	live, stale, bytes := int64(0), int64(0), 0
	for _, keys := range all {
		for e, err := range c.ready(c.Ctx, keys) {
			if err != nil {
				return 0, nil, err
			}
			if c.isStale(e, now) {
				stale++
			} else {
				live++
			}
			if bytes += len(e.Payload); live+stale >= maxSizeEntries || bytes > maxSizeBytes {
				n, err := c.lag()
				return http.StatusOK, sized(c, max(live, n-stale)), err
			}
		}
	}
	return http.StatusOK, sized(c, live), nil
}

// sized returns the answer to a request for a size.
func sized(c *call, n int64) map[string]any {
	return map[string]any{"namespace": c.namespace, "queue": c.queue, "size": n}
}

// lag returns the number of unread entries of the group, including expired ones.
func (c *call) lag() (int64, error) {
	stats, err := c.parts.Admin.Stats(c.Ctx, c.name)
	if err != nil {
		return 0, err
	}
	for _, g := range stats.Groups {
		if g.Name == Group {
			return g.Lag, nil
		}
	}
	return stats.Ready, nil
}

// peekJob shows a job in any state.
func peekJob(c *call) (int, any, error) {
	notFound := failure(http.StatusNotFound, "job not found")
	if lua.CheckID(c.id) != nil {
		return 0, nil, notFound
	}
	now, err := c.clock.now(c.Ctx)
	if err != nil {
		return 0, nil, err
	}
	places, err := c.parts.Admin.Locate(c.Ctx, c.name, c.id)
	if err != nil && !errors.Is(err, admin.ErrNotFound) {
		return 0, nil, err
	}
	for _, p := range places {
		if c.acknowledged.has(c.name, c.id) {
			continue
		}
		if p.State == admin.StateDead {
			if !isDead(p.Reason, p.Dead, p.Expires) {
				continue
			}
			p.Expires = time.Time{} // the ttl does not apply to a dead letter
		} else if isExpired(p.Expires, now) {
			continue
		}
		m := stream.Message{ID: c.id, Payload: p.Payload, Headers: p.Headers, Due: p.Due, Expires: p.Expires}
		body := jobBody(c.name, &m, now)
		body["remain_tries"] = 0
		return http.StatusOK, body, nil
	}
	return 0, nil, notFound
}
