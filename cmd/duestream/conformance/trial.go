package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	dead  func() bool // releases what watches ctx

	mu       sync.Mutex
	programs []*program
	log      []begun
	answers  []answer
}

func newTrial(ctx context.Context, cfg *Config, on *rig, c Case) *trial {
	t := &trial{rig: on, ctx: ctx, cfg: cfg, queue: c.Name + "-" + strconv.FormatUint(uint64(rand.Uint32()), 36), group: "workers"}
	t.dead = context.AfterFunc(ctx, t.killAll) // what waits for a program that does not read ends, too
	return t
}

func (t *trial) end() {
	t.dead()
	t.killAll()
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

const lookEvery = 10 * time.Millisecond

// await waits until look returns "", at most for limit (0: the kit's patience), and fails with what it returned last, or when a program
// is in trouble.
func (t *trial) await(limit time.Duration, look func() (missing string, err error)) error {
	if limit == 0 {
		limit = t.cfg.Patience
	}
	deadline := time.Now().Add(limit)
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	for {
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
		select {
		case <-t.ctx.Done():
			return failf("not within %s: %s", 4*t.cfg.Patience, missing)
		case <-again.C:
		}
	}
}

func (t *trial) trouble() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.programs {
		if err := p.trouble(); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) environment() []string {
	return []string{"DUESTREAM_REDIS_URL=" + t.url, "DUESTREAM_PREFIX=" + t.prefix, "QUEUE=" + t.queue}
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
func (t *trial) entries(stream string) ([]entry, error) {
	reply, err := t.do("XRANGE", stream, "-", "+").AsXRange()
	if err != nil {
		return nil, couldNot("XRANGE", err)
	}
	all := make([]entry, len(reply))
	for i, e := range reply {
		all[i] = entry{e.ID, e.FieldValues}
	}
	return all, nil
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
