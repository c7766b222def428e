package access

import (
	"bytes"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// rig is an empty hash of tokens in Redis. All Stores that the rig opens share one clock, which only pass moves, and
// one log, which the rig records.
type rig struct {
	t      *testing.T
	client rueidis.Client
	prefix string
	key    string

	mu     sync.Mutex
	now    time.Time
	logged bytes.Buffer
}

func newRig(t *testing.T, s *redistest.Server) *rig {
	prefix := s.Prefix(t)
	return &rig{t: t, client: s.Client(t), prefix: prefix, key: lua.NewGlobals(prefix).Tokens, now: time.Now()}
}

// Write records a line of the log.
func (r *rig) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logged.Write(line)
}

func (r *rig) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logged.String()
}

// pass moves the clock of the Stores forward. After FreshFor a Store looks a token up again.
func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

// store opens a Store; file "" = no file of tokens.
func (r *rig) store(c rueidis.Client, file string) *Store {
	r.t.Helper()
	s, err := Open(Config{Client: c, Prefix: r.prefix, File: file, Log: slog.New(slog.NewTextHandler(r, nil))})
	if err != nil {
		r.t.Fatal(err)
	}
	s.now = func() time.Time {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.now
	}
	return s
}

// add stores a token and returns its secret. Without verbs the token may publish; without queues it is for all queues.
func (r *rig) add(t Token) (secret string) {
	r.t.Helper()
	if t.Verbs == nil {
		t.Verbs = []Verb{Publish}
	}
	if t.Queues == nil {
		t.Queues = []string{"*"}
	}
	secret, err := Add(r.t.Context(), r.client, r.prefix, t)
	if err != nil {
		r.t.Fatal(err)
	}
	return secret
}

// do runs a command in Redis, which must succeed.
func (r *rig) do(words ...string) {
	r.t.Helper()
	if err := r.client.Do(r.t.Context(), r.client.B().Arbitrary(words...).Build()).Error(); err != nil {
		r.t.Fatal(words, err)
	}
}

// granted returns the grant of a secret, which the Store must accept.
func (r *rig) granted(s *Store, secret string) *Grant {
	r.t.Helper()
	g, err := s.Authenticate(r.t.Context(), secret)
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

// refused checks that the Store refuses a secret with the given error.
func (r *rig) refused(s *Store, secret string, want error) {
	r.t.Helper()
	if g, err := s.Authenticate(r.t.Context(), secret); g != nil || !errors.Is(err, want) {
		r.t.Errorf("got %v, %v, want %v", g, err, want)
	}
}
