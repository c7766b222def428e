package scheduler

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// seriesOf returns where the drains of a partition are told; nil without an observer.
func (s *Scheduler) seriesOf(partition string) observe.Series {
	if s.cfg.Observer == nil {
		return nil
	}
	queue, _, _ := lua.SplitPartition(partition)
	return s.cfg.Observer.Of(observe.Bridge, queue, "")
}

// headClient sends a drain together with two questions, one write for all: what time it is, and when the oldest message is due.
// The script itself does not tell, and would cost everybody more if it did.
type headClient struct {
	rueidis.Client
	key string
	now func() time.Time // the server's time, where the server cannot be asked in the same write

	lateness time.Duration // of the oldest message
	known    bool
}

func (s *Scheduler) lookingAtHead(k lua.Keys) *headClient {
	h := &headClient{Client: s.cfg.Client, key: k.Due}
	if s.cfg.Client.Mode() == rueidis.ClientModeCluster { // TIME has no key, so it would go to any node
		h.now = s.members.serverTime
	}
	return h
}

// Do implements rueidis.Client.
func (h *headClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	head := h.B().Zrange().Key(h.key).Min("0").Max("0").Withscores().Build()
	if h.now != nil {
		now := h.now()
		replies := h.DoMulti(ctx, head, cmd)
		h.read(now, replies[0])
		return replies[1]
	}
	replies := h.DoMulti(ctx, h.B().Time().Build(), head, cmd)
	h.read(timeOf(replies[0]), replies[1])
	return replies[2]
}

// timeOf reads what TIME answers: seconds and microseconds. Zero: no answer.
func timeOf(reply rueidis.RedisResult) time.Time {
	n, err := reply.AsIntSlice()
	if err != nil || len(n) != 2 {
		return time.Time{}
	}
	return time.Unix(n[0], n[1]*int64(time.Microsecond))
}

func (h *headClient) read(now time.Time, reply rueidis.RedisResult) {
	head, err := reply.AsZScores()
	if h.known = err == nil && len(head) > 0 && !now.IsZero(); h.known {
		h.lateness = max(0, now.Sub(view.ScoreTime(head[0].Score)))
	}
}

// tellDrained tells what a drain did. Each message counts as late as the oldest one.
func (h *headClient) tellDrained(tell observe.Series, drained lua.Drained) {
	if n := drained.Moved; n > 0 && h.known {
		tell.Took(observe.Drained, n, h.lateness)
	} else if n > 0 {
		tell.Add(observe.Drained, n)
	}
	if drained.Dead > 0 {
		tell.Add(observe.DeadDrained, drained.Dead)
	}
}

// serverTime returns the server's time as the last heartbeat tells it; zero before the first.
func (m *membership) serverTime() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.good.server.IsZero() {
		return time.Time{}
	}
	read := m.good.sent.Add(m.good.received.Sub(m.good.sent) / 2)
	return m.good.server.Add(time.Since(read) + time.Millisecond/2) // it came in whole milliseconds, rounded down
}
