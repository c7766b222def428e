package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// How long a Store uses a cached answer.
const (
	FreshFor = time.Second // while Redis answers; a revoked token works no longer than this
	Grace    = time.Minute // during an outage of Redis
)

const (
	rateTimeout   = 250 * time.Millisecond // timeout of a call about a rate, which is not essential
	lookupTimeout = time.Second            // timeout of a lookup
	// After a failed lookup, callers use a cached answer for this long instead of waiting for the next lookup.
	useCachedFor = 3 * FreshFor
	maxCached    = 16 << 10 // cached digests, of right and wrong secrets
)

// ErrRefused: the secret is malformed, unknown, revoked or expired. The error does not tell which.
var ErrRefused = errors.New("the token is refused")

// Config configures a Store. Client is required.
type Config struct {
	Client rueidis.Client
	Prefix string       // of all keys; "" = "duestream"
	File   string       // path of a file of tokens, which is read again when it changes; "" = no file
	Log    *slog.Logger // nil = discard
}

// Store looks up tokens, and caches them. It is safe for concurrent use.
type Store struct {
	client rueidis.Client
	key    string
	log    *slog.Logger
	file   *tokenFile // nil = no file
	now    func() time.Time

	mu              sync.Mutex
	cache           map[digest]*cachedGrant
	rateFailedAt    time.Time // when a call about a rate last failed
	loggedRateError string    // the last error of a call about a rate that was logged
}

// bucketKey returns the Redis key of a token's bucket.
func (s *Store) bucketKey(d digest, b *bucket) string {
	return lua.Globals{Tokens: s.key}.Bucket(d.String()) + b.keySuffix
}

// cachedGrant is the cached answer for a digest.
type cachedGrant struct {
	asking chan struct{} // closed when the running lookup ends; nil = no lookup runs

	asked     time.Time // end of the last lookup, failed or not
	confirmed time.Time // end of the last lookup that Redis answered
	value     string    // the token that Redis held at that time; "" = no token
	grant     *Grant    // nil = no token
	err       error     // of the last lookup
}

// Open returns a Store, and reads the file of tokens if one is configured. Redis is not touched. The error names all
// faults of the configuration, and those of a file that cannot be read or is wrong.
func Open(cfg Config) (*Store, error) {
	cfg.Prefix = cmp.Or(cfg.Prefix, lua.DefaultPrefix)
	faults := []error{lua.Required("redis", cfg.Client != nil), lua.CheckPrefix(cfg.Prefix)}
	var file *tokenFile
	if cfg.File != "" {
		var err error
		file, err = openFile(cfg.File)
		faults = append(faults, err)
	}
	if err := lua.Faults("access", faults...); err != nil {
		return nil, err
	}
	return &Store{
		client: cfg.Client, key: lua.NewGlobals(cfg.Prefix).Tokens, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)),
		now: time.Now, file: file, cache: map[digest]*cachedGrant{},
	}, nil
}

// Authenticate returns the grant of a secret. It uses a cached answer younger than FreshFor, and otherwise asks Redis
// with one HGET, which concurrent callers with the same secret share. Errors: ErrRefused. Without a cached answer also:
// bridge.ErrUnavailable, bridge.ErrDenied, bridge.ErrWrongType, and the error of ctx.
func (s *Store) Authenticate(ctx context.Context, secret string) (*Grant, error) {
	d, ok := digestOf(secret)
	if !ok {
		return nil, ErrRefused
	}
	if s.file != nil {
		if g := s.file.grant(d, s.now(), s.log); g != nil {
			return g.unlessExpired(s.now())
		}
	}
	s.mu.Lock()
	e, now := s.cached(d), s.now()
	if e.asking == nil && now.Sub(e.asked) < FreshFor {
		defer s.mu.Unlock()
		return e.answer(now)
	}
	if e.asking == nil {
		e.asking = make(chan struct{})
		go s.ask(d, e)
	}
	asking := e.asking
	if e.survivesOutage(now) && now.Sub(e.asked) < useCachedFor {
		defer s.mu.Unlock()
		return e.answer(now)
	}
	s.mu.Unlock()
	select {
	case <-asking:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.answer(s.now())
}

// cached returns the cached answer for a digest, or a new empty one. When the cache is full it drops answers first. The
// caller holds mu.
func (s *Store) cached(d digest) *cachedGrant {
	if e := s.cache[d]; e != nil {
		return e
	}
	if len(s.cache) >= maxCached {
		// Drop the answers for wrong secrets first, because a caller can make up any number of secrets.
		for d, e := range s.cache {
			if e.grant == nil && e.asking == nil {
				delete(s.cache, d)
			}
		}
		for d, e := range s.cache {
			if len(s.cache) < maxCached {
				break
			}
			if s.now().Sub(e.asked) >= Grace || e.grant == nil {
				delete(s.cache, d)
			}
		}
	}
	e := &cachedGrant{}
	s.cache[d] = e
	return e
}

// ask looks the digest up in Redis, for all callers that wait.
func (s *Store) ask(d digest, e *cachedGrant) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	value, err := s.client.Do(ctx, s.client.B().Hget().Key(s.key).Field(d.String()).Build()).ToString()
	isMissing := rueidis.IsRedisNil(err)
	if isMissing {
		err = nil
	}
	err = lua.Classify("HGET "+s.key, err)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", lua.ErrUnavailable, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e.asked, e.err = now, err
	switch {
	case err != nil:
	case isMissing:
		e.confirmed, e.grant, e.value = now, nil, ""
	default:
		e.confirmed = now
		if e.value != value {
			e.grant, e.value = s.read(d, value), value
		}
	}
	close(e.asking)
	e.asking = nil
}

// read returns the grant of a stored token. It logs an unreadable token, and returns nil.
func (s *Store) read(d digest, value string) *Grant {
	t, err := parseToken([]byte(value))
	if err != nil {
		s.log.Warn("a token in Redis cannot be read, so it is refused", slog.String("digest", d.String()),
			slog.Any("error", err))
		return nil
	}
	return newGrant(d, t)
}

// survivesOutage reports whether Redis is unavailable and the cached grant may still be used.
func (e *cachedGrant) survivesOutage(now time.Time) bool {
	return e.grant != nil && errors.Is(e.err, lua.ErrUnavailable) && now.Sub(e.confirmed) < Grace
}

// answer returns the cached grant or error. The caller holds the Store's mu.
func (e *cachedGrant) answer(now time.Time) (*Grant, error) {
	switch {
	case e.err != nil && !e.survivesOutage(now):
		return nil, e.err
	case e.grant == nil:
		return nil, ErrRefused
	}
	return e.grant.unlessExpired(now)
}

// unlessExpired returns the grant, or ErrRefused if its token has expired.
func (g *Grant) unlessExpired(now time.Time) (*Grant, error) {
	if g.token.expired(now) {
		return nil, ErrRefused
	}
	return g, nil
}
