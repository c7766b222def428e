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

// rig is a hash of tokens, with Stores whose clock the test sets.
type rig struct {
	t      *testing.T
	client rueidis.Client
	prefix string
	key    string

	mu   sync.Mutex
	now  time.Time
	said bytes.Buffer
}

func newRig(t *testing.T, s *redistest.Server) *rig {
	prefix := s.Prefix(t)
	return &rig{t: t, client: s.Client(t), prefix: prefix, key: lua.NewGlobals(prefix).Tokens, now: time.Now()}
}

func (r *rig) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Write(line)
}

func (r *rig) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.String()
}

func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

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

func (r *rig) do(words ...string) {
	r.t.Helper()
	if err := r.client.Do(r.t.Context(), r.client.B().Arbitrary(words...).Build()).Error(); err != nil {
		r.t.Fatal(words, err)
	}
}

func (r *rig) granted(s *Store, secret string) *Grant {
	r.t.Helper()
	g, err := s.Authenticate(r.t.Context(), secret)
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

func (r *rig) refused(s *Store, secret string, with error) {
	r.t.Helper()
	if g, err := s.Authenticate(r.t.Context(), secret); g != nil || !errors.Is(err, with) {
		r.t.Errorf("got %v, %v, want %v", g, err, with)
	}
}
