package producer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A burst for one instant must be spread evenly. The ID of a message must decide its due time within the spread, also
// if it is scheduled again, by delay or by time.
func TestSpreadScattersABurst(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		queuetest.PublishCount(t, c, prefix, queue, 3)
		p := newProducer(t, c, prefix)
		const n, spread = 400, 10 * time.Minute
		at := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		var ms []Message
		for i := range n {
			m := Message{At: at, Spread: spread}
			if i%2 == 0 {
				m.ID = fmt.Sprint("m-", i)
			}
			ms = append(ms, m)
		}
		results, err := p.ScheduleBatch(t.Context(), queue, ms)
		if err != nil {
			t.Fatal(err)
		}
		var minutes [10]int
		for i, got := range results {
			if got.Err != nil || !got.Due.Equal(at.Add(lua.SpreadOf(got.ID, spread))) || got.Ready {
				t.Fatalf("%d: %+v", i, got)
			}
			minutes[int(got.Due.Sub(at)/time.Minute)]++
		}
		for i, count := range minutes {
			if count < 15 || count > 75 { // 40 on average
				t.Errorf("%d of %d in minute %d", count, n, i)
			}
		}
		if done, err := p.Cancel(t.Context(), queue, "m-4"); err != nil || !done {
			t.Fatal(done, err)
		}
		again, err := p.Schedule(t.Context(), queue, ms[4])
		if err != nil || !again.Due.Equal(results[4].Due) {
			t.Errorf("%+v, before %+v: %v", again, results[4], err)
		}
		before := queuetest.Now(t, c).Truncate(time.Millisecond)
		later, err := p.Schedule(t.Context(), queue, Message{ID: "later", Delay: time.Hour, Spread: spread})
		if offset := later.Due.Sub(before) - time.Hour - lua.SpreadOf("later", spread); err != nil || offset < 0 ||
			offset > time.Minute {
			t.Errorf("%+v: %s, %v", later, offset, err)
		}
	})
}

// A spread that is negative, too long, or ends after the expiry must be refused.
func TestSpreadIsChecked(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	p := newProducer(t, s.Client(t), s.Prefix(t))
	at := time.Now().Add(time.Hour)
	for _, m := range []Message{{Spread: -1}, {Spread: lua.MaxDelay + 1}, {Delay: lua.MaxDelay, Spread: time.Second},
		{At: time.UnixMilli(1e13 - 1), Spread: time.Hour}, {At: at, Spread: time.Hour, Expires: at.Add(time.Minute)}} {
		if _, err := p.Schedule(t.Context(), "q", m); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	if got, err := p.Schedule(t.Context(), redistest.Queue(t), Message{Spread: time.Millisecond}); err != nil || !got.Ready {
		t.Errorf("%+v, %v", got, err)
	}
}
