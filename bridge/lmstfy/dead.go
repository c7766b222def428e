package lmstfy

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// isDead reports whether a dead letter of duestream is a dead letter by lmstfy's rules too. It is none if the job died
// after its ttl had ended.
func isDead(reason string, dead, expires time.Time) bool {
	return reason != lua.ReasonExpired && (expires.IsZero() || dead.Before(expires))
}

// letters yields the dead letters of the group, oldest first. It skips the letters that are no dead letters by lmstfy's
// rules. In a queue that this API owns it also purges them. A queue of another program may have a name of the same
// form.
func (s *server) letters(ctx context.Context, name string) iter.Seq2[admin.Letter, error] {
	return func(yield func(admin.Letter, error) bool) {
		var purged []string // letters to purge
		owned := s.owned(ctx, name)
		defer func() {
			if len(purged) > 0 {
				_, _ = s.parts.Admin.DeadLetters().Purge(ctx, name, purged)
			}
		}()
		for l, err := range s.parts.Admin.DeadLetters().List(ctx, name, admin.LetterFilter{}) {
			switch {
			case err != nil:
				yield(l, err)
				return
			case (l.Group == "" || l.Group == Group) && !isDead(l.Reason, l.Dead, l.Expires):
				if !owned {
					continue
				}
				purged = append(purged, l.Letter)
				if len(purged) < maxSweepJobs {
					continue
				}
				if _, err := s.parts.Admin.DeadLetters().Purge(ctx, name, purged); err != nil {
					yield(l, err)
					return
				}
				purged = nil
			case l.Group == Group:
				if !yield(l, nil) {
					return
				}
			}
		}
	}
}

// countDead returns the number of dead letters, and the job ID of the oldest.
func (c *call) countDead() (n int64, head string, err error) {
	for l, err := range c.letters(c.Ctx, c.name) {
		if err != nil {
			return 0, "", err
		}
		if n++; n == 1 {
			head = l.ID
		}
	}
	return n, head, nil
}

func peekDead(c *call) (int, any, error) {
	n, head, err := c.countDead()
	return http.StatusOK, map[string]any{"deadletter_head": head, "deadletter_size": n, "namespace": c.namespace,
		"queue": c.queue}, err
}

func deadSize(c *call) (int, any, error) {
	n, _, err := c.countDead()
	return http.StatusOK, sized(c, n), err
}

// limit reads the largest number of dead letters that a request may change; default 1.
func (c *call) limit() (int64, error) {
	values := c.R.URL.Query()["limit"]
	if len(values) == 0 {
		return 1, nil
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || n <= 0 || values[0][0] == '+' {
		return 0, failure(http.StatusBadRequest, "invalid limit")
	}
	return n, nil
}

// respawn schedules dead jobs again, with one try and a ttl from now. Dead letters that cannot be respawned stay, and
// do not count against the limit. After half of the request's time it stops and answers with the count so far.
func respawn(c *call) (int, any, error) {
	limit, err := c.limit()
	if err != nil {
		return 0, nil, err
	}
	ttl, err := c.number("ttl", defaultTTL, 63)
	if err != nil {
		return 0, nil, err
	}
	done, deadline := int64(0), time.Now().Add(c.parts.Timeout/2)
	for l, err := range c.letters(c.Ctx, c.name) {
		if err != nil {
			return 0, nil, err
		}
		ok, err := c.respawnOne(l, time.Duration(min(ttl, math.MaxUint32))*time.Second)
		switch {
		case errors.Is(err, bridge.ErrInvalid):
			c.log.Warn("a dead letter cannot be respawned, and stays", slog.String("queue", c.name),
				slog.String("entry", l.Letter), slog.Any("error", err))
		case err != nil:
			return 0, nil, err
		case ok:
			done++
		}
		if done == limit || time.Now().After(deadline) {
			break
		}
	}
	if done > 0 {
		c.makeReady()
	}
	return http.StatusOK, map[string]any{"count": done, "msg": "respawned"}, nil
}

// respawnOne redrives a dead letter. It returns false if another call has redriven or purged it. ErrInvalid: the letter
// cannot be respawned.
func (c *call) respawnOne(l admin.Letter, ttl time.Duration) (bool, error) {
	if l.ID != "" && lua.CheckID(l.ID) != nil {
		return false, lua.CheckID(l.ID)
	}
	o := admin.RedriveOptions{MaxAttempts: 1}
	if ttl > 0 {
		now, err := c.clock.now(c.Ctx)
		if err != nil {
			return false, err
		}
		o.Expires = now.Add(ttl)
	}
	redrive := func() (admin.RedriveResult, error) {
		return c.parts.Admin.DeadLetters().Redrive(c.Ctx, c.name, []string{l.Letter}, o)
	}
	result, err := redrive()
	if err == nil && result.GroupGone > 0 { // create the group, as a consumer would
		if _, err = stream.EnsureGroup(c.Ctx, c.parts.Redis.Client, c.parts.Prefix, c.name, Group); err == nil {
			result, err = redrive()
		}
	}
	if err == nil && result.Left() > 0 {
		err = lua.Invalid("letter", l.Letter, "must have its data, readable headers, and its group")
	}
	return err == nil && result.Scheduled > 0, err
}

func deleteDead(c *call) (int, any, error) {
	limit, err := c.limit()
	if err != nil {
		return 0, nil, err
	}
	var names []string
	for l, err := range c.letters(c.Ctx, c.name) {
		if err != nil {
			return 0, nil, err
		}
		names = append(names, l.Letter)
		if int64(len(names)) >= limit || len(names) >= maxRemembered {
			break
		}
	}
	_, err = c.parts.Admin.DeadLetters().Purge(c.Ctx, c.name, names)
	return http.StatusNoContent, nil, err
}
