package bulk

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// rig is a queue with a Bulk for it.
type rig struct {
	*queuetest.Rig
	*Bulk
}

func newRig(t *testing.T, s *redistest.Server) *rig {
	r := queuetest.New(t, s)
	return &rig{r, New(r.Client, r.Prefix)}
}

// at returns a due time far in the future; n orders them.
func at(n int) time.Time { return time.UnixMilli(4e12).Add(time.Duration(n) * time.Second) }

// schedule adds a message to its partition.
func (r *rig) schedule(counts lua.Counts, id string, due time.Time, headers map[string]string) {
	r.T.Helper()
	p := r.Part(counts.Of(id))
	p.Enqueue(lua.Item{ID: id, When: lua.At(due), Payload: []byte("p"), Meta: lua.EncodeMeta(headers, 0, time.Time{})})
}

// addRetries adds a waiting retry of a message for each group, due at(5).
func (r *rig) addRetries(id string, groups ...string) {
	r.T.Helper()
	for _, group := range groups {
		member := lua.Member{Kind: lua.MemberRetry, ID: id, Group: group, Of: "1-1"}.String()
		r.Do("HSET", r.Keys.Meta, member, fmt.Sprintf(`{"id":%q,"for":%q,"attempt":"2","h:tier":"gold"}`, id, group))
		r.Do("ZADD", r.Keys.Due, strconv.FormatInt(at(5).UnixMilli(), 10), member)
	}
}

// state returns the contents of all keys of the partitions.
func (r *rig) state(partitions int) string {
	var all []string
	for i := range partitions {
		k := r.Part(i).Keys
		all = append(all, r.Texts("ZRANGE", k.Due, "0", "-1", "WITHSCORES")...)
		all = append(all, fmt.Sprint(r.Number("HLEN", k.Payload), r.Number("HLEN", k.Meta), r.Number("ZCARD", k.Seen),
			r.Number("XLEN", k.Stream), r.Number("XLEN", k.Dead)))
	}
	return strings.Join(all, " ")
}

// counted formats the counts of a result, and the error.
func counted(res Result, err error) string {
	return fmt.Sprintf("changed %d unchanged %d gone %d refused %d %v", res.Changed, res.Unchanged, res.Gone, res.Refused, err)
}

// A dry run must count and report the messages that a run would change, and must change nothing.
func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r, counts := newRig(t, s), lua.Counts{1, 3}
		queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, 3)
		for i := range 40 {
			tier := []string{"gold", "tin"}[i%2]
			r.schedule(counts, fmt.Sprintf("order-%02d", i), at(i), map[string]string{"tier": tier, "x": "y"})
			r.schedule(counts, fmt.Sprintf("mail-%02d", i), at(i), nil)
		}
		r.addRetries("order-01", "a", "b")
		r.addRetries("gone", "a")
		for _, c := range []struct {
			filter Filter
			want   int // messages and retries that the filter selects
			gone   int // IDs of the filter that nothing has
		}{
			{Filter{}, 80, 0},
			{Filter{Retries: true}, 83, 0},
			{Filter{Group: "a"}, 2, 0},
			{Filter{Group: "a", Prefix: "order-"}, 1, 0},
			{Filter{Prefix: "order-"}, 40, 0},
			{Filter{Prefix: "order-1"}, 10, 0},
			{Filter{Prefix: "rder"}, 0, 0},
			{Filter{Headers: map[string]string{"tier": "gold"}}, 20, 0},
			{Filter{Headers: map[string]string{"tier": "gold"}, Retries: true}, 23, 0},
			{Filter{Headers: map[string]string{"tier": "gold", "x": "z"}}, 0, 0},
			{Filter{From: at(10), Until: at(12)}, 4, 0},
			{Filter{From: at(39)}, 2, 0},
			{Filter{Until: at(1)}, 2, 0},
			{Filter{IDs: []string{"order-01", "mail-02", "nobody", "order-01", "nobody", "gone"}}, 2, 2},
			{Filter{IDs: []string{"order-01", "gone", "nobody"}, Retries: true}, 4, 1},
			{Filter{IDs: []string{"order-01", "order-02", "mail-02"}, Prefix: "order-", Until: at(2)}, 1, 0},
			{Filter{IDs: []string{"order-01", "order-02", "no"}, Headers: map[string]string{"tier": "gold"}}, 1, 1},
		} {
			before := r.state(3)
			var selected, missed int
			o := Options{DryRun: true, Selected: func(Message) { selected++ }, Missed: func(Message) { missed++ }}
			for name, call := range map[string]func() (Result, error){
				"cancel":     func() (Result, error) { return r.Cancel(t.Context(), r.Queue, c.filter, o) },
				"reschedule": func() (Result, error) { return r.Reschedule(t.Context(), r.Queue, c.filter, 0, at(99), o) },
				"expire":     func() (Result, error) { return r.Expire(t.Context(), r.Queue, c.filter, o) },
			} {
				selected, missed = 0, 0
				if got, want := counted(call()), counted(Result{Changed: c.want, Gone: c.gone}, nil); got != want ||
					selected != c.want || missed != c.gone {
					t.Errorf("%s of %+v: %s, %d selected, %d missed; want %s", name, c.filter, got, selected, missed, want)
				}
			}
			redistest.Want(t, "contents of all keys", r.state(3), before)
		}
	})
}

// Each kind of change must reach the messages of all partitions. A second run must change nothing.
func TestChangesReachAllPartitions(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r, counts := newRig(t, s), lua.Counts{1, 3}
		queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, 3)
		for i := range 30 {
			r.schedule(counts, fmt.Sprintf("a-%02d", i), at(i), nil)
			r.schedule(counts, fmt.Sprintf("b-%02d", i), at(i), map[string]string{"h": "v"})
			r.schedule(counts, fmt.Sprintf("c-%02d", i), at(i), nil)
		}
		r.addRetries("b-01", "g")
		r.schedule(lua.Counts{1}, "c-in-the-first", at(1), nil) // by a producer that knows no partitions
		redistest.Want(t, "cancel", counted(r.Cancel(t.Context(), r.Queue, Filter{Prefix: "a-"}, Options{})),
			counted(Result{Changed: 30}, nil))
		redistest.Want(t, "cancel again", counted(r.Cancel(t.Context(), r.Queue, Filter{Prefix: "a-"}, Options{})),
			counted(Result{}, nil))
		// One message of b is due at this time already, because times are rounded up to a millisecond.
		res, err := r.Reschedule(t.Context(), r.Queue, Filter{Prefix: "b-", Retries: true}, 0, at(7).Add(-time.Microsecond),
			Options{})
		redistest.Want(t, "reschedule", counted(res, err), counted(Result{Changed: 30, Unchanged: 1}, nil))
		redistest.Want(t, "when", res.To.Equal(at(7)), true)
		redistest.Want(t, "reschedule again", counted(r.Reschedule(t.Context(), r.Queue, Filter{Prefix: "b-", Retries: true}, 0,
			at(7), Options{})), counted(Result{Unchanged: 31}, nil))
		ids := []string{"c-in-the-first", "c-00", "c-01", "nobody"}
		redistest.Want(t, "expire", counted(r.Expire(t.Context(), r.Queue, Filter{IDs: ids}, Options{})),
			counted(Result{Changed: 3, Gone: 1}, nil))
		redistest.Want(t, "expire again", counted(r.Expire(t.Context(), r.Queue, Filter{IDs: ids}, Options{})),
			counted(Result{Unchanged: 3, Gone: 1}, nil))
		dead := 0
		for i := range 3 {
			d, err := lua.Drain(t.Context(), r.Client, r.Part(i).Keys, 100, 1<<20)
			if err != nil || d.Moved != 0 {
				t.Error(d, err)
			}
			dead += d.Dead
		}
		redistest.Want(t, "dead letters", dead, 3)
		// 58 are left: 30 messages of b, and 28 of c. A Filter without Retries does not select the retry.
		spread := Options{Spread: time.Hour}
		redistest.Want(t, "spread", counted(r.Reschedule(t.Context(), r.Queue, Filter{}, 0, at(9), spread)),
			counted(Result{Changed: 58}, nil))
		redistest.Want(t, "spread again", counted(r.Reschedule(t.Context(), r.Queue, Filter{}, 0, at(9), spread)),
			counted(Result{Unchanged: 58}, nil))
		redistest.Want(t, "in an hour", counted(r.Reschedule(t.Context(), r.Queue, Filter{}, time.Hour, time.Time{}, Options{})),
			counted(Result{Changed: 58}, nil))
	})
}

// The characters of a prefix or an ID are taken literally, even if they have a meaning in globs.
func TestHostileNamesAreTexts(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		names := []string{"*", "?", "[a]", "[", `\`, `\*`, "^", "a", "ä", "-", " ", "{", "'", "\u2028", "$(x)", "%s"}
		for _, name := range names {
			for _, id := range []string{name, name + "1", "x" + name} {
				r.schedule(lua.Counts{1}, id, at(1), nil)
			}
		}
		for _, name := range names {
			want := 0
			for _, other := range names {
				for _, id := range []string{other, other + "1", "x" + other} {
					if strings.HasPrefix(id, name) {
						want++
					}
				}
			}
			got, err := r.Cancel(t.Context(), r.Queue, Filter{Prefix: name}, Options{DryRun: true})
			redistest.Want(t, "begin with "+name, counted(got, err), counted(Result{Changed: want}, nil))
			got, err = r.Cancel(t.Context(), r.Queue, Filter{IDs: []string{name}}, Options{DryRun: true})
			redistest.Want(t, "is "+name, counted(got, err), counted(Result{Changed: 1}, nil))
		}
		for _, f := range []Filter{
			{Prefix: "a\x1f"}, {Prefix: "\xff"}, {Prefix: strings.Repeat("a", 300)}, {IDs: []string{""}},
			{IDs: []string{"a\x1fg\x1f1-1"}}, {Group: "\x00"}, {Headers: map[string]string{"": "v"}},
			{From: at(2), Until: at(2)},
		} {
			if _, err := r.Cancel(t.Context(), r.Queue, f, Options{}); !errors.Is(err, lua.ErrInvalid) {
				t.Errorf("%+v: %v", f, err)
			}
		}
		for _, o := range []Options{{Rate: -1}, {Rate: 1 / zero}, {Spread: -1}} {
			if _, err := r.Expire(t.Context(), r.Queue, Filter{}, o); !errors.Is(err, lua.ErrInvalid) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		for _, when := range []struct {
			delay time.Duration
			at    time.Time
		}{{-1, time.Time{}}, {time.Hour, at(1)}, {0, time.UnixMilli(1 << 60)}, {lua.MaxDelay + 1, time.Time{}}} {
			if _, err := r.Reschedule(t.Context(), r.Queue, Filter{}, when.delay, when.at, Options{}); !errors.Is(err,
				lua.ErrInvalid) {
				t.Errorf("%+v: %v", when, err)
			}
		}
		redistest.Want(t, "all are there", r.Number("ZCARD", r.Keys.Due), int64(3*len(names)))
	})
}

var zero float64

// A message may become ready after the run has found it and before the run changes it. It must then be delivered, and
// counted as gone.
func TestWhatBecomesReadyMeanwhileIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	for name, call := range map[string]func(Filter, Options) (Result, error){
		"cancel": func(f Filter, o Options) (Result, error) { return r.Cancel(t.Context(), r.Queue, f, o) },
		"reschedule": func(f Filter, o Options) (Result, error) {
			return r.Reschedule(t.Context(), r.Queue, f, 0, at(99), o)
		},
		"expire": func(f Filter, o Options) (Result, error) { return r.Expire(t.Context(), r.Queue, f, o) },
	} {
		for i := range 20 {
			r.schedule(lua.Counts{1}, fmt.Sprintf("%s-%02d", name, i), at(i), nil)
		}
		ready := r.Length(r.Keys.Stream)
		var missed []string
		res, err := call(Filter{Prefix: name + "-"}, Options{
			Selected: func(m Message) {
				if strings.HasSuffix(m.ID, "5") { // 2 of the 20
					r.Do("ZADD", r.Keys.Due, "XX", "5", m.ID)
					if d, err := lua.Drain(t.Context(), r.Client, r.Keys, 1, 1<<20); err != nil || d.Moved != 1 {
						t.Error(d, err)
					}
				}
			},
			Missed: func(m Message) { missed = append(missed, m.ID) },
		})
		redistest.Want(t, name, counted(res, err), counted(Result{Changed: 18, Gone: 2}, nil))
		redistest.Want(t, "ready", r.Length(r.Keys.Stream)-ready, 2)
		redistest.Want(t, "reported as missed", len(missed), 2)
		r.Do("DEL", r.Keys.Due)
	}
}

// If a run is interrupted, a second run must change the messages that the first one did not, and only these.
func TestRunThatWasInterruptedGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	const n = 5000
	for name, call := range map[string]func(context.Context, Options) (Result, error){
		"cancel": func(ctx context.Context, o Options) (Result, error) { return r.Cancel(ctx, r.Queue, Filter{}, o) },
		"reschedule": func(ctx context.Context, o Options) (Result, error) {
			return r.Reschedule(ctx, r.Queue, Filter{}, 0, at(9), o)
		},
		"expire": func(ctx context.Context, o Options) (Result, error) { return r.Expire(ctx, r.Queue, Filter{}, o) },
	} {
		add := []string{"ZADD", r.Keys.Due}
		for i := range n {
			add = append(add, "5000000000000", fmt.Sprint(name, i)) // due in Unix ms, in the year 2128
		}
		r.Do(add...)
		ctx, stop := context.WithCancel(t.Context())
		first, err := call(ctx, Options{Progress: func(res Result) {
			if res.Changed >= 1500 {
				stop()
			}
		}})
		stop()
		if !errors.Is(err, context.Canceled) || first.Changed < 1500 || first.Changed > 3000 {
			t.Fatalf("%s: %+v %v", name, first, err)
		}
		var last Result
		second, err := call(t.Context(), Options{Progress: func(res Result) { last = res }})
		redistest.Want(t, name+": the rest", counted(second, err), counted(Result{Changed: n - first.Changed,
			Unchanged: second.Unchanged}, nil))
		redistest.Want(t, name+": looked at everything", second.Looked, second.Total)
		redistest.Want(t, name+": changed, by the last progress report", last.Changed, second.Changed)
		if name != "cancel" { // a cancelled message is gone, and does not count as unchanged
			redistest.Want(t, name+": unchanged", second.Unchanged, first.Changed)
		}
		left := n
		if name == "cancel" {
			left = 0
		}
		redistest.Want(t, name+": nothing is left to do", counted(call(t.Context(), Options{})),
			counted(Result{Unchanged: left}, nil))
		r.Do("DEL", r.Keys.Due, r.Keys.Meta)
	}
}

// A run must also find messages in a partition that the queue gets during the run.
func TestQueueGrowsMeanwhile(t *testing.T) {
	t.Parallel()
	for name, filter := range map[string]Filter{"walked": {}, "looked up": {IDs: []string{"first", "grown"}}} {
		r := newRig(t, redistest.Shared(t))
		// Find a partition count with which the message "grown" is not in partition 0.
		grown := lua.Counts{1, 3}
		for i := 0; grown.Of("grown") == 0; i++ {
			grown = lua.Counts{1, 3 + i}
		}
		r.schedule(lua.Counts{1}, "first", at(1), nil)
		done := false
		res, err := r.Cancel(t.Context(), r.Queue, filter, Options{Selected: func(Message) {
			if !done {
				done = true
				queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, grown.Latest())
				r.schedule(grown, "grown", at(1), nil)
			}
		}})
		redistest.Want(t, name, counted(res, err), counted(Result{Changed: 2}, nil))
	}
}

// If the user lacks permission for a command, the error is ErrDenied. If a key has the wrong type, the error is
// ErrWrongType. Neither changes anything.
func TestRefusalsChangeNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.schedule(lua.Counts{1}, "m", at(1), map[string]string{"a": "b"})
	before := r.state(1)
	r.Do("ACL", "SETUSER", "lacking", "on", ">p", "+@all")
	c := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "lacking", "p" })
	b := New(c, r.Prefix)
	for _, lacks := range []string{"-zscan", "-zrem", "-hdel", "-hget", "-hset", "-zcard", "-zadd", "-evalsha", "-hget"} {
		r.Do("ACL", "SETUSER", "lacking", "reset", "on", ">p", "~*", "&*", "+@all", lacks)
		f := Filter{Headers: map[string]string{"a": "b"}}
		_, cancelled := b.Cancel(t.Context(), r.Queue, f, Options{})
		if lacks == "-zscan" && !errors.Is(cancelled, lua.ErrDenied) {
			t.Errorf("%s: %v", lacks, cancelled)
		}
		if cancelled == nil { // Cancel does not need the command, and has cancelled the message: schedule it again
			r.schedule(lua.Counts{1}, "m", at(1), map[string]string{"a": "b"})
			continue
		}
		redistest.Want(t, "denied "+lacks, errors.Is(cancelled, lua.ErrDenied), true)
		redistest.Want(t, "state without "+lacks, r.state(1), before)
	}
	for _, lacks := range []string{"-zscore", "-hstrlen", "-hget", "-hset", "-zadd", "-time"} {
		r.Do("ACL", "SETUSER", "lacking", "reset", "on", ">p", "~*", "&*", "+@all", lacks)
		_, expired := b.Expire(t.Context(), r.Queue, Filter{}, Options{})
		redistest.Want(t, "denied "+lacks, errors.Is(expired, lua.ErrDenied), true)
		redistest.Want(t, "state without "+lacks, r.state(1), before)
	}
	r.Do("DEL", r.Keys.Due)
	r.Do("SET", r.Keys.Due, "x")
	if _, err := r.Expire(t.Context(), r.Queue, Filter{}, Options{}); !errors.Is(err, lua.ErrWrongType) {
		t.Error(err)
	}
}

// A short schedule is read at once, but with a rate its last messages are changed much later. Regression: a message
// that was moved or replaced in between was judged by its old data, so a newer message of the same ID was cancelled.
func TestMessageIsJudgedWhenItIsItsTurn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		for name, f := range map[string]Filter{"headers": {Headers: map[string]string{"tier": "gold"}}, "time": {Until: at(1000)},
			"ids": {IDs: []string{"m-00", "m-07", "m-14", "m-28", "m-29"}, Until: at(1000)}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, s)
				const n = 30
				gold := map[string]string{"tier": "gold"}
				for i := range n {
					r.schedule(lua.Counts{1}, fmt.Sprintf("m-%02d", i), at(i), gold)
				}
				want := Result{Changed: n - 4, Gone: 4}
				if f.IDs != nil {
					want = Result{Changed: 1, Gone: 4}
				}
				changed := false
				newer := []string{"m-07", "m-14", "m-28", "m-29"}
				got, err := r.Cancel(t.Context(), r.Queue, f, Options{Rate: 50, Selected: func(m Message) {
					if changed {
						return
					}
					changed = true
					for _, id := range newer { // messages of the same ID replace those that were selected
						r.Do("ZREM", r.Keys.Due, id)
						r.Do("HDEL", r.Keys.Meta, id)
						r.schedule(lua.Counts{1}, id, at(2000), map[string]string{"tier": "tin"})
					}
					// Wait for 2*fresh, by a blocking read of a stream that gets no entries. Then the data by which the
					// messages were selected no longer counts as current.
					slow := rueidis.Completed(r.Client.B().Xread().Block(2 * fresh.Milliseconds()).Streams().Key(r.Keys.Wake).
						Id("$").Build())
					_ = r.Blocking.Do(t.Context(), slow)
				}})
				redistest.Want(t, "cancelled", counted(got, err), counted(want, nil))
				left := r.Texts("ZRANGEBYSCORE", r.Keys.Due, strconv.FormatInt(at(2000).UnixMilli(), 10), "+inf")
				redistest.Want(t, "newer messages", strings.Join(left, " "), strings.Join(newer, " "))
			})
		}
	})
}
