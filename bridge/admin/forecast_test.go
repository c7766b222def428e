package admin

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The simulated cluster of the autoscaling tests. HPA is the autoscaler of Kubernetes, which KEDA configures.
const (
	burst        = 50_000            // messages that are due at the same time
	burstAfter   = 100 * time.Second // from the start of the run
	podStarts    = 20 * time.Second  // from the decision to start a pod until its worker reads
	podPerSecond = 100               // messages that a pod handles
	perPod       = 1000              // messages for which the autoscaler wants one pod
	mostPods     = 50
	syncPeriod   = 15 * time.Second // of HPA, by default
	within       = podStarts + syncPeriod + 10*time.Second
)

// autoscaling is one run of the simulation. The queue, its schedule, its stream and the answers of Admin.Forecast are
// those of a real server, whose clock the test moves forward second by second. The pods, their start and their speed
// are simulated, and so is the autoscaler: it asks once in syncPeriod, starts the pods that it wants, and stops
// none. Lateness is measured by the server's clock, in steps of about a second.
type autoscaling struct {
	*queuetest.Rig
	clock *redistest.Clock
	admin *Admin

	byLag   bool // the autoscaler wants pods for the lag and the pending entries alone, not for what will be due
	doubles bool // it at most doubles the pods at a time, or adds four, as HPA does by default

	begun    time.Time
	pods     []time.Time // when the worker of each pod begins to read
	asked    int         // how often the autoscaler has asked
	capacity float64     // messages that the pods may still handle in this step
	lateness []time.Duration
}

// run schedules the burst, and returns when all its messages were handled.
func (a *autoscaling) run() {
	a.T.Helper()
	a.begun = a.now()
	a.pods = []time.Time{a.begun} // one pod runs always
	due := a.begun.Add(burstAfter)
	a.scheduleBurst(due)
	for before := a.begun; len(a.lateness) < burst; {
		a.clock.Step(time.Second)
		now := a.now()
		a.drain()
		if asks := int(now.Sub(a.begun)/syncPeriod) + 1; asks > a.asked {
			a.asked = asks
			a.scale(now)
		}
		a.handle(before, now, due)
		before = now
	}
	slices.Sort(a.lateness)
}

// scale starts the pods that the autoscaler wants, as far as it may.
func (a *autoscaling) scale(now time.Time) {
	a.T.Helper()
	g := a.forecast()
	work := g.Total
	if a.byLag {
		work = g.Lag + g.Pending
	}
	pods := min(mostPods, int(work+perPod-1)/perPod)
	if a.doubles {
		pods = min(pods, max(2*len(a.pods), len(a.pods)+4))
	}
	for len(a.pods) < pods {
		a.pods = append(a.pods, now.Add(podStarts))
	}
}

// drain makes all due messages ready, as a bridge does.
func (a *autoscaling) drain() {
	a.T.Helper()
	for {
		d, err := lua.Drain(a.T.Context(), a.Client, a.Keys, 500, 1<<20)
		if err != nil {
			a.T.Fatal(err)
		}
		if d.Moved == 0 {
			return
		}
	}
}

func (a *autoscaling) now() time.Time { return queuetest.Now(a.T, a.Client) }

func (a *autoscaling) scheduleBurst(due time.Time) {
	score := strconv.FormatInt(due.UnixMilli(), 10)
	for first := 0; first < burst; first += 1000 {
		words := []string{"ZADD", a.Keys.Due}
		for i := range 1000 {
			words = append(words, score, fmt.Sprint("m-", first+i))
		}
		a.Do(words...)
	}
}

// handle lets the pods handle messages in the time from before to now.
func (a *autoscaling) handle(before, now, due time.Time) {
	for _, starts := range a.pods {
		if d := now.Sub(later(before, starts)); d > 0 {
			a.capacity += d.Seconds() * podPerSecond
		}
	}
	entries := a.Take("g", "pods", int(a.capacity))
	a.capacity -= float64(len(entries))
	if len(entries) == 0 {
		a.capacity = 0 // idle time is not saved
		return
	}
	for batch := range slices.Chunk(entries, 500) {
		held := make([]lua.Held, len(batch))
		for i, entry := range batch {
			held[i].Entry = entry
		}
		if _, err := lua.Ack(a.T.Context(), a.Client, a.Keys, "g", held); err != nil {
			a.T.Fatal(err)
		}
	}
	for range entries {
		a.lateness = append(a.lateness, now.Sub(due))
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// forecast asks for the work of the group g.
func (a *autoscaling) forecast() GroupForecast {
	a.T.Helper()
	f, err := a.admin.Forecast(a.T.Context(), a.Queue, "g", within)
	if err != nil || len(f.Groups) != 1 || f.Total != f.Groups[0].Total {
		a.T.Fatalf("%+v, %v", f, err)
	}
	return f.Groups[0]
}

// ready returns how many pods read at a time after the burst is due.
func (a *autoscaling) ready(after time.Duration) (n int) {
	for _, starts := range a.pods {
		if !starts.After(a.begun.Add(burstAfter + after)) {
			n++
		}
	}
	return n
}

// An autoscaler that asks for what will be due has its pods ready before a burst is due. One that asks for the lag
// starts them when the burst is late already, and one that only doubles them needs a longer time. The figures are
// printed with -v.
func TestForecastStartsPodsBeforeABurstIsDue(t *testing.T) {
	t.Parallel()
	s, clock := redistest.OwnClock(t)
	simulate := func(name string, byLag, doubles bool) *autoscaling {
		r := queuetest.New(t, s)
		r = r.On(r.Queue + "-" + name)
		r.Groups("g")
		a := &autoscaling{Rig: r, clock: clock, byLag: byLag, doubles: doubles,
			admin: redistest.Must(New(&bridge.Redis{Client: r.Client}, r.Prefix))}
		a.run()
		t.Logf("%-9s pods ready when due: %2d, 30 s later: %2d; late: p50 %4.1f s, p99 %4.1f s, most %4.1f s", name,
			a.ready(0), a.ready(30*time.Second), a.late(0.5), a.late(0.99), a.late(1))
		return a
	}
	byLag := simulate("lag", true, false)
	byForecast := simulate("forecast", false, false)
	doubling := simulate("doubling", false, true)
	redistest.Want(t, "pods by the lag when due", byLag.ready(0), 1)
	redistest.Want(t, "pods by the forecast when due", byForecast.ready(0), mostPods)
	redistest.Want(t, "not all pods when due, with doubling", doubling.ready(0) < mostPods, true)
	for _, q := range []float64{0.5, 0.99, 1} {
		if byForecast.late(q) >= min(byLag.late(q), doubling.late(q)) {
			t.Errorf("quantile %v: %v s late by the forecast, %v s by the lag, %v s with doubling", q, byForecast.late(q),
				byLag.late(q), doubling.late(q))
		}
	}
}

// late returns a quantile of the lateness, in seconds.
func (a *autoscaling) late(q float64) float64 {
	return a.lateness[min(len(a.lateness)-1, int(q*float64(len(a.lateness))))].Seconds()
}
