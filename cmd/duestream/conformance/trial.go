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

	"github.com/duestream/duestream/lua"
)

// trial is one run of a case: a queue, the programs that were started on it, and what they said.
type trial struct {
	*rig
	ctx   context.Context
	cfg   *Config
	queue string
	group string
	notes []string
	dead  func() bool        // releases what watches ctx
	read  map[string][]entry // of streams that entries are only added to
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
	t.dead = context.AfterFunc(ctx, t.killAll) // what waits for a program that does not read ends, too
	return t
}

// end ends all programs, and returns which rule they broke that is watched in every case.
func (t *trial) end() error {
	t.dead()
	t.killAll()
	for _, tap := range t.allTaps() {
		tap.end()
	}
	t.watch.stalls.end()
	return t.watch.final()
}

// tapped gives a program to be started a tap, where it can have one, and returns the environment that names it.
func (t *trial) tapped(program string) (environment []string, err error) {
	at := t.url
	if t.untapped == "" {
		asked := func(s *sent) {
			s.program = program
			t.watch.asked(s)
		}
		tap, err := newTap(func(ctx context.Context) (net.Conn, error) { return dialServer(ctx, t.opt) }, asked, t.watch.told)
		if err != nil {
			return nil, err
		}
		t.taps = append(t.taps, tap)
		if at, err = withAddress(t.url, tap.addr); err != nil {
			return nil, err
		}
	}
	return []string{"DUESTREAM_REDIS_URL=" + at, "DUESTREAM_PREFIX=" + t.prefix, "QUEUE=" + t.queue}, nil
}

func (t *trial) allTaps() []*tap {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.taps)
}

// killAll kills all programs. What they said is complete then.
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

// failf says what a program did wrong.
func failf(format string, args ...any) error { return fmt.Errorf(format, args...) }

// notTried says why a case could not be tried.
type notTried struct{ why string }

func (e *notTried) Error() string { return e.why }

// Time between two looks: it grows from the first to the last.
const (
	lookFirst = 5 * time.Millisecond
	lookEvery = 50 * time.Millisecond
)

// await waits until look returns "", at most for limit (0: as long as the kit is patient), and fails with what it returned last, or when a program
// is in trouble.
func (t *trial) await(limit time.Duration, look func() (missing string, err error)) error {
	if limit == 0 {
		limit = t.cfg.patience()
	}
	deadline := time.Now().Add(limit)
	for gap := lookFirst; ; gap = min(gap*3/2, lookEvery) {
		missing, err := look()
		if own := (*ownError)(nil); errors.As(err, &own) && lua.Temporary(err) {
			missing, err = err.Error(), nil // the server is away, or our connection was
		}
		if err != nil || missing == "" {
			return err
		}
		if err := t.trouble(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return failf("not within %s: %s", limit, missing)
		}
		if t.pause(gap) != nil {
			return failf("not within %s: %s", casePatience*t.cfg.patience(), missing)
		}
	}
}

// pause waits for the moment between two looks.
func (t *trial) pause(gap time.Duration) error {
	timer := time.NewTimer(gap)
	defer timer.Stop()
	select {
	case <-t.ctx.Done():
		return t.ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (t *trial) trouble() error {
	if err := t.watch.verdict(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.programs {
		if err := p.trouble(); err != nil {
			return err
		}
	}
	return nil
}

// keys returns the keys of a partition.
func (t *trial) keys(partition int) lua.Keys {
	return lua.NewKeys(t.prefix, lua.PartitionName(t.queue, partition))
}

// do sends a command; words are its name and what comes before the key.
func (t *trial) do(words, key string, args ...string) rueidis.RedisResult {
	return t.doWithin(5*time.Second, words, key, args...)
}

func (t *trial) doWithin(limit time.Duration, words, key string, args ...string) rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(t.ctx, limit)
	defer cancel()
	return t.redis.Client.Do(ctx, t.redis.Client.B().Arbitrary(strings.Fields(words)...).Keys(key).Args(args...).Build())
}

// number asks for an integer; of a key that does not exist it is 0.
func (t *trial) number(words, key string, args ...string) (int, error) {
	n, err := t.do(words, key, args...).AsInt64()
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	if err != nil {
		return 0, couldNot(words, err)
	}
	return int(n), nil
}

// text asks for a string; ok is false when there is none.
func (t *trial) text(words, key string, args ...string) (text string, ok bool, err error) {
	text, err = t.do(words, key, args...).ToString()
	if rueidis.IsRedisNil(err) {
		return "", false, nil
	}
	return text, err == nil, couldNot(words, err)
}

// ownError is one of the kit itself.
type ownError struct{ err error }

func (e *ownError) Error() string { return "could not be judged: " + e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

func couldNot(what string, err error) error {
	if err == nil {
		return nil
	}
	return &ownError{lua.Classify(what, err)}
}

// now returns the time of the server.
func (t *trial) now() (time.Time, error) {
	ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
	defer cancel()
	clock, err := t.redis.Client.Do(ctx, t.redis.Client.B().Time().Build()).AsIntSlice()
	if err == nil && len(clock) != 2 {
		err = errors.New("unexpected reply")
	}
	if err != nil {
		return time.Time{}, couldNot("TIME", err)
	}
	return time.Unix(clock[0], clock[1]*1000), nil
}

// register makes the queue known to the bridge.
func (t *trial) register() error {
	_, err := lua.Register(t.ctx, t.redis.Client, lua.NewGlobals(t.prefix), []string{t.queue})
	return couldNot("register the queue", err)
}

// policy changes the settings of the queue. Name and value take turns.
func (t *trial) policy(settings ...string) error {
	return couldNot("HSET policy", t.do("HSET", t.keys(0).Policy, settings...).Error())
}

// createGroup creates a group on partition 0.
func (t *trial) createGroup(group string) error {
	_, err := lua.EnsureGroup(t.ctx, t.redis.Client, t.keys(0), group)
	return couldNot("create group "+group, err)
}

// entry is what the kit reads of a stream.
type entry struct {
	ID     string
	Fields map[string]string
}

// ready is when an entry was added.
func (e entry) ready() time.Time { return lua.EntryTime(e.ID) }

// entries returns what a stream holds.
func (t *trial) entries(stream string) ([]entry, error) { return t.entriesFrom(stream, "-") }

func (t *trial) entriesFrom(stream, from string) ([]entry, error) {
	reply, err := t.do("XRANGE", stream, from, "+").AsXRange()
	if err != nil {
		return nil, couldNot("XRANGE", err)
	}
	all := make([]entry, len(reply))
	for i, e := range reply {
		all[i] = entry{e.ID, e.FieldValues}
	}
	return all, nil
}

// kept returns what a stream holds that entries are only added to; each is read once.
func (t *trial) kept(stream string) ([]entry, error) {
	if t.read == nil {
		t.read = map[string][]entry{}
	}
	from := "-"
	if known := t.read[stream]; len(known) > 0 {
		from = "(" + known[len(known)-1].ID
	}
	added, err := t.entriesFrom(stream, from)
	t.read[stream] = append(t.read[stream], added...)
	return t.read[stream], err
}

// letter waits for the dead letter of a message, for so long.
func (t *trial) letter(id string, limit time.Duration) (letter entry, err error) {
	err = t.await(limit, func() (string, error) {
		letters, err := t.entries(t.keys(0).Dead)
		if i := slices.IndexFunc(letters, func(e entry) bool { return e.Fields[lua.FieldID] == id }); err == nil && i >= 0 {
			letter = letters[i]
			return "", nil
		}
		return fmt.Sprintf("there is no dead letter of %s", id), err
	})
	return letter, err
}
