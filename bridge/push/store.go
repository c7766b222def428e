package push

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler"
	"github.com/duestream/duestream/stream"
)

// ErrNoTarget: the group of the queue has no target.
var ErrNoTarget = errors.New("the group has no target")

// ErrOneKey: the old key was to be dropped, and there is none.
var ErrOneKey = errors.New("the target has one key alone")

// Store holds the targets of a prefix, in a hash for each queue. It is safe for concurrent use. Whoever may read it may sign.
type Store struct {
	client rueidis.Client
	prefix string
}

// NewStore returns a Store. Redis is not touched.
func NewStore(client rueidis.Client, prefix string) *Store {
	if prefix == "" {
		prefix = lua.DefaultPrefix
	}
	return &Store{client, prefix}
}

// Change is what Set did.
type Change struct {
	Added, Changed bool   // neither: it was there as it is
	Key            string // that was made, because none was given and there was none
}

// State is a target as a Store holds it, without what is secret: Keys is nil, and the values of Headers are empty.
type State struct {
	Target
	KeyCount int
	Problem  string // why nothing is posted to it: it is wrong
}

// Set writes a target, or changes the one of its queue and group. Without keys the target keeps those that it has, or gets a new
// one, which Change holds, also with an error that leaves open whether it is in force. The queue is registered, and the group
// created: from then on it gets every message. ErrInvalid. About eight round trips; harmless to repeat.
func (s *Store) Set(ctx context.Context, t Target) (c Change, err error) {
	if len(t.Keys) == 0 {
		t.Keys = []string{NewKey()}
		c.Key = t.Keys[0]
	}
	if err := t.Check(); err != nil {
		return Change{}, err
	}
	if _, err := lua.Register(ctx, s.client, lua.NewGlobals(s.prefix), []string{t.Queue}); err != nil {
		return Change{}, s.failed("write", t.Queue, t.Group, err)
	}
	if _, err := stream.EnsureGroup(ctx, s.client, s.prefix, t.Queue, t.Group); err != nil {
		return Change{}, s.failed("write", t.Queue, t.Group, err)
	}
	made, changed := c.Key, false
	err = s.edit(ctx, t.Queue, t.Group, func(before string, known bool, others int64) (string, error) {
		old, err := parseTarget(t.Queue, t.Group, before)
		ours := known && made != "" && err == nil && slices.Contains(old.Keys, made) // it was written, and we were not told
		c = Change{Added: !known || ours, Key: made}
		if known && made != "" && err == nil && !ours {
			t.Keys, c.Key = old.Keys, ""
		} else if made != "" {
			t.Keys = []string{made}
		}
		if !known && others >= MaxTargets {
			return "", lua.Invalid("targets", fmt.Sprint(others+1), "must be at most %d for a queue", MaxTargets)
		}
		text := t.WithDefaults().text()
		changed = changed || known && !ours && text != before // also by a call whose reply was lost
		c.Changed = changed
		return text, nil
	})
	if err != nil && !lostReply(err) {
		return Change{}, err
	}
	return c, err
}

// Rotate gives a target a new signing key, which signs beside the one that was newest until then; "" makes one. Whoever verifies
// takes the new one up, and DropOldKey ends it. ErrNoTarget, ErrInvalid. It returns the new key, also with an error that leaves
// open whether it is in force.
func (s *Store) Rotate(ctx context.Context, queue, group, key string) (string, error) {
	if key == "" {
		key = NewKey()
	}
	if err := CheckKey(key); err != nil {
		return "", err
	}
	return key, s.editKeys(ctx, queue, group, func(keys []string) ([]string, error) {
		if keys[0] == key { // repeated after an error
			return keys, nil
		}
		return []string{key, keys[0]}, nil
	})
}

// DropOldKey has a target sign with its newest key alone. ErrNoTarget, ErrOneKey.
func (s *Store) DropOldKey(ctx context.Context, queue, group string) error {
	again := false // after a reply that was lost it may be done already
	return s.editKeys(ctx, queue, group, func(keys []string) ([]string, error) {
		if len(keys) == 1 && !again {
			return nil, ErrOneKey
		}
		again = true
		return keys[:1], nil
	})
}

// lostReply says whether something may have been written although there is an error.
func lostReply(err error) bool { return lua.Temporary(err) && lua.Ambiguous(err) && !lua.Unsent(err) }

// editPause is how long after an edit whose reply was lost it is made again.
const editPause = 100 * time.Millisecond

func (s *Store) editKeys(ctx context.Context, queue, group string, edit func([]string) ([]string, error)) error {
	return s.edit(ctx, queue, group, func(before string, known bool, _ int64) (string, error) {
		if !known {
			return "", ErrNoTarget
		}
		t, err := parseTarget(queue, group, before)
		if err != nil {
			return "", err
		}
		if t.Keys, err = edit(t.Keys); err != nil {
			return "", err
		}
		return t.text(), nil
	})
}

// Remove removes a target: nothing more is posted, within seconds. Its group stays, and keeps messages. ErrNoTarget.
func (s *Store) Remove(ctx context.Context, queue, group string) error {
	if err := errors.Join(lua.CheckQueue(queue), lua.CheckGroup(group)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	key := s.key(queue)
	n, err := s.client.Do(ctx, s.client.B().Hdel().Key(key).Field(group).Build()).AsInt64()
	if err = lua.Classify("HDEL "+key, err); err == nil && n == 0 {
		err = ErrNoTarget
	}
	return s.failed("remove", queue, group, err)
}

// List returns the targets of a queue by group, without what is secret. One round trip.
func (s *Store) List(ctx context.Context, queue string) ([]State, error) {
	if err := lua.CheckQueue(queue); err != nil {
		return nil, err
	}
	var texts map[string]string
	if err := view.Ask(ctx, s.client, s.ask(queue, &texts)); err != nil {
		return nil, fmt.Errorf("list the targets of %s: %w", queue, err)
	}
	var all []State
	for _, group := range slices.Sorted(maps.Keys(texts)) {
		t, err := parseTarget(queue, group, texts[group])
		state := State{Target: t, KeyCount: len(t.Keys)}
		state.Queue, state.Group, state.Keys = queue, group, nil
		if err != nil {
			state.Problem = err.Error()
		}
		state.Headers = make(map[string]string, len(t.Headers))
		for name := range t.Headers {
			state.Headers[name] = ""
		}
		state.URL = showURL(t.URL)
		all = append(all, state)
	}
	return all, nil
}

func (s *Store) key(queue string) string { return lua.NewKeys(s.prefix, queue).Push }

func (s *Store) ask(queue string, texts *map[string]string) view.Question {
	return view.Into(s.client.B().Hgetall().Key(s.key(queue)).Build(), texts, rueidis.RedisResult.AsStrMap)
}

// edit writes what edit makes of a target, if nobody else has changed it meanwhile, and else asks edit again.
func (s *Store) edit(ctx context.Context, queue, group string,
	edit func(before string, known bool, all int64) (string, error)) error {
	if err := errors.Join(lua.CheckQueue(queue), lua.CheckGroup(group)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*loop.CallTimeout)
	defer cancel()
	for {
		done, err := s.tryEdit(ctx, queue, group, edit)
		if lostReply(err) && loop.Sleep(ctx, editPause) {
			continue // each edit can be made again
		}
		if done || err != nil {
			return s.failed("write", queue, group, err)
		}
	}
}

func (s *Store) tryEdit(ctx context.Context, queue, group string,
	edit func(before string, known bool, all int64) (string, error)) (done bool, err error) {
	key := s.key(queue)
	before, err := s.client.Do(ctx, s.client.B().Hget().Key(key).Field(group).Build()).ToString()
	known := err == nil
	if err != nil && !rueidis.IsRedisNil(err) {
		return false, lua.Classify("HGET "+key, err)
	}
	all, err := s.client.Do(ctx, s.client.B().Hlen().Key(key).Build()).AsInt64()
	if err != nil {
		return false, lua.Classify("HLEN "+key, err)
	}
	text, err := edit(before, known, all)
	if err != nil {
		return false, err
	}
	return lua.SetTarget(ctx, s.client, lua.NewKeys(s.prefix, queue), group, before, text, MaxTargets)
}

func (s *Store) failed(what, queue, group string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s the target of %s/%s: %w", what, queue, group, err)
}

// all returns the targets of all registered queues, as Redis holds them. Of queues that had none it asks whether they have some
// now, hundreds in one request; on a cluster, where that takes one for each queue, it sends them together.
func (s *Store) all(ctx context.Context, had map[string]bool) (map[place]string, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.PassTimeout)
	defer cancel()
	queues, err := scheduler.Queues(ctx, s.client, s.prefix)
	if err != nil {
		return nil, err
	}
	var have, others []string
	for _, queue := range queues {
		if had[queue] {
			have = append(have, queue)
		} else {
			others = append(others, queue)
		}
	}
	size := existsBatch
	if s.client.Mode() == rueidis.ClientModeCluster {
		size = 1
	}
	var batches [][]string
	for batch := range slices.Chunk(others, size) {
		batches = append(batches, batch)
	}
	for len(batches) > 0 { // of a batch with some the halves are asked, down to single queues
		counts := make([]int64, len(batches))
		questions := make([]view.Question, len(batches))
		for i, batch := range batches {
			keys := make([]string, len(batch))
			for k, queue := range batch {
				keys[k] = s.key(queue)
			}
			questions[i] = view.Number(s.client.B().Exists().Key(keys...).Build(), &counts[i])
		}
		if err := view.AskLong(ctx, s.client, questions...); err != nil {
			return nil, err
		}
		var next [][]string
		for i, batch := range batches {
			switch n := len(batch); {
			case counts[i] == 0:
			case counts[i] == int64(n):
				have = append(have, batch...)
			default:
				next = append(next, batch[:n/2], batch[n/2:])
			}
		}
		batches = next
	}
	return s.read(ctx, have)
}

const existsBatch = 500

// otherType stands for the targets of a queue whose key holds something else.
const otherType = "of another type"

// read returns the targets of queues. One queue whose key holds something else leaves the others alone.
func (s *Store) read(ctx context.Context, queues []string) (map[place]string, error) {
	texts := make([]map[string]string, len(queues))
	questions := make([][]view.Question, len(queues))
	for i, queue := range queues {
		questions[i] = []view.Question{s.ask(queue, &texts[i])}
	}
	found := map[place]string{}
	for i, err := range view.AskEach(ctx, s.client, questions...) {
		if errors.Is(err, lua.ErrWrongType) {
			found[place{queues[i], ""}] = otherType
			continue
		}
		if err != nil {
			return nil, err
		}
		for n, group := range slices.Sorted(maps.Keys(texts[i])) {
			if n < MaxTargets {
				found[place{queues[i], group}] = texts[i][group]
			}
		}
	}
	return found, nil
}
