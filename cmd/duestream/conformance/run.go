package conformance

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
)

// Config says what to run, and on what.
type Config struct {
	Kind    Kind
	Level   Level // asked for
	Command []string
	Cases   []Case // of Cases or Select
	Partial bool   // these are not all cases of the level

	// URL is that of a server that somebody else runs; "" = start one for the run, and one for each case that needs its own.
	URL           string
	ServerProgram string // path of redis-server or valkey-server; "" = the one on the PATH
	Prefix        string // beginning of the prefix of all keys

	// Visibility is the visibility timeout of the queues; cases last some of it. When it is too low, a good worker on a busy
	// machine loses what it holds.
	Visibility time.Duration
	Patience   time.Duration // how long the kit waits for what must happen, beside work and visibility timeouts
	Parallel   int           // cases at a time

	Stderr io.Writer           // gets what the programs write there; nil = discard
	Done   func(Result)        // told each case as it ends, one at a time; nil = nobody is
	Step   func(done, all int) // told when a case begins or ends, one at a time; nil = nobody is
}

// Defaults of Config, and its limits.
const (
	DefaultPrefix     = "conformance"
	DefaultVisibility = 2 * time.Second
	DefaultPatience   = 30 * time.Second
	DefaultParallel   = 4

	MinVisibility = 500 * time.Millisecond
	MaxVisibility = time.Minute
)

const casePatience = 4 // how many times the patience a case may take as a whole

// patience is how long to wait for what must happen: the longest work takes three visibility timeouts.
func (c *Config) patience() time.Duration { return c.Patience + 4*c.Visibility }

// policy has short delays, so that retries come soon.
func (c *Config) policy() bridge.Policy {
	return bridge.Policy{VisibilityTimeout: c.Visibility, MaxAttempts: 10, RetryMin: 50 * time.Millisecond,
		RetryMax: 100 * time.Millisecond}
}

// Run runs the cases. The error says that the kit could not do its work, or was interrupted; what the program did wrong is in the
// report. Nothing of it is left when Run returns: no key, no process.
func Run(ctx context.Context, cfg Config) (report *Report, err error) {
	shared, err := newRig(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, shared.end()) }()
	report = &Report{
		Kind: cfg.Kind, Command: cfg.Command, Protocol: Version, Server: shared.info,
		Date:      time.Now().UTC().Truncate(time.Second),
		Unwatched: shared.untapped, Asked: cfg.Level, Partial: cfg.Partial, Cases: make([]Result, len(cfg.Cases)),
	}
	var running sync.WaitGroup
	var told sync.Mutex
	free := make(chan struct{}, max(1, cfg.Parallel))
	done := 0
	for _, i := range beginning(cfg.Cases) {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-free }()
			result := try(ctx, &cfg, shared, cfg.Cases[i])
			told.Lock()
			defer told.Unlock()
			report.Cases[i] = result
			done++
			if ctx.Err() == nil && cfg.Done != nil {
				cfg.Done(result)
			}
			if cfg.Step != nil {
				cfg.Step(done, len(cfg.Cases))
			}
		})
	}
	running.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	report.judge()
	return report, nil
}

// try runs one case.
func try(ctx context.Context, cfg *Config, shared *rig, c Case) (result Result) {
	began := time.Now()
	result = Result{Case: c, State: NotTried}
	if result.Seen = cannotTry(cfg, shared, c); result.Seen != "" {
		return result
	}
	on, err := rigFor(ctx, cfg, shared, c)
	if err != nil {
		result.State, result.Seen = Failed, "could not be judged: "+err.Error()
		return result
	}
	if on != shared {
		defer func() {
			err := on.end()
			if err != nil && on.server == nil && result.State == Passed { // what a server leaves is in a temporary directory
				result.State, result.Seen = Failed, err.Error()
			}
		}()
	}
	ctx, cancel := context.WithTimeout(ctx, casePatience*cfg.patience())
	defer cancel()
	t := newTrial(ctx, cfg, on, c)
	err = attempt(func() { c.run(t) })
	broke := t.end()
	if misprint := t.misprint(); misprint != nil {
		broke = misprint
	}
	if broke != nil && !errors.As(err, new(*notTried)) {
		err = broke // the first cause explains best what else was seen
	}
	result.Notes, result.Millis = t.notes, time.Since(began).Milliseconds()
	var untried *notTried
	switch {
	case err == nil:
		result.State = Passed
	case errors.As(err, &untried):
		result.Seen = untried.why
	default:
		result.State, result.Seen, result.Stderr = Failed, err.Error(), t.stderr()
		if rule := (*broken)(nil); errors.As(err, &rule) {
			result.Broke, result.Rule, result.Section = rule.Name, rule.Rule.Rule, rule.Section
		}
	}
	return result
}

// cannotTry says why a case cannot be tried on the server of the run; "" = it can.
func cannotTry(cfg *Config, shared *rig, c Case) string {
	switch {
	case c.tapped && shared.untapped != "":
		return "it takes the network away from the program, for which the kit has to stand between it and the server: " +
			shared.untapped
	case c.alone != "" && cfg.URL != "":
		return c.alone + ", which needs a server of the kit's own: without --redis it starts one"
	}
	return ""
}

// rigFor returns the rig of a case: one of its own, or that of the run.
func rigFor(ctx context.Context, cfg *Config, shared *rig, c Case) (*rig, error) {
	switch {
	case c.alone != "":
		return newRig(ctx, cfg)
	case c.unhurried:
		calm := *cfg
		calm.URL, calm.Visibility = shared.url, unhurried
		return newRig(ctx, &calm)
	}
	return shared, nil
}
