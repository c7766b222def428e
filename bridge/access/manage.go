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

const retryWithin = time.Millisecond // base of the retry delay; multiplied by the number of lost races

// changeLock is held by the one goroutine of this process that changes tokens: concurrent changes would only make each
// other's transactions fail.
var changeLock = make(chan struct{}, 1)

var errAgain = errors.New("the tokens were changed meanwhile")

// Stored is a token as it is stored in Redis.
type Stored struct {
	Digest string `json:"digest"` // its field in the hash: the SHA-256 of the secret
	Token
	Expired bool   `json:"expired,omitempty"`
	Problem string `json:"problem,omitempty"` // why it cannot be read, and is refused; of the Token nothing is known then
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
		return d.String(), t.made(now), nil
	})
}

// made returns a new token in its stored form: with its time of creation, times in UTC and whole milliseconds, and the
// normal form of its rate.
func (t Token) made(now time.Time) Token {
	t.Created = now.UTC().Truncate(time.Millisecond)
	if !t.Expires.IsZero() {
		t.Expires = t.Expires.UTC().Truncate(time.Millisecond)
	}
	t.Rate = t.Rate.Normal()
	return t
}

// SetLimits replaces the limits of the token with the given digest; nil removes them. With fresh it only adds limits:
// ErrExists if the token has some. Errors: bridge.ErrInvalid, ErrNoToken.
func SetLimits(ctx context.Context, c rueidis.Client, prefix, digest string, l *Limits, fresh bool) error {
	return hashOf(c, prefix).change(ctx, func(all []Stored, _ time.Time) (string, Token, error) {
		at := slices.IndexFunc(all, func(s Stored) bool { return s.Digest == digest && s.Problem == "" })
		if at < 0 {
			return "", Token{}, ErrNoToken
		}
		t := all[at].Token
		if fresh && t.Limits != nil {
			return "", t, fmt.Errorf("limits of token %s: %w", t.Name, ErrExists)
		}
		t.Limits = l
		return digest, t, t.Check()
	})
}

var errSome = errors.New("there are tokens")

// Empty reports whether there are no tokens: Redis has none, and the Store has no file. Then every request is refused.
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
	t := Token{Name: "first", Description: "made by the first gateway that started", Verbs: Verbs(), Queues: []string{"*"}}
	secret, d := newSecret()
	err = hash{s.client, s.key}.change(ctx, func(all []Stored, now time.Time) (string, Token, error) {
		if len(all) > 0 {
			return "", t, errSome
		}
		return d.String(), t.made(now), nil
	})
	if errors.Is(err, errSome) {
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

// Remove revokes the token of that name, or the unreadable token with that digest. Stores refuse it within FreshFor.
// ErrNoToken.
func Remove(ctx context.Context, c rueidis.Client, prefix, name string) error {
	h := hashOf(c, prefix)
	all, _, err := h.all(ctx, c)
	if err != nil {
		return err
	}
	var fields []string
	for _, s := range all {
		if s.Name == name || s.Name == "" && s.Digest == name {
			fields = append(fields, s.Digest)
		}
	}
	if len(fields) > 0 {
		n, err := c.Do(ctx, c.B().Hdel().Key(h.key).Field(fields...).Build()).AsInt64()
		if n > 0 || err != nil {
			return lua.Classify("HDEL "+h.key, err)
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

type asker interface {
	B() rueidis.Builder
	Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult
}

// all reads the hash in steps. An unreadable token has a Problem. It also returns the server's time.
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

// change passes all tokens to pick, and writes the token that pick returns at the field that it returns. A transaction
// makes sure that no other client changes the tokens between reading and writing.
func (h hash) change(ctx context.Context, pick func(all []Stored, now time.Time) (field string, t Token, err error)) (err error) {
	select {
	case changeLock <- struct{}{}:
		defer func() { <-changeLock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	const most = 100 // attempts; each one that fails lost a race with another client
	for i := range most {
		if !loop.Sleep(ctx, rand.N(time.Duration(1+i)*retryWithin)) {
			return ctx.Err()
		}
		err = lua.Dedicated(ctx, h.client, func(one rueidis.DedicatedClient) error {
			if err := one.Do(ctx, one.B().Watch().Key(h.key).Build()).Error(); err != nil {
				return lua.Classify("WATCH "+h.key, err)
			}
			field, t := "", Token{}
			all, now, err := h.all(ctx, one)
			if err == nil {
				field, t, err = pick(all, now)
			}
			if err != nil {
				_ = one.Do(ctx, one.B().Unwatch().Build()).Error() // if it fails the connection ends, and the watch
				return err
			}
			return h.write(ctx, one, field, t)
		})
		if !errors.Is(err, errAgain) {
			break
		}
	}
	return err
}

func (h hash) write(ctx context.Context, one rueidis.DedicatedClient, field string, t Token) error {
	value, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("token %s: %w", t.Name, err)
	}
	if len(value) > maxTokenBytes {
		return lua.Invalid("token", t.Name, "must be at most %s bytes of JSON", strconv.Itoa(maxTokenBytes))
	}
	done, err := lua.Transact(ctx, one, h.key, one.B().Hset().Key(h.key).FieldValue().FieldValue(field, string(value)).Build())
	if errors.Is(err, lua.ErrFull) {
		return fmt.Errorf("token %s was not written: %w", t.Name, err)
	}
	if !done && err == nil {
		return errAgain
	}
	return err
}
