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

// How long a Store believes what it knows.
const (
	FreshFor = time.Second // without asking again: so long a token may work after it was revoked
	Grace    = time.Minute // while Redis is away
)

const (
	soon      = 250 * time.Millisecond // of what need not be asked
	patience  = time.Second            // of a question to Redis
	unwaited  = 3 * FreshFor           // behind a question that failed nobody waits for the next one who has an answer
	mostKnown = 16 << 10               // digests, right and wrong ones
)

// ErrRefused: the secret is none, or that of no token, or that of one that is revoked or expired. Which of them is not told.
var ErrRefused = errors.New("the token is refused")

// Config is what a Store works with.
type Config struct {
	Client rueidis.Client
	Prefix string       // "" is the default one
	File   string       // of tokens, read again when it changes; "" = none
	Log    *slog.Logger // nil discards
}

// Store knows tokens. It is safe for concurrent use.
type Store struct {
	client rueidis.Client
	key    string
	log    *slog.Logger
	file   *tokenFile // nil without one
	now    func() time.Time

	mu          sync.Mutex
	known       map[digest]*entry
	ratesFailed time.Time // when Redis could not be asked for what a rate allows
	ratesTold   string    // why, as the log has it
}

func (s *Store) bucket(d digest) string { return lua.Globals{Tokens: s.key}.Bucket(d.String()) }

// entry is what is known of a digest.
type entry struct {
	asking chan struct{} // is closed when Redis has answered; nil = it is not being asked

	asked     time.Time // when Redis answered last, or failed to
	confirmed time.Time // when it answered last
	value     string    // what it answered
	grant     *Grant    // nil = no token
	err       error     // of the last question
}

// Open returns a Store, and reads the file of tokens if there is one. Redis is not touched. Errors: what is wrong with the file.
func Open(cfg Config) (*Store, error) {
	s := &Store{
		client: cfg.Client, key: lua.NewGlobals(cmp.Or(cfg.Prefix, lua.DefaultPrefix)).Tokens, log: cfg.Log, now: time.Now,
		known: map[digest]*entry{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if cfg.File == "" {
		return s, nil
	}
	var err error
	s.file, err = openFile(cfg.File)
	return s, err
}

// Authenticate returns what a secret is good for. It asks Redis, with one HGET, what it has not asked for FreshFor; of any number
// of callers with the same secret one asks. Errors: ErrRefused, and of secrets that it does not know bridge.ErrUnavailable,
// bridge.ErrDenied, bridge.ErrWrongType, or that of ctx.
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
	e, now := s.entry(d), s.now()
	if e.asking == nil && now.Sub(e.asked) < FreshFor {
		defer s.mu.Unlock()
		return e.answer(now)
	}
	if e.asking == nil {
		e.asking = make(chan struct{})
		go s.ask(d, e)
	}
	asking := e.asking
	if e.away(now) && now.Sub(e.asked) < unwaited {
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

// entry returns what is known of a digest, with room for it. The caller holds mu.
func (s *Store) entry(d digest) *entry {
	if e := s.known[d]; e != nil {
		return e
	}
	if len(s.known) >= mostKnown { // wrong ones first: there may be any number of them
		for d, e := range s.known {
			if e.grant == nil && e.asking == nil {
				delete(s.known, d)
			}
		}
		for d, e := range s.known {
			if len(s.known) < mostKnown {
				break
			}
			if s.now().Sub(e.asked) >= Grace || e.grant == nil {
				delete(s.known, d)
			}
		}
	}
	e := &entry{}
	s.known[d] = e
	return e
}

// ask asks Redis, for all who wait.
func (s *Store) ask(d digest, e *entry) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	value, err := s.client.Do(ctx, s.client.B().Hget().Key(s.key).Field(d.String()).Build()).ToString()
	none := rueidis.IsRedisNil(err)
	if none {
		err = nil
	}
	if err = lua.Classify("HGET "+s.key, err); errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", lua.ErrUnavailable, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	e.asked, e.err = now, err
	switch {
	case err != nil:
	case none:
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

// read returns what a value grants; nil, and a line in the log, if it is no token.
func (s *Store) read(d digest, value string) *Grant {
	t, err := parseToken([]byte(value))
	if err != nil {
		s.log.Warn("what Redis holds for a token cannot be read, so that token is refused", slog.String("digest", d.String()),
			slog.Any("error", err))
		return nil
	}
	return newGrant(d, t)
}

// away says whether Redis is, and what it said before still holds.
func (e *entry) away(now time.Time) bool {
	return e.grant != nil && errors.Is(e.err, lua.ErrUnavailable) && now.Sub(e.confirmed) < Grace
}

// answer says what is known. The caller holds the Store's mu.
func (e *entry) answer(now time.Time) (*Grant, error) {
	switch {
	case e.err != nil && !e.away(now):
		return nil, e.err
	case e.grant == nil:
		return nil, ErrRefused
	}
	return e.grant.unlessExpired(now)
}

func (g *Grant) unlessExpired(now time.Time) (*Grant, error) {
	if g.token.expired(now) {
		return nil, ErrRefused
	}
	return g, nil
}
