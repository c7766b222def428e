package pull

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// twoMasters is two queues of one prefix on two masters of a cluster. The tests stop the master of the queue away. The
// keys that all queues share are on other masters.
type twoMasters struct {
	*rig
	away, here *queuetest.Rig
	master     *redistest.Server // of the queue away
	owner      func(key string) *redistest.Server
}

func newTwoMasters(t *testing.T) *twoMasters {
	t.Helper()
	c := redistest.Cluster(t, 3, 0)
	r := newRig(t, c.Server())
	owner := func(key string) *redistest.Server { return c.Owner(c.Slot(key)) }
	g := lua.NewGlobals(r.Prefix)
	shared := []*redistest.Server{owner(g.Queues), owner(g.Defaults)}
	m := &twoMasters{rig: r, owner: owner}
	for i := 0; m.away == nil || m.here == nil; i++ {
		one := r.On(fmt.Sprint(r.Queue, "-", i))
		if master := owner(one.Keys.Stream); slices.Contains(shared, master) {
			m.here = one
		} else {
			m.away, m.master = one, master
		}
	}
	m.away.Groups("g")
	m.here.Groups("g")
	return m
}

// requestBoth returns a request for one message of both queues, the queue away first.
func (m *twoMasters) requestBoth(wait time.Duration) Request {
	r := m.request(1, wait)
	r.Queues = []string{m.away.Queue, m.here.Queue}
	return r
}

// wantFound pulls one message of both queues. It tries again if the healthy master was so slow that it seemed away.
func (m *twoMasters) wantFound(p *Puller, what, want string) {
	m.T.Helper()
	redistest.Eventually(m.T, 30*time.Second, func() (bool, string) {
		got := m.pullBoth(p, 0)
		if got != want && m.isReached(p) {
			m.T.Fatalf("%s: %s, want %s", what, got, want)
		}
		return got == want, what + ": " + got
	})
}

// isReached reports whether a Puller reached the healthy master at its last request.
func (m *twoMasters) isReached(p *Puller) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sources[sourceKey{m.here.Queue, "g"}]
	return s != nil && s.lines[0].unreachable == nil
}

// pullBoth pulls one message of both queues, and returns its ID and the error as a text.
func (m *twoMasters) pullBoth(p *Puller, wait time.Duration) string {
	all, err := p.Pull(m.T.Context(), m.requestBoth(wait))
	return fmt.Sprint(idsOf(all), err)
}

// Regression: while the master of one queue was away, a receive of several queues failed, and the messages of the other
// queues waited.
func TestAMasterThatIsAwayKeepsNothingOfOtherQueues(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*redistest.Server){
		"hangs": (*redistest.Server).Pause, "is killed": (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTwoMasters(t)
			redistest.Want(t, "before", m.pullBoth(m.Puller, 0), "[] <nil>")
			leave(m.master)
			m.here.Ready("a", "b", "c")
			m.wantFound(m.Puller, "known before", "[a] <nil>")
			m.expireSettings()
			m.wantFound(m.Puller, "settings are old", "[b] <nil>")
			fresh := newPuller(t, m.Rig)
			m.wantFound(fresh, "never seen before", "[c] <nil>")
			for what, p := range map[string]*Puller{"known before": m.Puller, "never seen before": fresh} {
				m.wantFound(p, what+", and nothing is there", "[] <nil>")
			}
			request := m.request(1, 0)
			request.Queues = []string{m.away.Queue}
			if _, err := fresh.Pull(t.Context(), request); !lua.Temporary(err) {
				t.Errorf("the error for a queue that cannot be reached is %v", err)
			}
		})
	}
}

// A poll of several queues must also wait for a queue whose master was away when the poll began.
func TestAPollSeesTheMasterThatComesBack(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	m := newTwoMasters(t)
	redistest.Want(t, "before", m.pullBoth(m.Puller, 0), "[] <nil>")
	fresh := newPuller(t, m.Rig)
	m.master.Pause()
	m.wantFound(m.Puller, "away", "[] <nil>")
	m.wantFound(fresh, "away", "[] <nil>")
	found := make(chan string, 2)
	for _, p := range []*Puller{m.Puller, fresh} {
		go func() {
			all, err := p.Pull(t.Context(), m.requestBoth(time.Minute))
			for lua.Temporary(err) { // the other master was too slow as well
				all, err = p.Pull(t.Context(), m.requestBoth(time.Minute))
			}
			found <- fmt.Sprint(idsOf(all), err)
		}()
	}
	for _, p := range []*Puller{m.Puller, fresh} {
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			s := p.sources[sourceKey{m.here.Queue, "g"}]
			return s != nil && len(s.lines[0].waiters) == 1, "nobody waits"
		})
	}
	m.master.Resume()
	m.away.Ready("a", "b")
	got := []string{<-found, <-found}
	if fmt.Sprint(got) != "[[a] <nil> [b] <nil>]" && fmt.Sprint(got) != "[[b] <nil> [a] <nil>]" {
		t.Error(got)
	}
}

// If one call settles deliveries of several queues, the deliveries on reachable masters must be settled, although the
// call returns an error for the others.
func TestAMasterThatIsAwayKeepsNoSettlementFromOthers(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	m := newTwoMasters(t)
	m.away.Ready("a", "b", "c")
	m.here.Ready("d", "e", "f")
	var tokens [][]Token
	for range 3 {
		pair := make([]Token, 2)
		for i, one := range []*queuetest.Rig{m.away, m.here} {
			request := m.request(1, 0)
			request.Queues = []string{one.Queue}
			found, err := m.Pull(t.Context(), request)
			if err != nil || len(found) != 1 {
				t.Fatal(found, err)
			}
			pair[i] = found[0].Token
		}
		tokens = append(tokens, pair)
	}
	m.master.Pause()
	var settling sync.WaitGroup
	settling.Go(func() {
		if won, err := m.Ack(t.Context(), tokens[0]); !lua.Temporary(err) || !won[1] {
			t.Error("not acknowledged", won, err)
		}
	})
	settling.Go(func() {
		done, err := m.Fail(t.Context(), tokens[1], []error{errors.New("no"), errors.New("no")})
		if !lua.Temporary(err) || done[1] != stream.Retried {
			t.Error("not failed", done, err)
		}
	})
	settling.Go(func() {
		held, err := m.Extend(t.Context(), tokens[2], make([]time.Duration, 2))
		if !lua.Temporary(err) || held[1] != lua.StillHeld {
			t.Error("not extended", held, err)
		}
	})
	settling.Wait()
}

// A receive asks partition 0 whether it may create a missing group. Regression: while the master of partition 0 was
// away, this question used up the time of the receive, and the healthy partition counted as away.
func TestAMissingGroupIsMadeWhileTheMasterOfPartitionZeroIsAway(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*redistest.Server){
		"hangs": (*redistest.Server).Pause, "is killed": (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTwoMasters(t)
			q := m.away
			for i := 0; m.owner(q.Keys.Stream) != m.master || m.owner(q.Part(1).Keys.Stream) == m.master; i++ {
				q = m.On(fmt.Sprint(m.Queue, "-parts-", i))
			}
			queuetest.PublishCount(t, q.Client, q.Prefix, q.Queue, 2)
			request := m.request(1, 0)
			request.Queues = []string{q.Queue}
			if found, err := m.Pull(t.Context(), request); err != nil || len(found) > 0 { // creates the group
				t.Fatal(found, err)
			}
			healthy := q.Part(1)
			healthy.Do("XGROUP", "DESTROY", healthy.Keys.Stream, "g")
			healthy.Ready("a")
			leave(m.master)
			redistest.Eventually(t, 30*time.Second, func() (bool, string) {
				found, err := m.Pull(t.Context(), request)
				return len(found) == 1, fmt.Sprint(idsOf(found), err)
			})
		})
	}
}

// expireSettings lets the settings of all queues expire, so that the next request reads them again.
func (m *twoMasters) expireSettings() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sources {
		s.mu.Lock()
		s.lastRead = time.Time{}
		s.mu.Unlock()
	}
}
