package scheduler

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4)
	redistest.Main(m)
}

// quietly keeps the client from pinging idle connections, as the bridge does.
func quietly(o *rueidis.ClientOption) {
	o.Dialer = net.Dialer{KeepAlive: 30 * time.Second, Timeout: time.Second}
	o.ConnWriteTimeout = 10 * time.Second
}

func forBlocking(o *rueidis.ClientOption) { o.AlwaysPipelining = true }

// dialer is a server, or a proxy before one.
type dialer interface {
	Client(t testing.TB, opts ...func(*rueidis.ClientOption)) rueidis.Client
}

func newProducer(t *testing.T, client rueidis.Client, prefix string, change ...func(*ProducerConfig)) *Producer {
	t.Helper()
	cfg := ProducerConfig{Client: client, Prefix: prefix}
	for _, f := range change {
		f(&cfg)
	}
	p, err := NewProducer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// loseReply cuts the connection before the reply to the next script call of the producer, and not of a registration that it made beside an
// earlier call.
func loseReply(p *Producer, proxy *redistest.Proxy) {
	p.busy.Wait()
	proxy.CutAfterForward(1, "EVALSHA", "EVAL")
}

// running is a scheduler whose Run goes on until stop or the end of the test.
type running struct {
	*Scheduler
	stop func()
	log  *lines
}

func start(t *testing.T, d dialer, prefix string, change ...func(*Config)) running {
	t.Helper()
	log := &lines{}
	cfg := Config{
		Client: d.Client(t, quietly), Blocking: d.Client(t, quietly, forBlocking), Prefix: prefix,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", s.Bridge(), log)
		}
	})
	t.Cleanup(stop)
	return running{s, stop, log}
}

// seldom switches off what could hide that something else does not work.
func seldom(c *Config) {
	c.SurveyInterval, c.DiscoverInterval, c.RegistryInterval = time.Hour, time.Hour, time.Hour
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) count(what string) int { return strings.Count(l.String(), what) }

// entries reads a queue's stream.
func entries(t *testing.T, c rueidis.Client, prefix, queue string) []lua.Entry {
	t.Helper()
	reply, err := c.Do(t.Context(), c.B().Xrange().Key(lua.NewKeys(prefix, queue).Stream).Start("-").End("+").Build()).AsXRangeSlices()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]lua.Entry, len(reply))
	for i, e := range reply {
		out[i] = lua.ParseEntry(e.ID, e.FieldValues)
	}
	return out
}

// integer sends a command that answers with a number.
func integer(t *testing.T, c rueidis.Client, args ...string) int64 {
	t.Helper()
	n, err := c.Do(t.Context(), c.B().Arbitrary(args...).Build()).AsInt64()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return n
}

// text sends a command that answers with a string.
func text(t *testing.T, c rueidis.Client, args ...string) string {
	t.Helper()
	s, err := c.Do(t.Context(), c.B().Arbitrary(args...).Build()).ToString()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return s
}

// must sends a command.
func must(t *testing.T, c rueidis.Client, args ...string) {
	t.Helper()
	if err := c.Do(t.Context(), c.B().Arbitrary(args...).Build()).Error(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// serverNow is the time by the server's clock.
func serverNow(t *testing.T, c rueidis.Client) time.Time {
	t.Helper()
	now, err := c.Do(t.Context(), c.B().Time().Build()).AsIntSlice()
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(now[0], now[1]*1000)
}
