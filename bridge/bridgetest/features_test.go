package bridgetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/stream/pull"
)

// rig is a kit with a log of the deliveries to its handlers.
type rig struct {
	*Kit
	test  *testing.T
	began time.Time

	mu  sync.Mutex
	log []string
}

// newRig returns a kit whose start is a full second, so that times are easy to read.
func newRig(t *testing.T, cfg Config) *rig {
	cfg.Start = time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	k := NewWith(t, cfg)
	return &rig{Kit: k, test: t, began: k.Now()}
}

// note adds a line with the time since the beginning to the log.
func (r *rig) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf("%s %s", r.Now().Sub(r.began), fmt.Sprintf(format, args...)))
}

// want compares the log. Lines of one time may be in any order.
func (r *rig) want(lines ...string) {
	r.test.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	got := slices.Clone(r.log)
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) {
		r.test.Errorf("got:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(lines, "\n\t"))
	}
}

// work starts a worker that notes each delivery, and returns what then returns.
func (r *rig) work(queue, group string, then func(m *bridge.Message) error) {
	r.test.Helper()
	r.Run(bridge.WorkerConfig{Queue: queue, Group: group, Handler: func(_ context.Context, m *bridge.Message) error {
		r.note("%s/%d", m.ID, m.Attempt)
		if then == nil {
			return nil
		}
		return then(m)
	}})
}

func (r *rig) send(queue, id string, options ...bridge.Option) {
	r.test.Helper()
	_, err := r.Client().Schedule(r.Context(), queue, nil, append(options, bridge.WithID(id))...)
	ok(r.test, err)
}

// set changes settings of a queue.
func (r *rig) set(queue string, u admin.PolicyUpdate) {
	r.test.Helper()
	ok(r.test, redistest.Must(admin.New(r.Redis(), r.Prefix())).WritePolicy(r.Context(), queue, "", u))
}

// test runs a test of one feature in process and on a server.
func feature(t *testing.T, test func(r *rig)) {
	t.Helper()
	t.Parallel()
	everywhere(t, func(t *testing.T, cfg Config) { test(newRig(t, cfg)) })
}

func TestMessagesOfAKeyTakeTurns(t *testing.T) {
	feature(t, func(r *rig) {
		r.work("q", "g", func(m *bridge.Message) error {
			if m.ID == "a" && m.Attempt == 1 {
				return bridge.RetryAfter(time.Hour, errors.New("no"))
			}
			return nil
		})
		r.send("q", "a", bridge.Key("k"), bridge.In(time.Minute))
		r.send("q", "b", bridge.Key("k"), bridge.In(2*time.Minute))
		r.send("q", "c", bridge.In(2*time.Minute))
		r.Advance(3 * time.Minute)
		redistest.Want(r.test, "state of b", r.RequireScheduledIn("q", ID("b")).State, Waiting)
		r.Advance(2 * time.Hour)
		r.want("1m0s a/1", "2m0s c/1", "1h1m0s a/2", "1h1m0s b/1")
	})
}

func TestPartitionsAndGroups(t *testing.T) {
	feature(t, func(r *rig) {
		op := redistest.Must(admin.New(r.Redis(), r.Prefix()))
		redistest.Must(op.SetPartitions(r.Context(), "q", 3, nil))
		r.work("q", "g", nil)
		r.work("q", "h", func(m *bridge.Message) error {
			if m.ID == "m1" && m.Attempt == 1 {
				return bridge.RetryAfter(time.Minute, errors.New("no"))
			}
			return nil
		})
		r.Run(bridge.WorkerConfig{Queue: "q", Group: "late", Handler: func(_ context.Context, m *bridge.Message) error {
			if late := m.Lateness(); late != 0 {
				r.test.Errorf("%s is %s late", m.ID, late)
			}
			return nil
		}})
		for i := range 6 {
			r.send("q", fmt.Sprintf("m%d", i), bridge.In(time.Duration(i+1)*time.Hour))
		}
		r.Advance(24 * time.Hour)
		r.want("1h0m0s m0/1", "1h0m0s m0/1", "2h0m0s m1/1", "2h0m0s m1/1", "2h1m0s m1/2", "3h0m0s m2/1", "3h0m0s m2/1",
			"4h0m0s m3/1", "4h0m0s m3/1", "5h0m0s m4/1", "5h0m0s m4/1", "6h0m0s m5/1", "6h0m0s m5/1")
	})
}

func TestTheRateOfAQueueFollowsTheClock(t *testing.T) {
	feature(t, func(r *rig) {
		rate := bridge.Rate("1/m")
		r.set("q", admin.PolicyUpdate{Rate: &rate})
		r.work("q", "g", nil)
		for i := range 3 {
			r.send("q", fmt.Sprint(i), bridge.In(time.Hour+time.Duration(i)*time.Millisecond))
		}
		r.Advance(62 * time.Minute)
		// The server must not count the time of the rate by a clock of its own.
		c := r.Redis().Client
		ttl := redistest.Must(c.Do(r.Context(), c.B().Pttl().Key(r.Prefix()+":{q}:rate").Build()).AsInt64())
		redistest.Want(r.test, "expiry of the rate", ttl, -1)
		r.want("1h0m0s 0/1", "1h1m0s 1/1", "1h2m0s 2/1")
	})
}

func TestAReadyLimitLetsMessagesPassOneByOne(t *testing.T) {
	feature(t, func(r *rig) {
		limit := 1
		r.set("q", admin.PolicyUpdate{ReadyLimit: &limit})
		r.work("q", "g", nil)
		for i := range 3 {
			r.send("q", fmt.Sprint(i), bridge.In(time.Hour))
		}
		r.Advance(time.Hour)
		r.want("1h0m0s 0/1", "1h0m0s 1/1", "1h0m0s 2/1")
	})
}

func TestAPausedQueueWaits(t *testing.T) {
	feature(t, func(r *rig) {
		held, free := true, false
		r.set("q", admin.PolicyUpdate{Held: &held})
		r.work("q", "g", nil)
		r.send("q", "a", bridge.In(time.Minute))
		r.Advance(time.Hour)
		r.want()
		r.set("q", admin.PolicyUpdate{Held: &free})
		r.Advance(0)
		r.want("1h0m0s a/1")
	})
}

func TestDedupWindowsAndExpiryFollowTheClock(t *testing.T) {
	feature(t, func(r *rig) {
		r.work("q", "g", func(m *bridge.Message) error {
			if m.ID == "late" {
				return bridge.RetryAfter(time.Hour, errors.New("no"))
			}
			return nil
		})
		r.send("q", "a", bridge.Dedup(time.Hour))
		r.send("q", "late", bridge.ExpiresIn(30*time.Minute))
		r.Advance(59 * time.Minute)
		_, err := r.Client().Schedule(r.Context(), "q", nil, bridge.WithID("a"))
		redistest.Want(r.test, "refused", errors.Is(err, bridge.ErrDuplicate), true)
		r.Advance(time.Minute)
		redistest.Want(r.test, "reason", r.RequireDeadIn("q", ID("late")).Reason, "expired")
		r.send("q", "a")
		r.Advance(0)
		r.want("0s a/1", "0s late/1", "1h0m0s a/1")
	})
}

func TestAnOccurrenceIsLeftOutWhileTheOneBeforeIsNotDone(t *testing.T) {
	feature(t, func(r *rig) {
		r.Run(bridge.WorkerConfig{Queue: "q", Group: "g", Handler: func(_ context.Context, m *bridge.Message) error {
			r.note("%s", m.Extra["snoozes"])
			if m.Extra["snoozes"] == "" && r.Now().Sub(r.began) < 2*time.Hour {
				return bridge.Snooze(150 * time.Minute)
			}
			return nil
		}})
		_, err := r.Client().Recur(r.Context(), bridge.Recurrence{Name: "hourly", Queue: "q", Every: time.Hour,
			Overlap: bridge.OverlapSkip})
		ok(r.test, err)
		r.Advance(6 * time.Hour)
		r.want("1h0m0s ", "3h30m0s 1", "4h0m0s ", "5h0m0s ", "6h0m0s ")
		ok(r.test, r.Client().RemoveRecurrence(r.Context(), "q", "hourly"))
		r.Advance(6 * time.Hour)
		redistest.Want(r.test, "deliveries", len(r.log), 5)
		r.RequireNothingIn("q")
	})
}

func TestAnUnknownKindIsDeadAfter55Minutes(t *testing.T) {
	feature(t, func(r *rig) {
		mux := &bridge.Mux{}
		closeOrder.Handle(mux, func(context.Context, *bridge.Delivery[order]) error { return nil })
		r.Work(mux, "shop")
		other := bridge.Kind[order]{Name: "open-order", Queue: "orders"}
		_, err := other.Schedule(r.Context(), r.Client(), order{1})
		ok(r.test, err)
		r.Advance(55 * time.Minute)
		RequireScheduled(r.Kit, other)
		r.Advance(5 * time.Minute)
		redistest.Want(r.test, "reason", RequireDead(r.Kit, other).Reason, "dead_letter")
	})
}

// A batch starts when it is full, or when its first message has waited for Age by the clock of the kit.
func TestABatchWaitsForItsAge(t *testing.T) {
	feature(t, func(r *rig) {
		mux := &bridge.Mux{}
		closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 3, Age: 30 * time.Second},
			func(_ context.Context, all []*bridge.Delivery[order]) []error {
				r.note("%d", len(all))
				return make([]error, len(all))
			})
		r.Work(mux, "shop")
		for i, after := range []time.Duration{60, 70, 200, 201, 202, 300} {
			_, err := closeOrder.Schedule(r.Context(), r.Client(), order{i}, bridge.In(after*time.Second))
			ok(r.test, err)
		}
		r.Advance(80 * time.Second)
		r.want()
		r.Advance(240 * time.Second)
		r.want("1m30s 2", "3m22s 3")
		redistest.Want(r.test, "state", RequireScheduled(r.Kit, closeOrder).State, Pending)
		r.Advance(time.Minute)
		r.want("1m30s 2", "3m22s 3", "5m30s 1")
	})
}

// The rate of a group must let handlers start when it does in a real run, also if several workers share it. A single
// worker of a single partition must keep the order of the messages.
func TestTheRateOfAGroupFollowsTheClock(t *testing.T) {
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			feature(t, func(r *rig) {
				op := redistest.Must(admin.New(r.Redis(), r.Prefix()))
				redistest.Must(op.SetPartitions(r.Context(), "q", n, nil))
				for range n {
					r.Run(bridge.WorkerConfig{Queue: "q", Group: "g", GroupRate: "2/h", GroupBurst: 2,
						Handler: func(_ context.Context, m *bridge.Message) error {
							if n > 1 {
								m.ID = "m"
							}
							r.note("%s/%d", m.ID, m.Attempt)
							return nil
						}})
				}
				for i := range 5 {
					r.send("q", fmt.Sprint("m", i), bridge.In(time.Minute))
				}
				r.Advance(24 * time.Hour)
				if n > 1 {
					r.want("1m0s m/1", "1m0s m/1", "31m0s m/1", "1h1m0s m/1", "1h31m0s m/1")
				} else {
					r.want("1m0s m0/1", "1m0s m1/1", "31m0s m2/1", "1h1m0s m3/1", "1h31m0s m4/1")
				}
			})
		})
	}
}

// The clock has whole milliseconds. A batch must also start if its age has a fraction of a millisecond.
func TestAnAgeOfPartsOfAMillisecond(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{InProcess: true})
	r.mostTimes = 10
	mux := &bridge.Mux{}
	closeOrder.HandleBatch(mux, bridge.BatchConfig{Size: 3, Age: 1500 * time.Microsecond},
		func(_ context.Context, all []*bridge.Delivery[order]) []error {
			r.note("%d", len(all))
			return make([]error, len(all))
		})
	r.Work(mux, "shop")
	redistest.Must(closeOrder.Schedule(r.Context(), r.Client(), order{1}, bridge.In(time.Second)))
	r.Advance(time.Minute)
	r.want("1.002s 1")
}

// A consumer in another language reads a message and dies.
func TestAnAbandonedMessageIsDeliveredAgainAfterTheVisibilityTimeout(t *testing.T) {
	feature(t, func(r *rig) {
		timeout := 10 * time.Minute
		r.set("q", admin.PolicyUpdate{VisibilityTimeout: &timeout, RetryDelays: ptr(bridge.NewDelays(time.Minute))})
		redistest.Must(bridge.CreateGroup(r.Context(), r.Redis(), r.Prefix(), "q", "g"))
		r.send("q", "a", bridge.In(time.Minute))
		r.Advance(time.Minute)
		c := r.Redis().Client
		stream := r.Prefix() + ":{q}:stream"
		read := c.B().Xreadgroup().Group("g", "dead").Count(1).Streams().Key(stream).Id(">").Build()
		redistest.Must(c.Do(r.Context(), read).AsXRead())
		r.work("q", "g", nil)
		r.Advance(timeout - time.Millisecond)
		redistest.Want(r.test, "state", r.RequireScheduledIn("q").State, Pending)
		r.Advance(time.Hour)
		r.want("12m0s a/2")
	})
}

// A caller of the gateway gets a lease of a minute and does not come back.
func TestALeaseEndsByTheClock(t *testing.T) {
	feature(t, func(r *rig) {
		p := redistest.Must(pull.New(pull.Config{Client: r.Redis().Client, Blocking: r.Redis().Blocking, Prefix: r.Prefix()}))
		r.send("q", "a", bridge.RetryDelays(time.Second))
		got, err := p.Pull(r.Context(), pull.Request{Queues: []string{"q"}, Group: "g", Count: 1, Within: 10 * time.Second})
		ok(r.test, err)
		redistest.Want(r.test, "deliveries", len(got), 1)
		r.work("q", "g", nil)
		r.Advance(time.Hour)
		attempt := 2
		if r.server.hasClock { // there JUSTID counts as a delivery
			attempt = 3
		}
		r.want(fmt.Sprintf("11s a/%d", attempt))
	})
}

// A producer in another language adds a member with plain commands.
func TestAPlainMemberIsDelivered(t *testing.T) {
	feature(t, func(r *rig) {
		r.work("q", "g", nil)
		c := r.Redis().Client
		due := float64(r.Now().Add(time.Hour).UnixMilli())
		key := r.Prefix() + ":{q}:due"
		ok(r.test, c.Do(r.Context(), c.B().Zadd().Key(key).ScoreMember().ScoreMember(due, "plain").Build()).Error())
		r.Advance(24 * time.Hour)
		r.want("1h0m0s plain/1")
	})
}

func TestTheHistoryHasTheTimesOfTheClock(t *testing.T) {
	feature(t, func(r *rig) {
		entries, age := 1000, 24*time.Hour
		r.set("q", admin.PolicyUpdate{History: &entries, HistoryAge: &age})
		r.work("q", "g", nil)
		r.send("q", "a", bridge.In(12*time.Hour))
		r.Advance(13 * time.Hour)
		op := redistest.Must(admin.New(r.Redis(), r.Prefix()))
		story := redistest.Must(op.Story(r.Context(), "a", admin.StoryOptions{}))
		if text := fmt.Sprintf("%+v", story); !strings.Contains(text, "2026-03-01") || strings.Contains(text, "2026-11") {
			r.test.Errorf("the story has other times: %s", text)
		}
	})
}

// Messages that are due now become ready although the clock stands still, as with a bridge that runs.
func TestTheBridgeRunsWhileTheClockStandsStill(t *testing.T) {
	feature(t, func(r *rig) {
		done := make(chan struct{})
		r.work("q", "g", func(m *bridge.Message) error {
			if m.Attempt == 1 {
				return bridge.RetryAfter(0, errors.New("no"))
			}
			close(done)
			return nil
		})
		r.send("q", "a")
		<-done
	})
}

// The script texts that a kit sends compile on all servers, and use no name that the texts need otherwise.
func TestEveryScriptRunsWithTheClock(t *testing.T) {
	feature(t, func(r *rig) {
		c := r.own
		for _, sha := range scriptSHAs(r.test) {
			script := timedBySHA(sha)
			got, err := c.Do(r.Context(), c.B().ScriptLoad().Script(script.text).Build()).ToString()
			if err != nil || got != script.sha {
				r.test.Errorf("%s: %v", sha, err)
			}
		}
		reply, err := c.Do(r.Context(), c.B().Time().Build()).AsIntSlice()
		ok(r.test, err)
		redistest.Want(r.test, "TIME", reply[0], r.Now().Unix())
	})
}

func TestAKitLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	prefix := ""
	t.Run("a test", func(t *testing.T) {
		r := newRig(t, Config{URL: s.URL()})
		prefix = r.Prefix()
		r.work("q", "g", nil)
		r.send("q", "a")
		r.send("q", "b", bridge.In(time.Hour))
		r.Advance(time.Minute)
	})
	c := s.Client(t)
	for cursor := uint64(0); ; {
		scan := c.B().Scan().Cursor(cursor).Match(prefix + "*").Count(1000).Build()
		page := redistest.Must(c.Do(t.Context(), scan).AsScanEntry())
		redistest.Want(t, "keys", fmt.Sprint(page.Elements), "[]")
		if cursor = page.Cursor; cursor == 0 {
			break
		}
	}
}

func ptr[T any](value T) *T { return &value }

var _ rueidis.Client = (*timedClient)(nil)
