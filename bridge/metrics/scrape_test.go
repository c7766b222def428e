package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/observe"
)

// ofState returns the names of those values that a scrape reads from Redis. A scrape that cannot read Redis must not
// show them.
func ofState(values map[string]float64) (found []string) {
	figures := []string{"scheduled", "overdue", "ready", "entries", "lag", "pending", "dead{", "held", "consumers"}
	for name := range values {
		for _, one := range figures {
			if strings.HasPrefix(name, one) {
				found = append(found, name)
			}
		}
	}
	return found
}

// While Redis is away or hangs, a scrape ends in time, shows the counters of the process, and no stale state.
// Afterwards everything is shown again.
func TestScrapeWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	proxy := server.Proxy(t)
	r := newRig(t, proxy.URL(), server.Prefix(t), metrics.Config{Timeout: 300 * time.Millisecond})
	if _, err := r.client().Schedule(t.Context(), "q", nil, bridge.In(time.Hour)); err != nil {
		t.Fatal(err)
	}
	r.serve()
	r.until(map[string]float64{"up": 1, "scheduled{queue=q}": 1})
	for _, outage := range []struct {
		name       string
		begin, end func()
	}{
		{"refused", func() { proxy.Refuse(true); proxy.CutAll() }, func() { proxy.Refuse(false) }},
		{"hung", func() { proxy.Stall(true) }, func() { proxy.Stall(false); proxy.CutAll() }},
	} {
		outage.begin()
		began := time.Now()
		got := r.scrape()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: the scrape took %s", outage.name, took)
		}
		if up, told := got["up"]; !told || up != 0 || got["redis_info_up"] != 0 || len(ofState(got)) > 0 {
			t.Errorf("%s: up %v %t, state %v", outage.name, up, told, ofState(got))
		}
		redistest.Want(t, outage.name+": enqueued", got["enqueued_total{queue=q}"], 1)
		if outage.name == "refused" { // wait until a heartbeat has noticed
			redistest.Eventually(t, patience, func() (bool, string) {
				got = r.scrape()
				return got["errors_total{kind=unavailable}"] > 0 && time.Since(began) > 1500*time.Millisecond, fmt.Sprint(got)
			})
		}
		outage.end()
		r.until(map[string]float64{"up": 1, "scheduled{queue=q}": 1})
	}
	redistest.Eventually(t, patience, func() (bool, string) {
		n := r.scrape()["reconnects_total{part=bridge}"]
		return n >= 1, fmt.Sprint("reconnects ", n)
	})
}

// If the Redis user may not read the queues, up is 0. If the user may not call MEMORY USAGE or ZSCAN, only memory_bytes
// and retrying are missing. Without INFO, the figures of the server are missing.
func TestScrapeWithFewRights(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server.URL(), server.Prefix(t), metrics.Config{})
	if _, err := bridge.CreateGroup(t.Context(), r.redis, r.prefix, "q", "g"); err != nil {
		t.Fatal(err)
	}
	client := r.client()
	if _, err := client.Schedule(t.Context(), "q", nil, bridge.In(time.Hour), bridge.Header("a", "b")); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		rights string
		check  func(got map[string]float64) bool
	}{
		{"-@all +hello +ping +time", func(got map[string]float64) bool {
			return got["up"] == 0 && got["redis_info_up"] == 0 && len(ofState(got)) == 0 && got["owned_partitions"] == 1
		}},
		{"+@all -memory|usage -zscan -info", func(got map[string]float64) bool {
			_, size := got["memory_bytes{queue=q}"]
			_, retrying := got["retrying{group=g,queue=q}"]
			return got["up"] == 1 && got["redis_info_up"] == 0 && got["scheduled{queue=q}"] == 1 && !size && !retrying
		}},
		{"+@all", func(got map[string]float64) bool {
			_, retrying := got["retrying{group=g,queue=q}"]
			return got["up"] == 1 && got["redis_info_up"] == 1 && got["memory_bytes{queue=q}"] > 0 && retrying
		}},
	} {
		user := fmt.Sprint(strings.ReplaceAll(r.prefix, ":", "-"), i)
		r.do(append(strings.Fields("ACL SETUSER "+user+" on >secret ~* "), strings.Fields(c.rights)...)...)
		t.Cleanup(func() {
			_ = r.redis.Client.Do(context.Background(), r.redis.Client.B().Arbitrary("ACL", "DELUSER", user).Build()).Error()
		})
		limited, err := bridge.Dial(t.Context(), strings.Replace(server.URL(), "redis://", "redis://"+user+":secret@", 1))
		if err != nil {
			t.Fatal(err)
		}
		m := redistest.Must(metrics.New(metrics.Config{}))
		m.BridgeStarted(served(limited.Client, r.prefix, "q"))
		if got := scrape(t, m); !c.check(got) {
			t.Errorf("%s: %v", c.rights, got)
		}
		limited.Close()
	}
}

// served is a bridge that owns the given partitions.
func served(c rueidis.Client, prefix string, partitions ...string) observe.BridgeView {
	return observe.BridgeView{Client: c, Prefix: prefix, Owned: func() []string { return partitions },
		Status: func() observe.Status { return observe.Status{Owned: len(partitions)} }}
}

// gated is a client whose calls block, ignore their contexts, and then fail.
type gated struct {
	rueidis.Client
	gate  chan struct{}
	calls atomic.Int64
}

func (g *gated) Nodes() map[string]rueidis.Client { return map[string]rueidis.Client{"node": g} }

func (g *gated) DoMulti(_ context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	g.calls.Add(1)
	<-g.gate
	replies := make([]rueidis.RedisResult, len(cmds))
	for i := range replies {
		replies[i] = rueidis.NewErrorResult(context.DeadlineExceeded)
	}
	return replies
}

// Concurrent scrapes share one read. All of them end even if the client ignores its deadline.
func TestConcurrentScrapesShareARead(t *testing.T) {
	r := newRig(t, redistest.Shared(t).URL(), "none", metrics.Config{})
	synctest.Test(t, func(t *testing.T) {
		g := &gated{Client: r.redis.Client, gate: make(chan struct{})}
		m := redistest.Must(metrics.New(metrics.Config{}))
		m.BridgeStarted(served(g, "p", "q"))
		var scrapes sync.WaitGroup
		var down atomic.Int64
		for range 20 {
			scrapes.Go(func() {
				if got := scrape(t, m); got["owned_partitions"] == 1 && len(ofState(got)) == 0 {
					if up, told := got["up"]; told && up == 0 {
						down.Add(1)
					}
				}
			})
		}
		synctest.Wait()
		redistest.Want(t, "reads", g.calls.Load(), 1)
		scrapes.Wait() // the fake clock of synctest passes over Timeout, and a second more
		redistest.Want(t, "scrapes with up 0", down.Load(), 20)
		close(g.gate)
	})
}

// counting is a client that counts round trips and commands.
type counting struct {
	rueidis.Client
	trips, commands atomic.Int64
}

func (c *counting) Nodes() map[string]rueidis.Client { return map[string]rueidis.Client{"node": c} }

func (c *counting) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	c.trips.Add(1)
	c.commands.Add(int64(len(cmds)))
	return c.Client.DoMulti(ctx, cmds...)
}

// A scrape of idle queues costs one round trip for each 64 of them, one for the time and one for INFO. Between scrapes
// nothing is read. A dead letter is read only once: later scrapes make one more round trip, to ask for newer letters.
func TestScrapeCostsFewRoundTrips(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server.URL(), server.Prefix(t), metrics.Config{})
	c := &counting{Client: r.redis.Client}
	var queues []string
	for i := range 64 {
		queues = append(queues, fmt.Sprint("q", i))
	}
	m := redistest.Must(metrics.New(metrics.Config{}))
	m.BridgeStarted(served(c, r.prefix, queues...))
	// spend scrapes, which must take so many round trips and at most so many commands.
	spend := func(what string, trips, commands int64) {
		t.Helper()
		c.trips.Store(0)
		c.commands.Store(0)
		if got := scrape(t, m); got["up"] != 1 || len(ofState(got)) < 64 {
			t.Fatal(what, got)
		}
		redistest.Want(t, what+": round trips", c.trips.Load(), trips)
		if n := c.commands.Load(); n > commands {
			t.Errorf("%s: %d commands, more than %d", what, n, commands)
		}
	}
	spend("idle", 3, 64*11+2) // 11 commands for each queue, one for the time and one for INFO
	for i := range 10 {
		r.do("XADD", r.prefix+":{q1}:dead", "*", "id", fmt.Sprint(i), "group", "g", "reason", "max_attempts")
	}
	spend("new letters, in two pages", 6, 64*11+10)
	spend("the same letters", 4, 64*11+10)
	r.do("XADD", r.prefix+":{q1}:dead", "*", "id", "11", "group", "g", "reason", "expired")
	redistest.Want(t, "a new letter", scrape(t, m)["dead{group=g,queue=q1,reason=expired}"], 1)
	redistest.Want(t, "letters from before", scrape(t, m)["dead{group=g,queue=q1,reason=max_attempts}"], 10)
	r.do("XTRIM", r.prefix+":{q1}:dead", "MAXLEN", "3")
	redistest.Want(t, "after a purge of all but 3 letters", scrape(t, m)["dead{group=g,queue=q1,reason=max_attempts}"], 2)
}

// A key of another type hides its own partition, and no other.
func TestOneWrongKeyHidesNoOtherQueue(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server.URL(), server.Prefix(t), metrics.Config{})
	r.do("SET", r.prefix+":{bad}:due", "x")
	r.do("ZADD", r.prefix+":{good}:due", fmt.Sprint(time.Now().Add(-time.Hour).UnixMilli()), "m")
	m := redistest.Must(metrics.New(metrics.Config{}))
	m.BridgeStarted(served(r.redis.Client, r.prefix, "bad", "good"))
	got := scrape(t, m)
	if _, there := got["scheduled{queue=bad}"]; there || got["unreadable_partitions"] != 1 || got["up"] != 1 ||
		got["scheduled{queue=good}"] != 1 || got["overdue_seconds{queue=good}"] < 3599 {
		t.Error(got)
	}
}

// The partitions of a queue are owned by two bridges. The gauges of both add up to the queue's, and a consumer that
// reads all partitions counts once.
func TestPartitionsAddUpOverBridges(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server.URL(), server.Prefix(t), metrics.Config{})
	all := []string{"q", "q/1", "q/2", "q/3"}
	for i, name := range all {
		stream := r.prefix + ":{" + name + "}:stream"
		r.do("ZADD", r.prefix+":{"+name+"}:due", fmt.Sprint(4e12+float64(i)), fmt.Sprint("m", i))
		for range i + 1 {
			r.do("XADD", stream, "*", "id", "m")
		}
		r.do("XGROUP", "CREATE", stream, "g", "0")
		r.do("XREADGROUP", "GROUP", "g", "one", "COUNT", "1", "STREAMS", stream, ">")
	}
	sum := map[string]float64{}
	for _, owned := range [][]string{all[:1], all[1:]} {
		m := redistest.Must(metrics.New(metrics.Config{}))
		m.BridgeStarted(served(r.redis.Client, r.prefix, owned...))
		for name, v := range scrape(t, m) {
			sum[name] += v
		}
	}
	// Partition i has i+1 entries. One entry of each partition was read.
	for name, want := range map[string]float64{
		"scheduled{queue=q}": 4, "entries{queue=q}": 10, "lag{group=g,queue=q}": 6, "pending{group=g,queue=q}": 4,
		"ready{queue=q}": 6, "consumers{group=g,queue=q}": 1,
	} {
		redistest.Want(t, name, sum[name], want)
	}
}

// A call that Redis denies counts as an error of kind denied. The reply NOSCRIPT does not count, because the client
// then sends the script.
func TestErrorsAreCountedByKind(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t).URL(), "duestream", metrics.Config{})
	client := r.client()
	if _, err := client.Schedule(t.Context(), "q", []byte("x"), bridge.In(10*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	r.serve()
	for name, v := range r.until(map[string]float64{"drained_total{queue=q}": 1}) {
		if strings.HasPrefix(name, "errors_total") && v > 0 {
			t.Errorf("%s is %v", name, v)
		}
	}
	r.do("ACL", "SETUSER", "default", "-zadd")
	if _, err := client.Schedule(t.Context(), "q", []byte("x"), bridge.In(time.Hour)); !errors.Is(err, bridge.ErrDenied) {
		t.Error(err)
	}
	r.do("ACL", "SETUSER", "default", "+zadd")
	redistest.Want(t, "refused", r.scrape()["enqueued_total{queue=q}"], 1)
	if n := r.scrape()["errors_total{kind=denied}"]; n == 0 {
		t.Error("the denied call is not counted")
	}
}
