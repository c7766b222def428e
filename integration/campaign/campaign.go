package campaign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Config configures a campaign.
type Config struct {
	Seed       uint64
	Duration   time.Duration // duration of load and faults
	Rate       float64       // messages per second, of all producers together
	Patience   float64       // weight of messages with slow handlers; 1 = few
	Hold       int           // messages that the holder keeps; more than a reclaim reads in one call
	Visibility time.Duration
	Pause      [2]time.Duration // shortest and longest pause between two faults of an attacker
	Settle     time.Duration    // time limit to come to rest after the last fault
	Dir        string           // directory of the ledgers
	Masters    int              // masters of a cluster, with one replica each; 0 = one standalone server
	Partitions int              // partitions of the main queue; 0 = 1
	Progress   func(format string, args ...any)
	Releases   bool       // processes of the previous release take part, and bridges are upgraded and rolled back
	Languages  []Language // packages in other languages take part
}

const prefix = "campaign"

// controller runs one campaign.
type controller struct {
	t        testing.TB
	cfg      Config
	server   *redistest.Server // the server, or the front of the whole cluster
	nodes    *nodes            // nil without a cluster
	client   rueidis.Client    // bypasses all proxies
	family   *family
	timeline timeline
	places   []string            // names of the partitions of both queues
	keys     map[string]lua.Keys // by place
	holder   *slot
	weather  sync.Mutex // held by a fault that affects all processes, or that needs calm
	began    time.Time
	guests   *guests
	denied   sync.Map        // commands that were denied to a guest
	kinds    map[string]bool // kinds of faults that are possible

	recurring []bridge.Recurrence
}

// Run runs a campaign on a server of its own and audits it.
func Run(t testing.TB, cfg Config) *Result {
	t.Helper()
	c := &controller{t: t, cfg: cfg, family: &family{t: t, dir: cfg.Dir}, keys: map[string]lua.Keys{},
		kinds: map[string]bool{}, began: time.Now()}
	var err error
	c.guests, err = readUsers()
	c.must("users", err)
	if cfg.Releases {
		c.family.old = c.oldProgram()
		c.guests.withBefore(before.Document(t, before.Release, "docs/OPERATIONS.md"))
	}
	if cfg.Masters > 0 {
		c.nodes = startNodes(t, cfg.Masters, c.guests.arguments(true)...)
		c.server = c.nodes.Server()
	} else {
		c.server = redistest.Own(t, append([]string{"--appendonly", "yes", "--appendfsync", "always",
			"--auto-aof-rewrite-min-size", "256mb"}, c.guests.arguments(false)...)...)
	}
	c.client = c.server.Client(t, func(o *rueidis.ClientOption) {
		o.ForceSingleClient, o.DisableRetry = c.nodes == nil, true
	})
	for i := range max(1, cfg.Partitions) {
		c.places = append(c.places, lua.PartitionName(queueMain, i))
	}
	c.places = append(c.places, queueSide)
	for _, place := range c.places {
		c.keys[place] = lua.NewKeys(prefix, place)
	}
	t.Cleanup(func() { reportRaces(t, cfg.Dir) })
	t.Cleanup(c.family.killAll)
	stopPulse := c.pulse()
	defer stopPulse()

	c.must("set up", c.setUp())
	load := time.Now()
	c.must("faults", c.attack())
	took := time.Since(load)
	state, err := c.comeToRest()
	c.must("come to rest", err)
	stopPulse()
	c.denied.Range(func(what, _ any) bool {
		t.Errorf("a user of docs/operations/users.md cannot do its work: %v", what)
		return true
	})

	faults := withoutOurSlowness(c.nodes.withoutOurFailovers(c.timeline.all()))
	tally, err := Audit(cfg.Dir, cfg.Visibility, faults, state)
	c.must("audit", err)
	return &Result{Tally: tally, Seed: cfg.Seed, Server: c.server.Name(), Load: took, Took: time.Since(c.began),
		Faults: faults, Kinds: len(c.kinds), TwoReleases: cfg.Releases,
		Endless: c.endless(), Languages: c.languageNames()}
}

func (c *controller) must(what string, err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("campaign: %s: %v", what, err)
	}
}

// setUp starts the processes. The holder comes first and alone, because it must get the oldest messages of its group.
func (c *controller) setUp() error {
	ctx := context.Background()
	r, err := bridge.Dial(ctx, c.server.URL())
	if err != nil {
		return err
	}
	defer r.Close()
	if err := redistest.Must(admin.New(r, prefix)).WriteDefaults(ctx, policy(c.cfg.Visibility)); err != nil {
		return err
	}
	if err := redistest.Must(admin.New(r, prefix)).WritePolicy(ctx, queueMain, "", mainPolicy()); err != nil {
		return err
	}
	partitions := max(1, c.cfg.Partitions)
	if _, err := redistest.Must(admin.New(r, prefix)).SetPartitions(ctx, queueMain, partitions, nil); err != nil {
		return err
	}
	for _, queue := range []string{queueMain, queueSide} {
		for _, group := range groups {
			if _, err := bridge.CreateGroup(ctx, r, prefix, queue, group); err != nil {
				return err
			}
		}
	}
	add := func(role, group string, n int, proxied bool, change func(*part)) {
		for i := range n {
			p := part{
				Index: i,
				Role:  role, Group: group, Name: fmt.Sprintf("%s%s%d", role, group, len(c.family.slots)), URL: c.server.URL(),
				Prefix: prefix,
				Seed:   c.cfg.Seed + uint64(len(c.family.slots))<<32, Visibility: c.cfg.Visibility, Patience: c.cfg.Patience,
				Concurrency: 200,
				Partitions:  max(1, c.cfg.Partitions), Replicas: min(1, c.cfg.Masters),
				Endless: c.endless(),
			}
			if change != nil {
				change(&p)
			}
			command := c.assignLanguage(&p)
			var proxy *redistest.Proxy
			if proxied && c.nodes == nil { // nodes of a cluster announce their own addresses
				proxy = c.server.Proxy(c.t)
			}
			s := c.family.add(p, proxy, c.guests)
			s.program = command
			if c.cfg.Releases {
				c.setRelease(s)
			}
		}
	}
	producers, workersOfB := 3, 2
	if n := len(c.cfg.Languages); n > 0 {
		producers, workersOfB = 1+n, 1+n
	}
	add(roleHolder, groups[0], 1, false, func(p *part) { p.Concurrency = c.cfg.Hold })
	add(roleBridge, "", 2, true, nil)
	add(roleWorker, groups[0], max(3, 1+len(c.cfg.Languages)), true, nil)
	add(roleWorker, groups[1], workersOfB, true, nil)
	add(rolePlain, groups[1], 2, true, nil)
	add(roleOperator, "", 1, true, nil)
	load := c.cfg.Rate
	add(roleGateway, groups[1], 2, true, nil) // the group of the worker behind them
	addresses, secret, err := c.openGateways(ctx, r)
	if err != nil {
		return err
	}
	behind := func(p *part) { p.Gateways, p.Secret, p.Rate = addresses, secret, load/httpShare }
	add(roleHTTPWorker, groups[1], 1, false, behind)
	add(roleHTTPProducer, "", 1, false, behind)
	load -= load / httpShare
	add(roleProducer, "", producers, true, func(p *part) { p.Rate = load / float64(producers) })
	c.holder = c.family.of(roleHolder)[0]

	for _, s := range append(c.family.of(roleHolder), c.family.of(roleBridge)...) {
		if err := c.family.start(s); err != nil {
			return err
		}
	}
	if err := c.fillHolder(ctx, r); err != nil {
		return err
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix, AllowOldBridges: c.cfg.Releases})
	if err != nil {
		return err
	}
	defer client.Close()
	if err := c.recur(ctx, client); err != nil {
		return err
	}
	for _, s := range c.family.of(roleGateway, roleWorker, rolePlain, roleProducer, roleOperator, roleHTTPWorker,
		roleHTTPProducer) {
		if err := c.family.start(s); err != nil {
			return err
		}
	}
	return nil
}

// fillHolder schedules as many messages as the holder can hold, and waits until it has all.
func (c *controller) fillHolder(ctx context.Context, r *bridge.Redis) error {
	const name = "controller"
	l, err := openLedger(filepath.Join(c.cfg.Dir, name+".ledger"), name, roleProducer, "")
	if err != nil {
		return err
	}
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix,
		Durability: bridge.Replicated(min(1, c.cfg.Masters))})
	if err != nil {
		return err
	}
	defer client.Close()
	p := &producer{part: part{Name: name}, client: client, ledger: l}
	batch := make([]bridge.NewMessage, c.cfg.Hold)
	for i := range batch {
		batch[i] = bridge.NewMessage{ID: plan{queueMain, kindHeld, 0}.id(name, uint64(i+1)), Payload: make([]byte, 100)}
	}
	p.send(queueMain, batch, rand.New(rand.NewPCG(c.cfg.Seed, 0)))
	return c.await(30*time.Second, func() (string, error) {
		s, err := c.main()
		if held := s.groups[groups[0]]; held < c.cfg.Hold {
			return fmt.Sprintf("the holder has %d of %d messages", held, c.cfg.Hold), err
		}
		return "", err
	})
}

// errFailed is the cause of an early end: an attacker could not make a fault.
var errFailed = errors.New("a fault could not be done")

// attack makes faults for the duration of the campaign, and longer until each kind has come. It returns when all
// faults are repaired.
func (c *controller) attack() error {
	stop, failed := context.WithCancelCause(context.Background())
	defer failed(nil)
	ctx, cancel := context.WithTimeout(stop, c.cfg.Duration)
	defer cancel()
	processes, server := processCards(c.cfg.Visibility), append(serverCards(c.cfg.Visibility), operatorCards()...)
	if c.nodes == nil {
		processes = append(processes, partitionCards(c.cfg.Visibility)...)
		processes = append(processes, cutGatewayCard(c.cfg.Visibility))
		server = append(append(server, standaloneCards(c.cfg.Visibility)...), networkCards(c.cfg.Visibility)...)
	} else {
		server = append(server, clusterCards(c.cfg.Visibility)...)
	}
	for _, one := range append(slices.Clone(processes), server...) {
		c.kinds[one.kind] = true
	}
	errs := make([]error, 3) // of the attackers of processes, of the server, and of releases
	var attackers sync.WaitGroup
	if c.cfg.Releases {
		m := c.newMover()
		attackers.Go(func() {
			if errs[2] = m.run(ctx); errs[2] != nil {
				failed(errFailed)
			}
		})
	}
	for i, deck := range [][]card{processes, server} {
		a := &attacker{c: c, random: rand.New(rand.NewPCG(c.cfg.Seed, 1000+uint64(i))), deck: deck, pause: c.cfg.Pause,
			storms: i == 1}
		attackers.Go(func() {
			if errs[i] = a.run(ctx); errs[i] != nil {
				failed(errFailed)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.report(ctx)
	}()
	attackers.Wait()
	<-done
	return errors.Join(errs...)
}

// report reports the progress every ten seconds until ctx ends.
func (c *controller) report(ctx context.Context) {
	if c.cfg.Progress == nil {
		return
	}
	for pause(ctx, 10*time.Second) {
		faults, kinds := c.timeline.count()
		size := int64(0)
		paths, _ := filepath.Glob(filepath.Join(c.cfg.Dir, "*.ledger"))
		for _, path := range paths {
			if info, err := os.Stat(path); err == nil {
				size += info.Size()
			}
		}
		s, _ := c.main()
		due := 0
		for _, place := range c.places {
			n, _ := c.number("ZCARD", c.keys[place].Due)
			due += n
		}
		c.cfg.Progress("%s: %d faults of %d kinds, ledgers %d MB, scheduled %d, entries %d, pending %v",
			time.Since(c.began).Round(time.Second), faults, kinds, size>>20, due, s.length, s.groups)
	}
}

// pulse records the times in which this process, which carries all connections, or the server is slow. It also records
// denied commands and, on a cluster, failovers. All of that ends with stop.
func (c *controller) pulse() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var watchers sync.WaitGroup
	note := func(kind string, from time.Time, hits []string) {
		c.timeline.add(Fault{Kind: kind, From: from, Until: time.Now(), Hits: hits, Observed: true})
	}
	watchers.Go(func() {
		for last := time.Now(); pause(ctx, pulseEvery); last = time.Now() {
			if time.Since(last) > pulseGap {
				note(faultSlowMachine, last, names(c.family.of(roleProducer, roleBridge, roleWorker, rolePlain, roleGateway,
					roleHTTPProducer, roleHTTPWorker)))
			}
		}
	})
	watchers.Go(func() {
		for pause(ctx, 2*pulseEvery) {
			from := time.Now()
			call, done := context.WithTimeout(ctx, 30*time.Second)
			err := c.client.Do(call, c.client.B().Ping().Build()).Error()
			done()
			if ctx.Err() == nil && time.Since(from) > pulseGap && err == nil {
				note(faultOverload, from, nil)
			}
		}
	})
	watchers.Go(func() { c.watchDenials(ctx) })
	if c.nodes != nil {
		watchers.Go(func() { c.nodes.watchRoles(ctx, note) })
	}
	return sync.OnceFunc(func() { cancel(); watchers.Wait() })
}

// mend continues stopped processes, and opens their networks. It returns an error if a process ended by itself.
func (c *controller) mend() error {
	for _, s := range c.family.slots {
		s.signal(syscall.SIGCONT)
		if s.proxy != nil {
			s.proxy.Stall(false)
			s.proxy.Slow(0)
		}
		if !s.running() {
			return fmt.Errorf("%s ended by itself: %v", s.current(), s.err)
		}
	}
	return nil
}
