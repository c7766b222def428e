// Package tools has the commands beside the queues: bench, conformance, migrate, man and version.
package tools

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/cmd/duestream/bench"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

const benchPrefix = "duestream-bench"

type benchOptions struct {
	messages, payload, rate, backlog, rounds, queues, bridges int
	callers, rates                                            []int
	duration                                                  time.Duration
	force                                                     bool

	changed func(flag string) bool // reports whether a flag was given
}

// benchScenario is an argument of bench: it runs one or more scenarios of package bench.
type benchScenario struct {
	name, about string
	messages    int // default of --messages, with which the scenario takes about ten seconds on a small machine
	run         func(ctx context.Context, o benchOptions, cfg bench.Config, dial benchDial) ([]bench.Result, error)
}

type benchDial = func(context.Context, ...func(*rueidis.ClientOption)) (*bridge.Redis, error)

var benchScenarios = []benchScenario{
	{"enqueue", "scheduling messages: one caller, many callers, batches", 50_000,
		func(ctx context.Context, o benchOptions, cfg bench.Config, _ benchDial) ([]bench.Result, error) {
			return one(bench.Enqueue(ctx, bench.EnqueueConfig{Config: cfg, Callers: o.callers, Calls: min(2000, cfg.Messages)}))
		}},
	{"deliver", "due messages, up to their acknowledgement", 50_000,
		func(ctx context.Context, _ benchOptions, cfg bench.Config, _ benchDial) ([]bench.Result, error) {
			return one(bench.Deliver(ctx, bench.DeliverConfig{Config: cfg}))
		}},
	{"trip", "cost of a message for the server up to its acknowledgement, at several rates", 0,
		func(ctx context.Context, o benchOptions, cfg bench.Config, _ benchDial) ([]bench.Result, error) {
			trip := bench.TripConfig{Config: cfg, Rates: o.rates}
			trip.Rounds = 1
			if o.changed("duration") {
				trip.Duration = o.duration
			}
			return one(bench.Trip(ctx, trip))
		}},
	{"lateness", "handler start after due time: at a steady rate, and all at once", 10_000,
		func(ctx context.Context, o benchOptions, cfg bench.Config, _ benchDial) ([]bench.Result, error) {
			once := cfg
			once.Rounds = 1
			steady, err := bench.Lateness(ctx, bench.LatenessConfig{Config: once, Rate: o.rate, Duration: o.duration})
			if err != nil {
				return nil, err
			}
			burst, err := bench.Burst(ctx, bench.BurstConfig{Config: cfg})
			return []bench.Result{steady, burst}, err
		}},
	{"idle", "requests and cost of bridges when nothing happens", 1,
		func(ctx context.Context, o benchOptions, cfg bench.Config, dial benchDial) ([]bench.Result, error) {
			cfg.Messages, cfg.Rounds = 1, 1
			return one(bench.Idle(ctx, bench.IdleConfig{Config: cfg, Queues: o.queues, Bridges: o.bridges,
				Duration: o.duration, Dial: dial}))
		}},
	{"memory", "bytes of a message in each state, and after its end", 50_000,
		func(ctx context.Context, _ benchOptions, cfg bench.Config, _ benchDial) ([]bench.Result, error) {
			cfg.Rounds = 1
			return one(bench.Memory(ctx, bench.MemoryConfig{Config: cfg}))
		}},
	{"retry", "failed deliveries: scheduled again, at last dead-lettered", 10_000,
		func(ctx context.Context, _ benchOptions, cfg bench.Config, _ benchDial) ([]bench.Result, error) {
			return one(bench.Retry(ctx, bench.RetryConfig{Config: cfg}))
		}},
}

func one(r bench.Result, err error) ([]bench.Result, error) { return []bench.Result{r}, err }

func benchNames() (names []string) {
	for _, s := range benchScenarios {
		names = append(names, s.name)
	}
	return names
}

// Bench returns the command bench.
func Bench(a *cli.App) *cobra.Command {
	var o benchOptions
	var about strings.Builder
	for _, s := range benchScenarios {
		fmt.Fprintf(&about, "  %-9s %s\n", s.name, s.about)
	}
	cmd := &cobra.Command{
		Use:   "bench [<scenario>...]",
		Short: "Measure duestream on this server, beside plain commands",
		Long: `Measures duestream on this server, network and machine. Without arguments it runs all
scenarios, in about two minutes:

` + about.String() + `
A figure is shown beside its floor: the same work by plain Redis commands, or by calls of
duestream's scripts alone, on the same server in the same run. Floor and figure take
turns. The command prints the median of the rounds of each, and of their ratio.

The command works under the prefix ` + benchPrefix + `, or the prefix of --prefix.
DUESTREAM_PREFIX does not count. It refuses a prefix that holds keys, and removes its
keys at the end, also after an interrupt. It loads the server as much as it can: do not
use a server that others need.`,
		Example: `  duestream bench
  duestream bench enqueue deliver --backlog 1000000
  duestream bench lateness --rate 20000 --duration 15s --json`,
		ValidArgs: benchNames(),
	}
	o.changed = cmd.Flags().Changed
	f := cmd.Flags()
	f.IntVar(&o.messages, "messages", 0,
		"messages of a round; default by scenario: 50,000, or 10,000 for lateness (all at once) and retry")
	f.IntVar(&o.payload, "payload", 256, "size of each message in bytes")
	f.IntSliceVar(&o.callers, "callers", []int{64, 256}, "callers that schedule at the same time (enqueue)")
	f.IntVar(&o.rate, "rate", 10_000, "messages due a second (lateness)")
	f.IntSliceVar(&o.rates, "rates", []int{1, 10, 100, 1000, 10_000}, "messages a second (trip)")
	flags.DurationVar(f, &o.duration, "duration", 5*time.Second,
		"length of the measurement (lateness, idle), or of each rate (trip: default 3s)")
	f.IntVar(&o.backlog, "backlog", 0, "messages that stay scheduled during the measurement")
	f.IntVar(&o.rounds, "rounds", 3, "how many times floor and figure take turns")
	f.IntVar(&o.queues, "queues", 1000, "queues (idle)")
	f.IntVar(&o.bridges, "bridges", 4, "bridges (idle)")
	f.BoolVar(&o.force, "force", false,
		"also measure under a prefix that holds keys; the keys stay, and bridges of that prefix take part")
	a.JSONFlag(cmd)
	return a.WithRun(cmd, o.check, func(ctx context.Context, names []string) error { return runBench(ctx, a, o, names) })
}

// check refuses values outside their limits and unknown scenarios. The error names all of them.
func (o *benchOptions) check(names []string) error {
	var errs []error
	for _, name := range names {
		if !slices.Contains(benchNames(), name) {
			errs = append(errs, usage.Errorf("scenario %q: must be one of %s", name, strings.Join(benchNames(), ", ")))
		}
	}
	if o.changed("messages") {
		errs = append(errs, bench.Check("messages", o.messages))
	}
	return errors.Join(append(errs, bench.Check("payload", o.payload), bench.Check("callers", o.callers...),
		bench.Check("rate", o.rate), bench.Check("rates", o.rates...),
		bench.CheckDuration(o.duration), bench.Check("backlog", o.backlog), bench.Check("rounds", o.rounds),
		bench.Check("queues", o.queues), bench.Check("bridges", o.bridges))...)
}

func runBench(ctx context.Context, a *cli.App, o benchOptions, names []string) (err error) {
	if !o.changed("prefix") {
		a.Prefix = benchPrefix
	}
	r, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	report, err := describeServer(ctx, a, r)
	if err != nil {
		return err
	}
	progress := term.NewProgress(a.Err, "")
	defer progress.Clear()
	claim, err := bench.Take(ctx, r, a.Prefix, o.force, func(keys, total int) {
		progress.Step("looking for keys of the prefix", keys, total)
	})
	if errors.Is(err, bench.ErrOccupied) {
		return fmt.Errorf("%w: choose another --prefix, or measure beside these keys with --force", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, claim.Release(ctx)) }()
	progress.Clear()
	report.print(a.Text())
	run := randomName()
	for _, s := range benchScenarios {
		if len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		cfg := bench.Config{
			Redis: r, Prefix: a.Prefix, Queue: s.name + "-" + run, Messages: s.messages, Payload: o.payload,
			Backlog: o.backlog, Rounds: o.rounds,
			Progress: func(step string, done, total int) { progress.Step(s.name+": "+step, done, total) },
		}
		if o.changed("messages") {
			cfg.Messages = o.messages
		}
		if o.payload == 0 {
			cfg.Payload = -1 // an empty payload; 0 would mean the default of the scenario
		}
		dial := func(ctx context.Context, options ...func(*rueidis.ClientOption)) (*bridge.Redis, error) {
			return bridge.Dial(ctx, a.RedisURL, append(options, a.Passwords, cli.FailFast)...)
		}
		results, err := s.run(ctx, o, cfg, dial)
		progress.Clear()
		if err != nil {
			return err
		}
		report.Results = append(report.Results, results...)
		printResults(a.Text(), results)
	}
	return a.Print(report, func() {})
}
