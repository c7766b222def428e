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

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// trial is one run of a case: a queue, the programs started on it, and their output.
type trial struct {
	*rig
	ctx   context.Context
	cfg   *Config
	queue string
	group string
	notes []string
	dead  func() bool        // stops killing the programs when ctx ends
	read  map[string][]entry // entries that kept has read, by stream
	watch *watcher

	mu       sync.Mutex
	programs []*program
	taps     []*tap
	log      []begun
	answers  []answer
}

func newTrial(ctx context.Context, cfg *Config, on *rig, c Case) *trial {
	t := &trial{
		rig: on, ctx: ctx, cfg: cfg, queue: c.Name + "-" + strconv.FormatUint(uint64(rand.Uint32()), 36), group: "workers",
		watch: newWatcher(cfg.Kind, c.Level, on.prefix),
	}
	t.dead = context.AfterFunc(ctx, t.killAll) // this also ends a write to a program that does not read
	return t
}

// end stops all programs. Every case watches the same rules; end returns the first broken one.
func (t *trial) end() error {
	t.dead()
	t.killAll()
	for _, tap := range t.allTaps() {
		tap.end()
	}
	t.watch.stalls.end()
	return t.watch.final()
}

// launched starts a program on the queue, behind a tap if possible. take gets its lines. The caller holds t.mu.
func (t *trial) launched(name string, environment []string, stdin bool, take func(line []byte) error) *program {
	check(t.ctx.Err())
	at := t.url
	if t.untapped == "" {
		asked := func(s *sent) {
			s.program = name
			t.watch.asked(s)
		}
		tap, err := newTap(func(ctx context.Context) (net.Conn, error) { return dialServer(ctx, t.opt) }, asked, t.watch.told)
		check(err)
		t.taps = append(t.taps, tap)
		at, err = withAddress(t.url, tap.addr)
		check(err)
	}
	environment = append(environment, "DUESTREAM_REDIS_URL="+at, "DUESTREAM_PREFIX="+t.prefix, "QUEUE="+t.queue)
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

// pause waits for gap.
func (t *trial) pause(gap time.Duration) { check(t.sleep(gap)) }

// lookOn waits until a time, and fails if a program is in trouble.
func (t *trial) lookOn(end time.Time) {
	for time.Now().Before(end) {
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

// keys returns the keys of a partition.
func (t *trial) keys(partition int) lua.Keys {
	return lua.NewKeys(t.prefix, lua.PartitionName(t.queue, partition))
}

// do sends a command. words are its name and the arguments before the key.
func (t *trial) do(words, key string, args ...string) rueidis.RedisResult {
	return t.doWithin(5*time.Second, words, key, args...)
}

func (t *trial) doWithin(limit time.Duration, words, key string, args ...string) rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(t.ctx, limit)
	defer cancel()
	return t.redis.Client.Do(ctx, t.redis.Client.B().Arbitrary(strings.Fields(words)...).Keys(key).Args(args...).Build())
}

// number returns an integer reply. No reply, as for a missing key, is 0.
func (t *trial) number(words, key string, args ...string) int {
	n, err := t.do(words, key, args...).AsInt64()
	if !rueidis.IsRedisNil(err) {
		couldNot(words, err)
	}
	return int(n)
}

// text returns a string reply; ok is false if there is none.
func (t *trial) text(words, key string, args ...string) (text string, ok bool) {
	text, err := t.do(words, key, args...).ToString()
	if rueidis.IsRedisNil(err) {
		return "", false
	}
	couldNot(words, err)
	return text, true
}

// mustDo sends a command whose reply is not needed.
func (t *trial) mustDo(words, key string, args ...string) {
	couldNot(words, t.do(words, key, args...).Error())
}

// couldNot ends the case if the kit itself failed to do something.
func couldNot(what string, err error) {
	if err != nil {
		check(&ownError{lua.Classify(what, err)})
	}
}

// now returns the time by the server's clock.
func (t *trial) now() time.Time {
	ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
	defer cancel()
	now, err := view.ServerTime(ctx, t.redis.Client)
	couldNot("TIME", err)
	return now
}

// register makes the queue known to the bridge.
func (t *trial) register() {
	_, err := lua.Register(t.ctx, t.redis.Client, lua.NewGlobals(t.prefix), []string{t.queue})
	couldNot("register the queue", err)
}

// policy sets settings of the queue. Names and values alternate.
func (t *trial) policy(settings ...string) { t.mustDo("HSET", t.keys(0).Policy, settings...) }

// createGroup creates a group on partition 0.
func (t *trial) createGroup(group string) {
	_, err := lua.EnsureGroup(t.ctx, t.redis.Client, t.keys(0), group)
	couldNot("create group "+group, err)
}

// entry is an entry of a stream.
type entry struct {
	ID     string
	Fields map[string]string
}

// ready returns the time at which the entry was added.
func (e entry) ready() time.Time { return lua.EntryTime(e.ID) }

// entries returns all entries of a stream.
func (t *trial) entries(stream string) []entry { return t.entriesFrom(stream, "-") }

func (t *trial) entriesFrom(stream, from string) []entry {
	reply, err := t.do("XRANGE", stream, from, "+").AsXRange()
	couldNot("XRANGE", err)
	all := make([]entry, len(reply))
	for i, e := range reply {
		all[i] = entry{e.ID, e.FieldValues}
	}
	return all
}

// kept returns all entries of a stream that only grows. It reads each entry once.
func (t *trial) kept(stream string) []entry {
	if t.read == nil {
		t.read = map[string][]entry{}
	}
	from := "-"
	if known := t.read[stream]; len(known) > 0 {
		from = "(" + known[len(known)-1].ID
	}
	t.read[stream] = append(t.read[stream], t.entriesFrom(stream, from)...)
	return t.read[stream]
}

// awaitEntry waits until list returns an entry that meant accepts, and returns that entry. missing is the failure
// text.
func (t *trial) awaitEntry(limit time.Duration, missing string, list func() []entry, meant func(entry) bool) (found entry) {
	t.await(limit, func() string {
		all := list()
		i := slices.IndexFunc(all, meant)
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
	return t.awaitEntry(limit, fmt.Sprintf("there is no dead letter of %s", id), func() []entry {
		return t.entries(t.keys(0).Dead)
	},
		func(e entry) bool { return e.Fields[lua.FieldID] == id })
}
