package conformance

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge"
)

// Config configures a run: the program, the cases, and the server.
type Config struct {
	Kind    Kind
	Level   Level // the level asked for
	Command []string
	Cases   []Case // from Cases or Select
	Partial bool   // only some of the level's cases

	// URL is the server of the user. "" starts a server for the run, and one for each case that needs its own.
	URL           string
	ServerProgram string // path of redis-server or valkey-server; "" = the one on the PATH
	Prefix        string // the prefix of all keys begins with it

	// Visibility is the visibility timeout of the queues. A case lasts for several of them. If it is too low, a good
	// worker on a busy machine loses messages that it holds.
	Visibility time.Duration
	Patience   time.Duration // how long the kit waits for an event, beyond the time for work and visibility timeouts
	Parallel   int           // number of concurrent cases

	Stderr io.Writer           // receives the programs' standard error; nil = discard
	Done   func(Result)        // called with each finished case, one at a time; nil = nothing
	Step   func(done, all int) // called after each finished case, one at a time; nil = nothing
}

// Defaults and limits of Config.
const (
	DefaultPrefix     = "conformance"
	DefaultVisibility = 2 * time.Second
	DefaultPatience   = 30 * time.Second
	DefaultParallel   = 4

	MinVisibility = 500 * time.Millisecond
	MaxVisibility = time.Minute
)

const casePatience = 4 // a case lasts at most casePatience times patience()

// patience returns how long to wait for an event. The longest work takes three visibility timeouts; one more is a
// reserve.
func (c *Config) patience() time.Duration { return c.Patience + 4*c.Visibility }

// policy has short retry delays, so that retries come soon.
func (c *Config) policy() bridge.Policy {
	return bridge.Policy{VisibilityTimeout: c.Visibility, MaxAttempts: 10, RetryMin: 50 * time.Millisecond,
		RetryMax: 100 * time.Millisecond}
}

// Run runs the cases. An error means that the kit could not work, or was interrupted; faults of the program are in
// the report. No key and no process of the run is left when Run returns.
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
	var reporting sync.Mutex
	slots := make(chan struct{}, max(1, cfg.Parallel))
	done := 0
	for _, i := range startOrder(cfg.Cases) {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			result := try(ctx, &cfg, shared, cfg.Cases[i])
			reporting.Lock()
			defer reporting.Unlock()
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

// try runs one case, on the shared rig of the run or on a rig of its own.
func try(ctx context.Context, cfg *Config, shared *rig, c Case) (result Result) {
	began := time.Now()
	result = Result{Case: c, State: NotTried}
	if result.Seen = cannotTry(cfg, shared, c); result.Seen != "" {
		return result
	}
	caseRig, err := rigFor(ctx, cfg, shared, c)
	if err != nil {
		result.State, result.Seen = Failed, "could not be judged: "+err.Error()
		return result
	}
	if caseRig != shared {
		defer func() {
			err := caseRig.end()
			// A server of the case's own is deleted with its directory, so a failed clean-up there does not matter.
			if err != nil && caseRig.server == nil && result.State == Passed {
				result.State, result.Seen = Failed, err.Error()
			}
		}()
	}
	ctx, cancel := context.WithTimeout(ctx, casePatience*cfg.patience())
	defer cancel()
	t := newTrial(ctx, cfg, caseRig, c)
	err = t.run(c)
	// A rule that the program broke, or a line that does not parse, came before err and explains it best.
	cause := t.end()
	if misprint := t.misprint(); misprint != nil {
		cause = misprint
	}
	if cause != nil && !errors.As(err, new(*notTried)) {
		err = cause
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

// cannotTry returns the reason why a case cannot be tried on the server of the run, or "".
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

// rigFor returns the rig of a case: a new one, or the shared rig of the run.
func rigFor(ctx context.Context, cfg *Config, shared *rig, c Case) (*rig, error) {
	switch {
	case c.alone != "":
		return newRig(ctx, cfg)
	case c.unhurried:
		unhurriedConfig := *cfg
		unhurriedConfig.URL, unhurriedConfig.Visibility = shared.url, unhurried
		return newRig(ctx, &unhurriedConfig)
	}
	return shared, nil
}
