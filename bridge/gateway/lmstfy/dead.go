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
)

// isDead reports whether a dead letter is also one by lmstfy's rules. A job that died after its ttl had ended is not.
func isDead(reason string, dead, expires time.Time) bool {
	return reason != lua.ReasonExpired && (expires.IsZero() || dead.Before(expires))
}

// letters yields the dead letters of the group, oldest first. It purges the letters that are none by lmstfy's rules,
// but only in a queue that this API owns: a queue of another program may have a name of the same form.
func (s *Server) letters(ctx context.Context, name string) iter.Seq2[admin.Letter, error] {
	return func(yield func(admin.Letter, error) bool) {
		var none []string
		owned := s.owned(ctx, name)
		defer func() {
			if len(none) > 0 {
				_, _ = s.cfg.Admin.DeadLetters().Purge(ctx, name, none)
			}
		}()
		for l, err := range s.cfg.Admin.DeadLetters().List(ctx, name, admin.LetterFilter{}) {
			switch {
			case err != nil:
				yield(l, err)
				return
			case (l.Group == "" || l.Group == Group) && !isDead(l.Reason, l.Dead, l.Expires):
				if !owned {
					continue
				}
				if none = append(none, l.Letter); len(none) < mostSwept {
					continue
				}
				if _, err := s.cfg.Admin.DeadLetters().Purge(ctx, name, none); err != nil {
					yield(l, err)
					return
				}
				none = nil
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
	for l, err := range c.letters(c.ctx, c.name) {
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

// limit reads the number of dead letters that a request is for; default 1.
func (c *call) limit() (int64, error) {
	values := c.r.URL.Query()["limit"]
	if len(values) == 0 {
		return 1, nil
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || n <= 0 || values[0][0] == '+' {
		return 0, failure(http.StatusBadRequest, "invalid limit")
	}
	return n, nil
}

// respawn schedules dead jobs again, with one try and a ttl from now. A dead letter of another program that is
// invalid as a message stays, and does not count. After half of the request's time it stops and answers with the
// count so far.
func respawn(c *call) (int, any, error) {
	limit, err := c.limit()
	if err != nil {
		return 0, nil, err
	}
	ttl, err := c.number("ttl", defaultTTL, 63)
	if err != nil {
		return 0, nil, err
	}
	done, late := 0, time.Now().Add(c.cfg.Timeout/2)
	for l, err := range c.letters(c.ctx, c.name) {
		ok := false
		if err == nil {
			ok, err = c.respawnOne(l, time.Duration(min(ttl, math.MaxUint32))*time.Second)
		}
		if errors.Is(err, bridge.ErrInvalid) {
			c.log.Warn("a dead letter cannot be respawned, and stays", slog.String("queue", c.name),
				slog.String("entry", l.Letter), slog.Any("error", err))
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		if ok {
			done++
		}
		if limit--; limit == 0 || time.Now().After(late) {
			break
		}
	}
	if done > 0 {
		c.makeReady()
	}
	return http.StatusOK, map[string]any{"count": done, "msg": "respawned"}, nil
}

const respawnDelay = 5 * time.Second

// respawnOne schedules the job first, with a delay, so that it cannot be lost. Then it purges the dead letter. If
// this call purged it, the job becomes ready; if not, the job is cancelled. Of two concurrent calls for one letter,
// one finds the job scheduled already or the letter gone.
func (c *call) respawnOne(l admin.Letter, ttl time.Duration) (bool, error) {
	now, err := c.clock.now(c.ctx)
	if err != nil {
		return false, err
	}
	m := bridge.NewMessage{ID: l.ID, Payload: l.Payload, Headers: l.Headers, MaxAttempts: 1, Delay: respawnDelay,
		Key: l.Extra[lua.FieldKey]}
	if ttl > 0 {
		m.Expires = now.Add(ttl)
	}
	receipt, err := c.cfg.Client.Schedule(c.ctx, c.name, nil, func(to *bridge.NewMessage) { *to = m })
	if errors.Is(err, bridge.ErrDuplicate) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	n, err := c.cfg.Admin.DeadLetters().Purge(c.ctx, c.name, []string{l.Letter})
	if err != nil {
		return false, err
	}
	if n == 0 {
		err = c.cfg.Client.Cancel(c.ctx, c.name, receipt.ID)
	} else {
		_, err = c.cfg.Client.Reschedule(c.ctx, c.name, receipt.ID, bridge.In(0))
	}
	if errors.Is(err, bridge.ErrNotScheduled) {
		err = nil
	}
	return n > 0, err
}

func deleteDead(c *call) (int, any, error) {
	limit, err := c.limit()
	if err != nil {
		return 0, nil, err
	}
	var names []string
	for l, err := range c.letters(c.ctx, c.name) {
		if err != nil {
			return 0, nil, err
		}
		if names = append(names, l.Letter); int64(len(names)) >= limit || len(names) >= mostKnown {
			break
		}
	}
	_, err = c.cfg.Admin.DeadLetters().Purge(c.ctx, c.name, names)
	return http.StatusNoContent, nil, err
}
