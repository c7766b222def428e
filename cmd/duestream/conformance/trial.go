package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

// trial is one run of a case: the programs started on a queue, and the queue itself.
type trial struct {
	store
	cfg        *Config
	notes      []string
	cancelKill func() bool // after this call, the end of ctx does not kill the programs
	watch      *watcher

	mu       sync.Mutex
	programs []*program
	taps     []*tap
}

// workerTrial is the trial of a worker.
type workerTrial struct {
	*trial
	log []begun // output of all workers; guarded by mu
}

// producerTrial is the trial of a producer.
type producerTrial struct {
	*trial
	answers []answer // output of the producer; guarded by mu
}

// newTrial returns a trial of a case, on a new queue of a rig.
func newTrial(ctx context.Context, cfg *Config, on *rig, c Case) *trial {
	queue := c.Name + "-" + strconv.FormatUint(uint64(rand.Uint32()), 36)
	t := &trial{
		store: store{rig: on, ctx: ctx, queue: queue, group: "workers"},
		cfg:   cfg,
		watch: newWatcher(cfg.Kind, c.Level, on.prefix),
	}
	t.cancelKill = context.AfterFunc(ctx, t.killAll) // this also ends a write to a program that does not read
	return t
}

// run runs the steps of a case, and returns the error that ended them.
func (t *trial) run(c Case) error {
	return attempt(func() {
		if c.worker != nil {
			c.worker(&workerTrial{trial: t})
		} else {
			c.producer(&producerTrial{trial: t})
		}
	})
}

// end stops all programs. Every case watches the same rules; end returns the first broken one.
func (t *trial) end() error {
	t.cancelKill()
	t.killAll()
	for _, tap := range t.allTaps() {
		tap.end()
	}
	return t.watch.verdict()
}

// start starts a program on the queue, behind a tap if possible. take gets its lines. The caller holds t.mu.
func (t *trial) start(name string, environment []string, stdin bool, take func(line []byte) error) *program {
	check(t.ctx.Err())
	serverURL := t.url
	if t.untapped == "" {
		onCommand := func(s *sent) {
			s.program = name
			t.watch.sawCommand(s)
		}
		dial := func(ctx context.Context) (net.Conn, error) { return dialServer(ctx, t.opt) }
		tap, err := newTap(dial, onCommand, t.watch.sawReply)
		check(err)
		t.taps = append(t.taps, tap)
		serverURL, err = withAddress(t.url, tap.addr)
		check(err)
	}
	environment = append(environment, "DUESTREAM_REDIS_URL="+serverURL, "DUESTREAM_PREFIX="+t.prefix, "QUEUE="+t.queue)
	p, err := launch(t.cfg, name, environment, stdin, take)
	check(err)
	t.programs = append(t.programs, p)
	return p
}

func (t *trial) allTaps() []*tap {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.taps)
}

// killAll kills all programs. Their output is complete when it returns.
func (t *trial) killAll() {
	t.mu.Lock()
	programs := slices.Clone(t.programs)
	t.mu.Unlock()
	for _, p := range programs {
		p.kill()
	}
}

// note adds a remark about allowed behaviour to the result of the case.
func (t *trial) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// stderr returns the last lines of each program.
func (t *trial) stderr() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []string
	for _, p := range t.programs {
		if text := p.last.String(); text != "" {
			all = append(all, text)
		}
	}
	return strings.Join(all, "\n")
}

// Interval between two looks: it grows from the first value to the second.
const (
	lookFirst = 5 * time.Millisecond
	lookEvery = 50 * time.Millisecond
)

// await waits until look returns "". It fails with the last text of look after limit (0: the patience of the kit), or
// when a program is in trouble. A look that fails because the server is away is repeated.
func (t *trial) await(limit time.Duration, look func() (missing string)) {
	if limit == 0 {
		limit = t.cfg.patience()
	}
	deadline := time.Now().Add(limit)
	for gap := lookFirst; ; gap = min(gap*3/2, lookEvery) {
		var missing string
		err := attempt(func() { missing = look() })
		if own := (*ownError)(nil); errors.As(err, &own) && lua.Temporary(err) {
			missing, err = err.Error(), nil
		}
		if check(err); missing == "" {
			return
		}
		check(t.trouble())
		if time.Now().After(deadline) {
			failf("not within %s: %s", limit, missing)
		}
		if t.sleep(gap) != nil {
			failf("not within %s: %s", casePatience*t.cfg.patience(), missing)
		}
	}
}

// sleep waits for gap. It returns an error if the time of the case is over.
func (t *trial) sleep(gap time.Duration) error {
	timer := time.NewTimer(gap)
	defer timer.Stop()
	select {
	case <-t.ctx.Done():
		return t.ctx.Err()
	case <-timer.C:
		return nil
	}
}

// pause waits for gap, and ends the case if its time is over.
func (t *trial) pause(gap time.Duration) { check(t.sleep(gap)) }

// lookOn calls look again and again until a time. It ends the case if a program is in trouble.
func (t *trial) lookOn(end time.Time, look func()) {
	for time.Now().Before(end) {
		look()
		t.pause(lookEvery)
		check(t.trouble())
	}
}

// trouble returns the first fault of the programs or of their commands.
func (t *trial) trouble() error {
	if err := t.misprint(); err != nil {
		return err
	}
	if err := t.watch.verdict(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.programs {
		if err := p.ended(); err != nil {
			return err
		}
	}
	return nil
}

// misprint returns the first output line that does not parse. It explains other failures, because its message counts
// as never begun.
func (t *trial) misprint() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.programs {
		if err := p.misprint(); err != nil {
			return err
		}
	}
	return nil
}

// awaitEntry waits until list returns an entry that isWanted accepts, and returns that entry. missing is the failure
// text.
func (t *trial) awaitEntry(
	limit time.Duration, missing string, list func() []entry, isWanted func(entry) bool,
) (found entry) {
	t.await(limit, func() string {
		all := list()
		i := slices.IndexFunc(all, isWanted)
		if i < 0 {
			return missing
		}
		found = all[i]
		return ""
	})
	return found
}

// letter waits for the dead letter of a message, at most for limit.
func (t *trial) letter(id string, limit time.Duration) entry {
	letters := func() []entry { return t.entries(t.keys(0).Dead) }
	isWanted := func(e entry) bool { return e.Fields[lua.FieldID] == id }
	return t.awaitEntry(limit, "there is no dead letter of "+id, letters, isWanted)
}
