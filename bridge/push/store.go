package push

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
var ErrOneKey = errors.New("the target has only one key")

// ErrChanged: another client added, changed or removed the target in between. Nothing was written.
var ErrChanged = errors.New("the target was changed by somebody else")

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
	Added, Changed bool   // both false: the same target was stored before
	Key            string // the signing key that Set made; "" = a key was given, or the target had one
}

// State is a stored target without its secrets: Keys is nil, the values of Headers are empty, and the URL has no query.
type State struct {
	Target
	KeyCount int
	Version  string // differs for two stored targets that differ, also in their secrets
	Problem  string // why the target is invalid, so that nothing is posted to it; "" = it is valid
}

// Set adds a target, or replaces the target of its queue and group. If t has no Keys, a stored target keeps its keys,
// and a new target gets a new key, which is in Change.Key. Change also holds the new key if an error leaves open
// whether the target was stored. Set registers the queue and creates the group, which gets every message from then on.
// ErrInvalid. About eight round trips; harmless to repeat.
func (s *Store) Set(ctx context.Context, t Target) (Change, error) { return s.set(ctx, t, anyVersion) }

// Replace is Set, but returns ErrChanged unless the stored target has this version; "" = there is no target.
func (s *Store) Replace(ctx context.Context, t Target, version string) (Change, error) {
	return s.set(ctx, t, version)
}

// anyVersion stands for whatever target is stored, or none.
const anyVersion = "*"

// versionOf returns the State.Version of a stored text; "" for no target. It does not reveal the secrets of the text,
// because the signing key in the text cannot be guessed.
func versionOf(text string) string {
	if text == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// checkVersion returns ErrChanged unless a stored text has a version.
func checkVersion(text, version string) error {
	if version != anyVersion && versionOf(text) != version {
		return ErrChanged
	}
	return nil
}

func (s *Store) set(ctx context.Context, t Target, version string) (c Change, err error) {
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
	newKey, changed := c.Key, false
	err = s.edit(ctx, t.Queue, t.Group, func(before string, known bool, others int64) (string, error) {
		old, err := parseTarget(t.Queue, t.Group, before)
		hasKeys := known && err == nil
		// The target was written by this Set, and the reply was lost.
		written := hasKeys && newKey != "" && slices.Contains(old.Keys, newKey)
		c = Change{Added: !known || written, Key: newKey}
		switch {
		case newKey == "": // the caller has given keys
		case hasKeys && !written:
			t.Keys, c.Key = old.Keys, ""
		default:
			t.Keys = []string{newKey}
		}
		if !known && others >= MaxTargets {
			return "", lua.Invalid("targets", fmt.Sprint(others+1), "must be at most %d for a queue", MaxTargets)
		}
		text := t.WithDefaults().text()
		if err := checkVersion(before, version); err != nil && !written && text != before {
			return "", err
		}
		if known && !written && text != before {
			changed = true // and stays true: if the reply is lost, the next attempt finds the new text
		}
		c.Changed = changed
		return text, nil
	})
	if err != nil && !lostReply(err) {
		return Change{}, err
	}
	return c, err
}

// Rotate gives a target a new signing key and returns the key. If key is "", Rotate generates a key. Until DropOldKey
// or the next Rotate, requests are also signed with the former newest key, so that the partner can change over. Rotate
// also returns the key if an error leaves open whether it was stored. ErrNoTarget, ErrInvalid.
func (s *Store) Rotate(ctx context.Context, queue, group, key string) (string, error) {
	return s.rotate(ctx, queue, group, key, anyVersion)
}

// RotateVersion is Rotate with a generated key, but returns ErrChanged unless the stored target has this version. So
// two callers who have read the same target do not drop a key that receivers still need.
func (s *Store) RotateVersion(ctx context.Context, queue, group, version string) (string, error) {
	return s.rotate(ctx, queue, group, "", version)
}

func (s *Store) rotate(ctx context.Context, queue, group, key, version string) (string, error) {
	if key == "" {
		key = NewKey()
	}
	if err := CheckKey(key); err != nil {
		return "", err
	}
	return key, s.editKeys(ctx, queue, group, func(before string, keys []string) ([]string, error) {
		if keys[0] == key { // repeated after an error
			return keys, nil
		}
		return []string{key, keys[0]}, checkVersion(before, version)
	})
}

// DropOldKey removes a target's old key: requests are then signed with the newest key only. ErrNoTarget, ErrOneKey.
func (s *Store) DropOldKey(ctx context.Context, queue, group string) error {
	repeated := false // after a lost reply the key may be dropped already
	return s.editKeys(ctx, queue, group, func(_ string, keys []string) ([]string, error) {
		if len(keys) == 1 && !repeated {
			return nil, ErrOneKey
		}
		repeated = true
		return keys[:1], nil
	})
}

// lostReply reports whether a call that returned err may have been executed.
func lostReply(err error) bool { return lua.Temporary(err) && lua.Ambiguous(err) && !lua.Unsent(err) }

// editPause is the pause before an edit is repeated after a lost reply.
const editPause = 100 * time.Millisecond

// editKeys replaces the keys of a target by the keys that edit returns. edit gets the stored text and its keys. The
// newest key is the first.
func (s *Store) editKeys(
	ctx context.Context, queue, group string, edit func(before string, keys []string) ([]string, error),
) error {
	return s.edit(ctx, queue, group, func(before string, known bool, _ int64) (string, error) {
		if !known {
			return "", ErrNoTarget
		}
		t, err := parseTarget(queue, group, before)
		if err != nil {
			return "", err
		}
		if t.Keys, err = edit(before, t.Keys); err != nil {
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
	removed, err := lua.RemoveTarget(ctx, s.client, lua.NewKeys(s.prefix, queue), group)
	if err == nil && !removed {
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
		state := State{Target: t, KeyCount: len(t.Keys), Version: versionOf(texts[group])}
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

// edit replaces the stored text of a target by the text that edit returns. all is the number of targets of the queue.
// If another client changes the target meanwhile, edit is called again with the new text.
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

// tryEdit is one attempt of edit. done is false if another client changed the target meanwhile.
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

// failed adds the verb and the target to an error; nil stays nil.
func (s *Store) failed(verb, queue, group string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s the target of %s/%s: %w", verb, queue, group, err)
}
