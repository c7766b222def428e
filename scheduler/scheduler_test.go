package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
)

// An idle scheduler of a hundred queues must send at most two requests a second (guarantee G8).
func TestIdleBudget(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Own(t)
	c, prefix := s.Client(t, queuetest.WithoutPings), s.Prefix(t)
	const queues, seconds = 100, 15
	names := make([]string, queues)
	for i := range names {
		names[i] = fmt.Sprint("queue-", i)
	}
	if _, err := lua.Register(t.Context(), c, lua.NewGlobals(prefix), names); err != nil {
		t.Fatal(err)
	}
	b := start(t, s, prefix, func(c *Config) {
		c.Notice = func(queue string) {
			t.Errorf("a notice of %s, which is idle",
				queue)
		}
	})
	redistest.Eventually(t, 5*time.Second, func() (bool, string) { st := b.Status(); return st.Owned == queues, fmt.Sprint(st) })
	m := s.Monitor(t)
	quiet := time.Now()
	redistest.Eventually(t, 30*time.Second, func() (bool, string) { // wait until the first looks are over
		if m.Count() > 5 {
			m.Reset()
			quiet = time.Now()
		}
		return time.Since(quiet) > 2*time.Second, "starting"
	})
	m.Reset()
	began := time.Now()
	redistest.Eventually(t, 2*seconds*time.Second, func() (bool, string) {
		return time.Since(began) >= seconds*time.Second,
			"counting"
	})
	rate := float64(m.Count()) / time.Since(began).Seconds()
	t.Logf("%.2f requests a second: %v in %v", rate, m.Commands(), time.Since(began).Round(time.Millisecond))
	if rate > 2 {
		t.Errorf("%.2f requests a second, at most 2 are allowed", rate)
	}
}

// The queues of a scheduler that loses its connection must move to the others within its heartbeat timeout and one
// heartbeat. The queues of a scheduler that is stopped must move at once.
func TestAnotherTakesOver(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Own(t)
	c, prefix := s.Client(t), s.Prefix(t)
	p := newProducer(t, c, prefix)
	const queues = 20
	for i := range queues {
		if _, err := p.Schedule(t.Context(), fmt.Sprint("queue-", i), producer.Message{Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	proxies := []*redistest.Proxy{s.Proxy(t), s.Proxy(t), s.Proxy(t)}
	bridges := make([]running, len(proxies))
	for i, proxy := range proxies {
		bridges[i] = start(t, proxy, prefix)
	}
	eachOwnedOnce := func(among ...running) func() (bool, string) {
		return func() (bool, string) {
			owners := map[string]int{}
			for i := range queues {
				for _, b := range among {
					if queue := fmt.Sprint("queue-", i); b.owns(queue) {
						owners[queue]++
					}
				}
			}
			for _, n := range owners {
				if n != 1 {
					return false, fmt.Sprint(owners)
				}
			}
			return len(owners) == queues, fmt.Sprint(len(owners), " of ", queues, " are owned")
		}
	}
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		for _, b := range bridges { // a bridge that knows of no other owns all queues
			if live := len(b.Status().Live); live != len(bridges) {
				return false, fmt.Sprint(live, " are known")
			}
		}
		return eachOwnedOnce(bridges...)()
	})
	if st := bridges[0].Status(); len(st.Live) != 3 || st.Owned == queues || st.Queues != queues {
		t.Errorf("status %+v", st)
	}

	proxies[0].Refuse(true)
	proxies[0].CutAll()
	cut := time.Now()
	redistest.Eventually(t, 10*time.Second, eachOwnedOnce(bridges[1:]...))
	took := time.Since(cut)
	t.Logf("taken over %v after the crash", took)
	if took > 5*time.Second {
		t.Errorf("taken over after %v", took)
	}

	bridges[1].stop()
	stopped := time.Now()
	redistest.Eventually(t, 10*time.Second, eachOwnedOnce(bridges[2]))
	if took := time.Since(stopped); took > 2500*time.Millisecond {
		t.Errorf("taken over %v after a clean stop", took)
	}

	proxies[0].Refuse(false)
	redistest.Eventually(t, 10*time.Second, eachOwnedOnce(bridges[0], bridges[2]))
}

// FLUSHALL deletes the registry and the tokens. A bridge must register its queues again, and must serve them.
func TestFlushedServerIsServed(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	b := start(t, s, prefix, func(c *Config) {
		c.RegistryInterval, c.SurveyInterval, c.DiscoverInterval = 200*time.Millisecond, 200*time.Millisecond, time.Hour
	})
	p := newProducer(t, c, prefix)
	if _, err := p.Schedule(t.Context(), queue, producer.Message{Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		l := b.owners.drainer(queue)
		return l != nil && !l.sleepsBeyond(2*time.Hour), "the loop does not sleep"
	})
	queuetest.Do(t, c, "FLUSHALL")
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		names, err := Queues(t.Context(), c, prefix)
		return len(names) == 1 && names[0] == queue, fmt.Sprint(names, err)
	})
	// The ID of this token is lower than those from before the flush.
	queuetest.Do(t, c, "XADD", lua.NewKeys(prefix, queue).Wake, "1-1", "k", "v")
	queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, queue).Due, "1", "a")
	redistest.Eventually(t, 5*time.Second, func() (bool, string) {
		return len(queuetest.Entries(t, c, prefix, queue)) == 1,
			"not delivered"
	})
}

// Owned must be called with all queues that the scheduler owns, sorted, without invalid names in the registry.
func TestOwnedIsCalledWithAllQueues(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix := s.Client(t), s.Prefix(t)
	calls := make(chan []string, 100)
	start(t, s, prefix, func(c *Config) { c.Owned = func(queues []string) { calls <- queues } })
	g := lua.NewGlobals(prefix)
	queuetest.Do(t, c, "HSETNX", g.Queues, "not/allowed", "1")
	for _, queue := range []string{"b", "a"} {
		if _, err := lua.Register(t.Context(), c, g, []string{queue}); err != nil {
			t.Fatal(err)
		}
	}
	var last []string
	redistest.Eventually(t, 10*time.Second, func() (bool, string) {
		select {
		case last = <-calls:
		default:
		}
		return fmt.Sprint(last) == "[a b]", fmt.Sprint(last)
	})
}

// `duestream dev` runs on the in-process server when no server is installed, so a bridge must run on that server
// without an error.
func TestRunsOnTheInProcessServer(t *testing.T) {
	t.Parallel()
	s := inProcess{redistest.InProcess(t)}
	c, prefix := s.Client(t), lua.DefaultPrefix
	b := start(t, s, prefix, func(c *Config) { c.DiscoverInterval = 100 * time.Millisecond })
	p := newProducer(t, c, prefix)
	for i := range 3 {
		if _, err := p.Schedule(t.Context(), "queue",
			producer.Message{Delay: time.Duration(1+100*i) * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
	}
	queuetest.Do(t, c, "ZADD", lua.NewKeys(prefix, "unregistered").Due, "1", "a")
	for queue, n := range map[string]int{"queue": 3, "unregistered": 1} {
		redistest.Eventually(t, 15*time.Second, func() (bool, string) {
			got := len(queuetest.Entries(t, c, prefix, queue))
			return got == n, fmt.Sprint(queue, " has ", got, "\n", b.log)
		})
	}
	if n := b.log.count("failing"); n != 0 {
		t.Errorf("log:\n%s", b.log)
	}
}

// inProcess gives its clients the option ForceSingleClient, because rueidis takes the in-process server for a cluster.
type inProcess struct{ *redistest.Server }

func (s inProcess) Client(t testing.TB, opts ...func(*rueidis.ClientOption)) rueidis.Client {
	return s.Server.Client(t, append(opts, func(o *rueidis.ClientOption) { o.ForceSingleClient = true })...)
}
