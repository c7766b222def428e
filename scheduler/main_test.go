package scheduler

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/scheduler/producer"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4)
	redistest.Main(m)
}

// forBlocking makes a client whose blocking reads end with their contexts.
func forBlocking(o *rueidis.ClientOption) { o.AlwaysPipelining = true }

// dialer is a server, or a proxy in front of one.
type dialer interface {
	Client(t testing.TB, opts ...func(*rueidis.ClientOption)) rueidis.Client
}

func newProducer(t *testing.T, client rueidis.Client, prefix string, change ...func(*producer.Config)) *producer.Producer {
	t.Helper()
	cfg := producer.Config{Client: client, Prefix: prefix}
	for _, f := range change {
		f(&cfg)
	}
	p, err := producer.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// running is a scheduler whose Run continues until stop or the end of the test.
type running struct {
	*Scheduler
	stop func()
	log  *lines
}

// start runs a scheduler until the test ends or its stop is called.
func start(t *testing.T, d dialer, prefix string, change ...func(*Config)) running {
	t.Helper()
	log := &lines{}
	cfg := Config{
		Client: d.Client(t, queuetest.WithoutPings), Blocking: d.Client(t, queuetest.WithoutPings, forBlocking), Prefix: prefix,
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
			t.Logf("log of %s:\n%s", s.Status().Bridge, log)
		}
	})
	t.Cleanup(stop)
	return running{s, stop, log}
}

// owns reports whether this scheduler drains a queue or partition.
func (r running) owns(queue string) bool { return r.owners.drainer(queue) != nil }

// healthy reports whether the last heartbeat is recent enough for the others to count on this scheduler.
func (r running) healthy() bool {
	return time.Since(r.Status().LastHeartbeat) < r.cfg.HeartbeatTimeout
}

// seldom makes the loops that look regularly so slow that they cannot hide that something else does not work.
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
