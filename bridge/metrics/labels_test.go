package metrics_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/observe"
)

// pass advances the fake clock of a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

// A queue that was not counted for an hour gives its label to a new queue. When the queue is counted again, its counter
// continues at the old value. If the counter began at 0 and went from 100 to 150 between two scrapes, Prometheus would
// see +50. Regression: a bridge that had seen 200 queues showed no new queue for the rest of its life.
func TestLabelsOfQueuesThatAreGoneAreGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := redistest.Must(metrics.New(metrics.Config{MaxQueues: 2, MaxGroups: 2}))
		bridgeSeries := func(queue string) observe.Series { return m.Series(observe.Bridge, queue, "") }
		// says scrapes, and checks the wanted values. The counters of queues a, b and c that are not wanted must be
		// missing.
		says := func(what string, want map[string]float64) {
			t.Helper()
			got := scrape(t, m)
			for name, v := range want {
				redistest.Want(t, what+": "+name, got[name], v)
			}
			for _, gone := range []string{"a", "b", "c"} {
				name := "drained_total{queue=" + gone + "}"
				if _, wanted := want[name]; !wanted {
					if v, there := got[name]; there {
						t.Errorf("%s: %s is there, %v", what, name, v)
					}
				}
			}
		}
		a, b := bridgeSeries("a"), bridgeSeries("b")
		work := m.Series(observe.Worker, "a", "g")
		a.Add(observe.Drained, 100)
		work.AddTimed(observe.Handled, 7, time.Second)
		b.Add(observe.Drained, 1)
		c := bridgeSeries("c")
		c.Add(observe.Drained, 10)
		says("two queues and another", map[string]float64{"drained_total{queue=a}": 100, "drained_total{queue=b}": 1,
			"drained_total{queue=other}": 10, "other_queues": 1})

		pass(50 * time.Minute)
		b.Add(observe.Drained, 1)
		bridgeSeries("c").Add(observe.Drained, 1)
		says("50 minutes later", map[string]float64{"drained_total{queue=a}": 100, "drained_total{queue=b}": 2,
			"drained_total{queue=other}": 11, "other_queues": 1})

		pass(50 * time.Minute) // a was not counted for 100 minutes, and b for 50
		bridgeSeries("c").Add(observe.Drained, 4)
		says("a is gone", map[string]float64{"drained_total{queue=b}": 2, "drained_total{queue=c}": 4,
			"drained_total{queue=other}": 11, "other_queues": 0})
		if _, there := scrape(t, m)["handler_duration_seconds{group=g,queue=a}"]; there {
			t.Error("the group of a is there, and its queue is not")
		}

		a.Add(observe.Drained, 3) // a has no label any more, but the caller has kept its Series
		says("a counts as other", map[string]float64{"drained_total{queue=b}": 2, "drained_total{queue=c}": 4,
			"drained_total{queue=other}": 14})

		pass(2 * time.Hour)
		b.Add(observe.Drained, 1)
		m.Series(observe.Worker, "a", "g").AddTimed(observe.Handled, 1, time.Second)
		a.Add(observe.Drained, 1)
		work.AddTimed(observe.Handled, 1, time.Second)
		says("a is back, and c is gone", map[string]float64{"drained_total{queue=a}": 101, "drained_total{queue=b}": 3,
			"drained_total{queue=other}": 14, "handler_duration_seconds{group=g,queue=a}": 9})
	})
}

// A queue that has lost its label gets one again at the next scrape, if one is free and something was counted through a
// Series that its caller has kept. Until that scrape it counts as other.
func TestWhoCountsAgainHasItsLabelBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := redistest.Must(metrics.New(metrics.Config{MaxQueues: 2, MaxGroups: 5}))
		a, b := m.Series(observe.Worker, "a", "g"), m.Series(observe.Worker, "b", "g")
		a.Add(observe.Delivered, 5)
		b.Add(observe.Delivered, 5)
		scrape(t, m)
		pass(2 * time.Hour)
		m.Series(observe.Worker, "c", "g") // a and b lose their labels, and one is free
		a.Add(observe.Delivered, 1)
		scrape(t, m)
		a.Add(observe.Delivered, 1)
		got := scrape(t, m)
		redistest.Want(t, "while it had no label", got["delivered_total{group=other,queue=other}"], 1)
		redistest.Want(t, "with its label back", got["delivered_total{group=g,queue=a}"], 6)
	})
}

// Labels of groups go to existing groups first, and only then to groups that are named in dead letters. Regression:
// dead letters of a thousand groups that do not exist took the labels of existing groups.
func TestGroupsThatAreThereHaveLabelsBeforeThoseOfLetters(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	r := newRig(t, server.URL(), server.Prefix(t), metrics.Config{MaxGroups: 3})
	for i := range 5 {
		r.do("XADD", r.prefix+":{q}:dead", "*", "id", "1", "group", fmt.Sprint("gone-", i), "reason", "expired")
	}
	r.metrics.BridgeStarted(served(r.redis.Client, r.prefix, "q"))
	letters := func() (own, others float64) {
		for name, v := range r.scrape() {
			if name == "dead{group=other,queue=q,reason=expired}" {
				others = v
			} else if len(name) > 4 && name[:5] == "dead{" {
				own += v
			}
		}
		return own, others
	}
	own, others := letters()
	redistest.Want(t, "letters with labels", own, 3)
	redistest.Want(t, "letters of others", others, 2)
	for i := range 3 {
		r.do("XGROUP", "CREATE", r.prefix+":{q}:stream", "live-"+strconv.Itoa(i), "0", "MKSTREAM")
	}
	got := r.scrape()
	for i := range 3 {
		if _, there := got[fmt.Sprintf("lag{group=live-%d,queue=q}", i)]; !there {
			t.Error("no label for group", i)
		}
	}
	own, others = letters()
	redistest.Want(t, "letters with labels, beside groups", own, 0)
	redistest.Want(t, "letters of others, beside groups", others, 5)
}

// While the reader of a scrape is slow, new series can be counted. Regression: a slow reader of a scrape blocked them.
func TestNobodyWaitsForASlowScrape(t *testing.T) {
	t.Parallel()
	m := redistest.Must(metrics.New(metrics.Config{}))
	everyPart(m, "q", "g")
	out, done := make(chan prometheus.Metric), make(chan struct{})
	go func() {
		defer close(done)
		m.Collect(out)
	}()
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		case <-out:
		}
		counted := make(chan struct{})
		go func() {
			defer close(counted)
			everyPart(m, "q", fmt.Sprint("group-", i))
		}()
		select {
		case <-counted:
		case <-time.After(patience):
			t.Fatal("counting a new series waits for the reader of the scrape")
		}
	}
}
