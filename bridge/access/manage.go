package access

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Errors of the calls that manage tokens.
var (
	// ErrExists: another token has the name. Nothing was changed.
	ErrExists = errors.New("there is a token of that name")
	// ErrNoToken: no token has the name.
	ErrNoToken = errors.New("there is no token of that name")
)

const (
	// maxEdits bounds the attempts of a change. An attempt fails if another client changed the tokens meanwhile.
	maxEdits = 100
	// maxEditPause is the longest pause before the first attempt. Before the n-th attempt it is n times as long.
	maxEditPause = time.Millisecond
)

// changeLock is held by the goroutine that changes tokens. Without it, concurrent changes of this process would make
// each other's transactions fail.
var changeLock = make(chan struct{}, 1)

var errChanging = errors.New("other clients keep changing the tokens: try again")

// Stored is a token as it is stored in Redis.
type Stored struct {
	Digest string `json:"digest"` // its field in the hash: the SHA-256 of the secret
	Token
	Expired bool `json:"expired,omitempty"`
	// Problem tells why the token cannot be read, and is refused. Then Token is empty.
	Problem string `json:"problem,omitempty"`
}

// hash is the Redis hash that holds the tokens of a prefix.
type hash struct {
	client rueidis.Client
	key    string
}

func hashOf(c rueidis.Client, prefix string) hash {
	return hash{c, lua.NewGlobals(cmp.Or(prefix, lua.DefaultPrefix)).Tokens}
}

// Add stores a new token and returns its secret, which is not stored and cannot be read again. It reads all tokens.
// Errors: bridge.ErrInvalid, ErrExists.
func Add(ctx context.Context, c rueidis.Client, prefix string, t Token) (secret string, err error) {
	secret, d := newSecret()
	if err := hashOf(c, prefix).add(ctx, d, t); err != nil {
		return "", err
	}
	return secret, nil
}

// AddChosen stores a new token with a secret that the caller chose: 20 to 128 characters of A-Z a-z 0-9 . _ - that are
// hard to guess. Errors: bridge.ErrInvalid; ErrExists, also when another token has the same secret.
func AddChosen(ctx context.Context, c rueidis.Client, prefix string, t Token, secret string) error {
	if !isChosen(secret) {
		return lua.Invalid("secret", fmt.Sprint(len(secret), " bytes"), "must be %d to %d of A-Z a-z 0-9 . _ - and not "+
			"begin with %s", minChosenBytes, maxChosenBytes, SecretPrefix)
	}
	d, _ := digestOf(secret)
	return hashOf(c, prefix).add(ctx, d, t)
}

func (h hash) add(ctx context.Context, d digest, t Token) error {
	if err := t.Check(); err != nil {
		return err
	}
	if strings.HasPrefix(t.Name, SecretPrefix) { // a password manager may fill a secret into the field of the name
		return &lua.InvalidError{Field: "token", Value: SecretPrefix + "…", Rule: "must be a name, and not a secret"}
	}
	return h.change(ctx, func(all []Stored, now time.Time) (string, Token, error) {
		if t.expired(now) {
			return "", t, lua.Invalid("expires", t.Expires.UTC().Format(time.RFC3339), "must be in the future, and it is %s",
				now.UTC().Format(time.RFC3339))
		}
		if len(all) >= MaxTokens {
			return "", t, lua.Invalid("token", t.Name, "must be one of at most %d: remove some", MaxTokens)
		}
		if slices.ContainsFunc(all, func(s Stored) bool {
			return s.Problem == "" && s.Name == t.Name || s.Digest == d.String()
		}) {
			return "", t, fmt.Errorf("token %s: %w", t.Name, ErrExists)
		}
		return d.String(), t.created(now), nil
	})
}

// created returns a new token in its stored form: with its time of creation, times in UTC and whole milliseconds, and
// the normal form of its rate.
func (t Token) created(now time.Time) Token {
	t.Created = now.UTC().Truncate(time.Millisecond)
	if !t.Expires.IsZero() {
		t.Expires = t.Expires.UTC().Truncate(time.Millisecond)
	}
	t.Rate = t.Rate.Normal()
	return t
}

// SetLimits replaces the limits of the token with the given digest; nil removes them. With fresh it fails with
// ErrExists if the token has limits already. Errors: bridge.ErrInvalid, ErrNoToken.
func SetLimits(ctx context.Context, c rueidis.Client, prefix, digest string, l *Limits, fresh bool) error {
	return hashOf(c, prefix).change(ctx, func(all []Stored, _ time.Time) (string, Token, error) {
		index := slices.IndexFunc(all, func(s Stored) bool { return s.Digest == digest && s.Problem == "" })
		if index < 0 {
			return "", Token{}, ErrNoToken
		}
		t := all[index].Token
		if fresh && t.Limits != nil {
			return "", t, fmt.Errorf("limits of token %s: %w", t.Name, ErrExists)
		}
		t.Limits = l
		return digest, t, t.Check()
	})
}

var errNotEmpty = errors.New("there are tokens")

// Empty reports whether there are no tokens: Redis has no token, and the Store has no file. Then every request is
// refused.
func (s *Store) Empty(ctx context.Context) (bool, error) {
	if s.file != nil {
		return false, nil
	}
	n, err := s.client.Do(ctx, s.client.B().Hlen().Key(s.key).Build()).AsInt64()
	return n == 0, lua.Classify("HLEN "+s.key, err)
}

// First makes the first token of a new installation and returns its secret. The token is called "first" and may do
// everything. If Redis has tokens or the Store has a file, First does nothing and returns "". If several gateways
// call it at once, one of them gets the secret.
func (s *Store) First(ctx context.Context) (secret string, err error) {
	if none, err := s.Empty(ctx); err != nil || !none {
		return "", err
	}
	t := Token{
		Name: "first", Description: "made by the first gateway that started", Queues: []string{"*"},
		// Operate includes Inspect. Gateways of a release without Inspect refuse a token that names it.
		Verbs: []Verb{Publish, Consume, Operate},
	}
	secret, d := newSecret()
	err = hash{s.client, s.key}.change(ctx, func(all []Stored, now time.Time) (string, Token, error) {
		if len(all) > 0 {
			return "", t, errNotEmpty
		}
		return d.String(), t.created(now), nil
	})
	if errors.Is(err, errNotEmpty) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return secret, nil
}

// List returns the tokens of a prefix, in the order of their names. Unreadable ones are included, each with its
// Problem.
func List(ctx context.Context, c rueidis.Client, prefix string) ([]Stored, error) {
	all, _, err := hashOf(c, prefix).all(ctx, c)
	return all, err
}

// Remove revokes the token with the given name. An unreadable token is given by its digest. Stores refuse the token
// within FreshFor. ErrNoToken.
func Remove(ctx context.Context, c rueidis.Client, prefix, name string) error {
	h := hashOf(c, prefix)
	all, _, err := h.all(ctx, c)
	if err != nil {
		return err
	}
	var fields []string
	for _, s := range all {
		called := s.Name
		if called == "" { // an unreadable token
			called = s.Digest
		}
		if name != "" && called == name {
			fields = append(fields, s.Digest)
		}
	}
	if len(fields) > 0 {
		removed, err := lua.RemoveTokens(ctx, c, h.key, fields...)
		if removed || err != nil {
			return err
		}
	}
	return fmt.Errorf("token %q: %w", cut(name), ErrNoToken)
}

func cut(text string) string {
	if len(text) > MaxNameBytes {
		return strings.ToValidUTF8(text[:MaxNameBytes], "") + "…"
	}
	return text
}

// asker is a client or a dedicated connection.
type asker interface {
	B() rueidis.Builder
	Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult
}

// all returns the tokens of the hash, which it reads in steps, and the server's time. An unreadable token has a
// Problem.
func (h hash) all(ctx context.Context, c asker) (all []Stored, now time.Time, err error) {
	clock, err := c.Do(ctx, c.B().Time().Build().SetSlot(h.key)).AsIntSlice()
	if err != nil {
		return nil, now, lua.Classify("TIME", err)
	}
	if len(clock) == 2 {
		now = time.Unix(clock[0], clock[1]*1000)
	}
	found := map[string]string{} // HSCAN may return a field twice
	for cursor := uint64(0); ; {
		step, err := c.Do(ctx, c.B().Hscan().Key(h.key).Cursor(cursor).Count(500).Build()).AsScanEntry()
		if err != nil {
			return nil, now, lua.Classify("HSCAN "+h.key, err)
		}
		for i := 0; i+1 < len(step.Elements); i += 2 {
			found[step.Elements[i]] = step.Elements[i+1]
		}
		if cursor = step.Cursor; cursor == 0 {
			break
		}
	}
	for field, value := range found {
		s := Stored{Digest: field}
		t, err := parseToken([]byte(value))
		if _, ok := parseDigest(field); !ok {
			err = fmt.Errorf("its field must be the SHA-256 of a secret, %d digits of 0-9 a-f", digestBytes)
		}
		if err == nil {
			s.Token, s.Expired = *t, t.expired(now)
		} else {
			s.Problem = err.Error()
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Stored) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Digest, b.Digest))
	})
	return all, now, nil
}

// change passes all tokens to pick, and writes the token that pick returns to the field that pick returns. A
// transaction makes sure that no other client changes the tokens between reading and writing. If another client did,
// change calls pick again with the new tokens.
func (h hash) change(
	ctx context.Context, pick func(all []Stored, now time.Time) (field string, t Token, err error),
) error {
	select {
	case changeLock <- struct{}{}:
		defer func() { <-changeLock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for i := range maxEdits {
		var t Token
		if !loop.Sleep(ctx, rand.N(time.Duration(1+i)*maxEditPause)) {
			return ctx.Err()
		}
		edit := func(one rueidis.DedicatedClient) (field, value string, err error) {
			all, now, err := h.all(ctx, one)
			if err != nil {
				return "", "", err
			}
			field, t, err = pick(all, now)
			if err != nil {
				return "", "", err
			}
			value, err = t.text()
			return field, value, err
		}
		done, err := lua.EditTokens(ctx, h.client, h.key, edit)
		if errors.Is(err, lua.ErrFull) {
			err = fmt.Errorf("token %s was not written: %w", t.Name, err)
		}
		if done || err != nil {
			return err
		}
	}
	return errChanging
}

// text returns the token as it is stored. ErrInvalid: it is too large.
func (t Token) text() (string, error) {
	value, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("token %s: %w", t.Name, err)
	}
	if len(value) > maxTokenBytes {
		return "", lua.Invalid("token", t.Name, "must be at most %s bytes of JSON", strconv.Itoa(maxTokenBytes))
	}
	return string(value), nil
}
