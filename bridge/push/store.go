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
	"github.com/duestream/duestream/stream"
)

// ErrNoTarget: the group of the queue has no target.
var ErrNoTarget = errors.New("the group has no target")

// ErrOneKey: the target has no old key to drop.
var ErrOneKey = errors.New("the target has one key alone")

// Store reads and writes the targets of a prefix, in a Redis hash for each queue. It is safe for concurrent use. The
// hashes hold the signing keys: a reader of them can sign requests.
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

// Change is the result of Set.
type Change struct {
	Added, Changed bool   // neither: it was there as it is
	Key            string // that was made, because none was given and there was none
}

// State is a stored target without its secrets: Keys is nil, the values of Headers are empty, and the URL has no query.
type State struct {
	Target
	KeyCount int
	Problem  string // why nothing is posted to it: it is wrong
}

// Set adds a target, or replaces the one of its queue and group. Without Keys a target keeps the keys that it has, or
// gets a new one, which is in Change.Key. Change also holds the key if an error leaves open whether it was stored.
// Set registers the queue and creates the group, which gets every message from then on. ErrInvalid. About eight round
// trips; harmless to repeat.
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
		ours := known && made != "" && err == nil && slices.Contains(old.Keys, made) // written, but the reply was lost
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

// Rotate gives a target a new signing key and returns it; "" generates one. Until DropOldKey or the next Rotate,
// requests are also signed with the key that was the newest before, so that the partner can change over. It also
// returns the key if an error leaves open whether it was stored. ErrNoTarget, ErrInvalid.
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

// DropOldKey removes a target's old key: requests are then signed with the newest key only. ErrNoTarget, ErrOneKey.
func (s *Store) DropOldKey(ctx context.Context, queue, group string) error {
	again := false // after a lost reply the key may already be dropped
	return s.editKeys(ctx, queue, group, func(keys []string) ([]string, error) {
		if len(keys) == 1 && !again {
			return nil, ErrOneKey
		}
		again = true
		return keys[:1], nil
	})
}

// lostReply reports whether a call that returned err may have written all the same.
func lostReply(err error) bool { return lua.Temporary(err) && lua.Ambiguous(err) && !lua.Unsent(err) }

// editPause is the pause before an edit is repeated after a lost reply.
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

// Remove removes a target. Posting to it ends within seconds. The group stays, and messages still wait for it.
// ErrNoTarget.
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

// List returns the targets of a queue, in the order of their groups, without their secrets. One round trip.
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

// edit replaces the stored text of a target by the text that edit returns. If another client changes the target
// meanwhile, edit is called again with the new text.
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
			continue // every edit may run twice
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
