package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// IdleConfig configures Idle. Dial is required. Rounds is 1 by default. Idle schedules no messages, except those of
// Config.Backlog.
type IdleConfig struct {
	Config
	Queues   int           // with one group each; default 1,000
	Bridges  int           // each with connections of its own; default 4
	Duration time.Duration // of each measurement; default 15s
	// Dial opens a connection for one bridge, in the same way as Config.Redis was opened, plus the given options.
	Dial func(ctx context.Context, options ...func(*rueidis.ClientOption)) (*bridge.Redis, error)
}

// Idle measures the cost of bridges when nothing happens. Requests are counted on the wire as the bridges send them,
// because the server's counters include commands inside scripts. The CPU time is reported by the server, with the
// bridges and without them.
func Idle(ctx context.Context, cfg IdleConfig) (Result, error) {
	cfg.Queues, cfg.Bridges = cmp.Or(cfg.Queues, 1000), cmp.Or(cfg.Bridges, 4)
	cfg.Duration = cmp.Or(cfg.Duration, 15*time.Second)
	cfg.Config = cfg.Config.withDefaults(1, 1)
	err := errors.Join(Check("queues", cfg.Queues), Check("bridges", cfg.Bridges), CheckDuration(cfg.Duration))
	if cfg.Dial == nil {
		err = errors.Join(err, errors.New("idle: Dial is required"))
	}
	if err != nil {
		return Result{}, err
	}
	return on(ctx, cfg.Config, func(ctx context.Context, r *rig) (Result, error) {
		i := &idle{rig: r, cfg: cfg}
		if err := i.createQueues(ctx); err != nil {
			return Result{}, err
		}
		each, most := lower("idle_requests_per_bridge", "req/s"), lower("idle_requests_busiest_bridge", "req/s")
		cpu, without := lower("idle_server_cpu", "% of a core"), lower("idle_server_cpu_without_bridges", "% of a core")
		err := r.rounds("idle round", func() error { return i.round(ctx, each, most, cpu, without) })
		return noted(result("idle", each, most, cpu, without), fmt.Sprintf("%d queues with a group each, %d bridges; requests "+
			"are counted as they are sent", cfg.Queues, cfg.Bridges)), err
	})
}

type idle struct {
	*rig
	cfg IdleConfig
}

// createQueues registers the queues, and creates a group in each.
func (i *idle) createQueues(ctx context.Context) error {
	for n := range i.cfg.Queues {
		i.queueNames = append(i.queueNames, i.Queue+"-"+strconv.Itoa(n))
	}
	if _, err := lua.Register(ctx, i.c, lua.NewGlobals(i.Prefix), i.queueNames); err != nil {
		return err
	}
	for n, name := range i.queueNames {
		if _, err := bridge.CreateGroup(ctx, i.Redis, i.Prefix, name, group); err != nil {
			return err
		}
		i.Progress("queues", n, len(i.queueNames))
	}
	return nil
}

func (i *idle) round(ctx context.Context, each, most, cpu, without *series) (err error) {
	empty, err := i.measureCPU(ctx, i.cfg.Duration/3)
	if err != nil {
		return err
	}
	var parts []*part
	var bridges []*bridge.Bridge
	wires := make([]wire, i.cfg.Bridges)
	var connections []*bridge.Redis
	defer func() {
		err = errors.Join(err, stop(parts...))
		for _, c := range connections {
			c.Close()
		}
	}()
	for n := range i.cfg.Bridges {
		connection, err := i.cfg.Dial(ctx, wires[n].count)
		if err != nil {
			return err
		}
		connections = append(connections, connection)
		b, err := bridge.NewBridge(bridge.Config{Redis: connection, Prefix: i.Prefix})
		if err != nil {
			return err
		}
		bridges, parts = append(bridges, b), append(parts, start(b.Run))
	}
	if err := i.settle(ctx, bridges, wires); err != nil {
		return err
	}
	before := sent(wires)
	used, err := i.measureCPU(ctx, i.cfg.Duration)
	if err != nil {
		return err
	}
	total, busiest := 0.0, 0.0
	for n, after := range sent(wires) {
		rate := float64(after-before[n]) / i.cfg.Duration.Seconds()
		total, busiest = total+rate, max(busiest, rate)
	}
	each.add(total / float64(len(wires)))
	most.add(busiest)
	if used >= 0 {
		cpu.add(used)
		without.add(empty)
	}
	return nil
}

// settle waits until every bridge knows all bridges and queues, and the rate of requests no longer falls.
func (i *idle) settle(ctx context.Context, bridges []*bridge.Bridge, wires []wire) error {
	err := until(ctx, stepLimit, "the bridges do not take up the queues", func() (bool, error) {
		owned := 0
		for _, b := range bridges {
			s := b.Status()
			if s.Queues < len(i.queueNames) || len(s.Live) < len(bridges) {
				return false, nil
			}
			owned += s.Owned
		}
		return owned >= len(i.queueNames), nil
	})
	const slice = 2 * time.Second
	for previous := int64(math.MaxInt64); err == nil; {
		before := sum(sent(wires))
		if err = pause(ctx, slice); err != nil {
			break
		}
		requests := sum(sent(wires)) - before
		if requests >= previous-previous/10 {
			return nil
		}
		previous = requests
	}
	return err
}

func sent(wires []wire) []int64 {
	counts := make([]int64, len(wires))
	for n := range wires {
		counts[n] = wires[n].requests.Load()
	}
	return counts
}

func sum(counts []int64) (total int64) {
	for _, n := range counts {
		total += n
	}
	return total
}

// measureCPU waits for window, and returns the CPU use of all servers during window, in percent of a core; -1 if they
// do not report their CPU time.
func (i *idle) measureCPU(ctx context.Context, window time.Duration) (float64, error) {
	before := i.cpu(ctx)
	begin := time.Now()
	if err := pause(ctx, window); err != nil {
		return 0, err
	}
	if after := i.cpu(ctx); before > 0 && after > 0 {
		return 100 * (after - before) / time.Since(begin).Seconds(), nil
	}
	return -1, nil
}

// cpu returns the CPU time used by all servers, in seconds; 0 if they do not report it.
func (i *idle) cpu(ctx context.Context) (total float64) {
	for _, node := range i.c.Nodes() {
		used, err := numbers(node.Do(ctx, node.B().Info().Section("cpu").Build()))
		if err != nil {
			return 0
		}
		total += used["used_cpu_sys"] + used["used_cpu_user"]
	}
	return total
}

// pause waits for d.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
