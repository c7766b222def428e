package campaign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// attacker makes faults, one at a time. Two attackers work concurrently: one on processes, one on the server and the
// network.
type attacker struct {
	c      *controller
	random *rand.Rand
	deck   []card
	drawn  []card // rest of the current round, shuffled
	pause  [2]time.Duration
	storms bool      // its faults affect all processes, so it makes none while the other attacker holds the weather
	from   time.Time // begin of the current fault
	own    *slot     // slot of the current fault, locked for others
}

// card is one kind of fault. do makes the fault and repairs it. It returns the names of the hit processes (none = all),
// and the queue that may have lost messages; the caller records the time.
type card struct {
	kind string
	do   func(a *attacker) (hits []string, queue string, err error)
}

// run makes one fault after another until ctx ends and every kind has come. Every kind comes once before any comes
// twice.
func (a *attacker) run(ctx context.Context) error {
	// After ctx has ended, the first round still goes on to its end, unless a fault could not be made.
	for round := 0; pause(ctx, a.between(a.pause[0], a.pause[1])) || round == 1 && len(a.drawn) > 0 &&
		!errors.Is(context.Cause(ctx), errFailed); {
		if len(a.drawn) == 0 {
			round++
			a.drawn = append(a.drawn, a.deck...)
			a.random.Shuffle(len(a.drawn), func(i, j int) { a.drawn[i], a.drawn[j] = a.drawn[j], a.drawn[i] })
		}
		next := a.drawn[0]
		a.drawn = a.drawn[1:]
		hits, queue, err := a.attack(next)
		if err != nil {
			return fmt.Errorf("%s: %w", next.kind, err)
		}
		a.c.timeline.add(Fault{Kind: next.kind, From: a.from, Until: time.Now(), Hits: hits, Queue: queue})
	}
	return nil
}

func (a *attacker) attack(next card) ([]string, string, error) {
	if a.storms {
		a.c.weather.Lock()
		defer a.c.weather.Unlock()
	}
	a.from = time.Now()
	defer a.release()
	return next.do(a)
}

// take locks a slot for this attacker, until release.
func (a *attacker) take(s *slot) *slot {
	a.release()
	s.busy.Lock()
	a.own = s
	return s
}

func (a *attacker) release() {
	if a.own != nil {
		a.own.busy.Unlock()
		a.own = nil
	}
}

func (a *attacker) between(least, most time.Duration) time.Duration {
	return least + time.Duration(a.random.Float64()*float64(most-least))
}

// wait waits for the duration of a fault. It ignores the end of the run, because every fault must be repaired.
func (a *attacker) wait(least, most time.Duration) { <-time.After(a.between(least, most)) }

func (a *attacker) pick(roles ...string) *slot {
	some := a.c.family.of(roles...)
	return a.take(some[a.random.IntN(len(some))])
}

// processCards are the faults of single processes. Zombies come more often than the others, because they test
// ownership.
func processCards(visibility time.Duration) []card {
	kill := func(roles ...string) func(*attacker) ([]string, string, error) {
		return func(a *attacker) ([]string, string, error) {
			s := a.pick(roles...)
			return a.replace(s, os.Kill, 0)
		}
	}
	term := func(roles ...string) func(*attacker) ([]string, string, error) {
		return func(a *attacker) ([]string, string, error) {
			s := a.pick(roles...)
			return a.replace(s, syscall.SIGTERM, 25*time.Second)
		}
	}
	stop := func(least, most time.Duration, roles ...string) func(*attacker) ([]string, string, error) {
		return func(a *attacker) ([]string, string, error) {
			s := a.pick(roles...)
			s.signal(syscall.SIGSTOP)
			a.wait(least, most)
			s.signal(syscall.SIGCONT)
			return []string{s.current()}, "", nil
		}
	}
	zombie := card{faultStopWorker, func(a *attacker) ([]string, string, error) {
		defer a.calm()()
		s := a.pick(roleWorker)
		s.signal(syscall.SIGSTOP)
		defer s.signal(syscall.SIGCONT)
		return a.untilTaken(s, visibility)
	}}
	behindGateways := append(gatewayCards(visibility), card{faultKillGateway, kill(roleGateway)},
		card{faultTermGateway, term(roleGateway)}, card{faultKillHTTP, kill(roleHTTPWorker)},
		card{faultStopHTTP, stop(visibility, 2*visibility, roleHTTPWorker)})
	return append(behindGateways, []card{
		{faultKillProducer, kill(roleProducer, roleHTTPProducer)}, {faultKillBridge, kill(roleBridge)},
		{faultKillWorker, kill(roleWorker)},
		{faultKillPlain, kill(rolePlain)}, zombie, zombie,
		{faultStopPlain, stop(visibility, 2*visibility, rolePlain)},
		{faultStopBridge, stop(2*time.Second, 3*time.Second, roleBridge)},
		{faultTermWorker, term(roleWorker, roleHTTPWorker)}, {faultTermBridge, term(roleBridge)},
	}...)
}

// partitionCards cut off a worker from the server. They need its proxy.
func partitionCards(visibility time.Duration) []card {
	partition := card{faultPartition, func(a *attacker) ([]string, string, error) {
		defer a.calm()()
		s := a.pick(roleWorker)
		// A worker of group a, because there messages fail whose entries group b still holds: see kindParted.
		for s.part.Group != groups[0] {
			s = a.pick(roleWorker)
		}
		s.proxy.Stall(true)
		defer s.proxy.Stall(false)
		return a.untilTaken(s, visibility)
	}}
	return []card{partition, partition}
}

// calm keeps the other attacker quiet until end is called, because no bridge reclaims for a while after an outage.
func (a *attacker) calm() (end func()) {
	a.c.weather.Lock()
	a.from = time.Now()
	return a.c.weather.Unlock
}

// untilTaken waits until all messages of a worker were reclaimed, if that does not take too long. Then the worker
// goes on, and all results of its handlers come too late. A stopped worker is soon told by its next extend. A worker
// that was cut off has finished its handlers meanwhile, and all its settlements reach the server too late.
func (a *attacker) untilTaken(s *slot, visibility time.Duration) ([]string, string, error) {
	a.wait(visibility, visibility+500*time.Millisecond)
	_ = a.c.await(3*visibility, func() (string, error) {
		if a.c.heldBy(s) > 0 {
			return "it still holds some", nil
		}
		return "", nil
	})
	return []string{s.current()}, "", nil
}

// replace ends a process, and starts the next one at once or after a while.
func (a *attacker) replace(s *slot, sig os.Signal, timeout time.Duration) ([]string, string, error) {
	name := s.current()
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	var exit *exec.ExitError
	// The server may be down.
	if err := s.end(sig, timeout); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == abandoned) {
		return nil, "", err
	}
	a.wait(0, 800*time.Millisecond)
	return []string{name}, "", a.c.family.start(s)
}

// networkCards are faults of the network between processes and the server. Each hits one process, all of a role, or
// all.
func networkCards(visibility time.Duration) []card {
	arm := func(set func(p *redistest.Proxy, n int, commands ...string)) func(*attacker) ([]string, string, error) {
		return func(a *attacker) ([]string, string, error) {
			slots := a.paths()
			for _, s := range slots {
				set(s.proxy, 1+a.random.IntN(3), "EVALSHA", "XREADGROUP", "XACK")
			}
			a.wait(500*time.Millisecond, time.Second)
			for _, s := range slots {
				set(s.proxy, 0)
			}
			return names(slots), "", nil
		}
	}
	return []card{
		{faultCut, func(a *attacker) ([]string, string, error) {
			slots := a.paths()
			for _, s := range slots {
				s.proxy.CutAll()
			}
			return names(slots), "", nil
		}},
		{faultDrop, arm((*redistest.Proxy).CutBeforeForward)},
		{faultLose, arm((*redistest.Proxy).CutAfterForward)},
		{faultTear, arm((*redistest.Proxy).CutMidReply)},
		{faultStall, func(a *attacker) ([]string, string, error) {
			slots := a.paths()
			for _, s := range slots {
				s.proxy.Stall(true)
			}
			a.wait(visibility, visibility+1500*time.Millisecond)
			for _, s := range slots {
				s.proxy.Stall(false)
			}
			return names(slots), "", nil
		}},
		{faultSlow, func(a *attacker) ([]string, string, error) {
			slots := a.paths()
			delay := a.between(20*time.Millisecond, 120*time.Millisecond)
			for _, s := range slots {
				s.proxy.Slow(delay)
			}
			a.wait(time.Second, 2*time.Second)
			for _, s := range slots {
				s.proxy.Slow(0)
			}
			return names(slots), "", nil
		}},
	}
}

// paths picks the processes whose network breaks.
func (a *attacker) paths() []*slot {
	all := a.c.family.of(roleProducer, roleBridge, roleWorker, rolePlain, roleGateway)
	switch a.random.IntN(4) {
	case 0:
		return all
	case 1:
		return a.c.family.of(all[a.random.IntN(len(all))].part.Role)
	default:
		return []*slot{all[a.random.IntN(len(all))]}
	}
}

// do runs a command with a key, not through a proxy. It repeats the command until the server answers, see insist.
func (c *controller) do(args ...string) (rueidis.RedisMessage, error) {
	reply, err := insist(func(ctx context.Context) rueidis.RedisResult { return c.client.Do(ctx, keyed(c.client, args)) })
	if err != nil {
		err = fmt.Errorf("%v: %w", args, err)
	}
	return reply, err
}

// insist repeats a call for at most 20 s, until the server answers it. A nil reply is an answer. The refusal of a
// cluster whose slot moves or has no master is none.
func insist(call func(ctx context.Context) rueidis.RedisResult) (rueidis.RedisMessage, error) {
	for deadline := time.Now().Add(20 * time.Second); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		reply, err := call(ctx).ToMessage()
		cancel()
		refused, answered := rueidis.IsRedisErr(err)
		if answered && (refused.IsClusterDown() || refused.IsTryAgain() || refused.IsLoading()) {
			answered = false
		}
		if err == nil || answered || time.Now().After(deadline) {
			if rueidis.IsRedisNil(err) {
				err = nil
			}
			return reply, err
		}
		<-time.After(20 * time.Millisecond)
	}
}

// keyed builds a command that a cluster client sends to the master of its key. The key is the first word after the
// command, or after the subcommand of XINFO and XGROUP.
func keyed(c rueidis.Client, args []string) rueidis.Completed {
	n := 1
	if args[0] == "XINFO" || args[0] == "XGROUP" {
		n = 2
	}
	return c.B().Arbitrary(args[:n]...).Keys(args[n]).Args(args[n+1:]...).Build()
}

// all runs a command on the server, or on every node of the cluster, and returns the replies.
func (c *controller) all(args ...string) (replies []rueidis.RedisMessage, err error) {
	clients := []rueidis.Client{c.client}
	if c.nodes != nil {
		clients = c.nodes.clients
	}
	for _, client := range clients {
		reply, e := insist(func(ctx context.Context) rueidis.RedisResult {
			return client.Do(ctx, client.B().Arbitrary(args...).Build())
		})
		if e != nil {
			err = errors.Join(err, fmt.Errorf("%v: %w", args, e))
		}
		replies = append(replies, reply)
	}
	return replies, err
}
