package push

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// moody is a target that fails 20 % of the requests, answers 5 % with Retry-After, and is slow in 5 %. Once it dies and
// comes back.
type moody struct {
	t        *testing.T
	verifier *standard.Webhook
	address  string
	deadAt   int // the target dies when so many messages have arrived
	deadFor  time.Duration

	mu       sync.Mutex
	arrived  map[string]int  // HeaderID of a message → how often it was answered with 200
	answers  map[int]int     // status → number of answers
	late     []time.Duration // lateness of first attempts and retries
	early    int             // requests before their due time
	most     int             // largest number of an attempt
	died     bool
	server   *http.Server
	revived  chan struct{} // closed when the target listens again
	unsigned atomic.Int64  // requests whose signature is not valid
}

// listen starts to serve at the same address as before.
func (m *moody) listen() {
	l, err := net.Listen("tcp", m.address)
	if err != nil {
		m.t.Error(err)
		return
	}
	m.address = l.Addr().String()
	server := &http.Server{Handler: m, ErrorLog: quietLog}
	m.mu.Lock()
	m.server = server
	m.mu.Unlock()
	go func() { _ = server.Serve(l) }()
}

func (m *moody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if m.verifier.Verify(body, r.Header) != nil {
		m.unsigned.Add(1)
	}
	// The mood depends on message and attempt, so the same requests fail in every run.
	h := sha256.Sum256([]byte(r.Header.Get(HeaderID) + " " + r.Header.Get(HeaderAttempt)))
	status := http.StatusOK
	switch mood := binary.BigEndian.Uint32(h[:]) % 100; {
	case mood < 20:
		status = http.StatusInternalServerError
	case mood < 25:
		w.Header().Set("Retry-After", "1")
		status = http.StatusTooManyRequests
	case mood < 30:
		<-time.After(50 * time.Millisecond)
	}
	due, err := time.Parse(dueLayout, r.Header.Get(HeaderDue))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answers[status]++
	if late := time.Since(due); err != nil || late < -time.Millisecond {
		m.early++
	} else {
		m.late = append(m.late, late)
	}
	var attempt int
	_, _ = fmt.Sscan(r.Header.Get(HeaderAttempt), &attempt)
	m.most = max(m.most, attempt)
	if status == http.StatusOK {
		m.arrived[r.Header.Get(HeaderID)]++
		if !m.died && len(m.arrived) >= m.deadAt {
			m.died = true
			go m.die()
		}
	}
	w.WriteHeader(status)
}

// die closes all connections, stops listening for a while, and listens again.
func (m *moody) die() {
	m.mu.Lock()
	server := m.server
	m.mu.Unlock()
	_ = server.Close()
	<-time.After(m.deadFor)
	m.listen()
	close(m.revived)
}

// At a target that misbehaves in every way, each message arrives, none before it is due, and none becomes a dead
// letter. The circuits of both Runners open and close. With DUESTREAM_TEST_FULL there are 100,000 messages, and the
// target is dead for 15 s.
func TestEachMessageArrivesAtAMoodyTarget(t *testing.T) {
	t.Parallel()
	messages, deadFor := 1500, 300*time.Millisecond
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		messages, deadFor = 100_000, 15*time.Second
	}
	g := newRig(t)
	verifier, err := standard.NewWebhook(testKey)
	if err != nil {
		t.Fatal(err)
	}
	m := &moody{t: t, verifier: verifier, address: "127.0.0.1:0", deadAt: messages / 3, deadFor: deadFor,
		arrived: map[string]int{}, answers: map[int]int{}, revived: make(chan struct{})}
	m.listen()
	t.Cleanup(func() { _ = m.server.Close() })
	target := to("http://" + m.address + "/hook")
	target.Concurrency, target.Interval, target.MaxInterval = 32, 50*time.Millisecond, time.Second
	g.set(target)
	g.setMaxAttempts("q", 40)
	g.run()
	g.run()
	began := time.Now()
	for i := 0; i < messages; i += 500 {
		batch := make([]bridge.NewMessage, 0, 500)
		for k := i; k < min(i+500, messages); k++ {
			batch = append(batch, bridge.NewMessage{ID: fmt.Sprint("m.", k), Payload: fmt.Appendf(nil, `{"n":%d}`, k),
				Delay: time.Duration(k%20) * 50 * time.Millisecond})
		}
		g.schedule("q", batch...)
	}
	redistest.Eventually(t, 8*time.Minute, func() (bool, string) {
		n := g.left("q")
		return n == 0, fmt.Sprint(n, " messages are left")
	})
	took := time.Since(began)
	<-m.revived
	m.mu.Lock()
	defer m.mu.Unlock()
	redistest.Want(t, "messages that arrived", len(m.arrived), messages)
	redistest.Want(t, "requests before they were due", m.early, 0)
	redistest.Want(t, "requests that do not verify", m.unsigned.Load(), int64(0))
	redistest.Want(t, "dead letters", len(g.dead("q")), 0)
	redistest.Want(t, "circuits that opened", g.log.Count("its circuit is open") >= 1, true)
	redistest.Want(t, "circuits that closed", g.log.Count("its circuit is closed"), g.log.Count("its circuit is open"))
	again := 0
	for _, n := range m.arrived {
		again += n - 1
	}
	slices.Sort(m.late)
	t.Logf("%d messages in %s: answers %v, %d arrived again, at most %d attempts; after due p50 %s, p99 %s; circuits opened %d, closed %d",
		messages, took.Round(time.Millisecond), m.answers, again, m.most, m.late[len(m.late)/2].Round(time.Millisecond),
		m.late[len(m.late)*99/100].Round(time.Millisecond), g.log.Count("its circuit is open"), g.log.Count("its circuit is closed"))
}

// Targets do not wait for each other's blocking reads, also beyond the first thousand. With DUESTREAM_TEST_FULL there
// are 1,200 targets, and else 30.
func TestManyTargetsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	n, queues := 30, 3
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		n, queues = 1200, 12
	}
	g, v := newRig(t), newReceiver(t, nil)
	r, err := bridge.Dial(t.Context(), redistest.Shared(t).URL(), ManyReads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for i := range n {
		target := to(v.URL)
		target.Queue, target.Group = fmt.Sprint("q", i%queues), fmt.Sprint("g", i)
		g.set(target)
	}
	g.r = r
	g.run()
	for round := range 2 { // in the second round all targets wait in blocking reads
		began := time.Now()
		for i := range queues { // each group of a queue gets the message, so each target gets one request a round
			g.schedule(fmt.Sprint("q", i), bridge.NewMessage{ID: fmt.Sprint("m", round)})
		}
		redistest.Eventually(t, time.Minute, func() (bool, string) {
			got := len(v.requests())
			return got == n*(round+1), fmt.Sprint(got, " requests")
		})
		t.Logf("%d targets: round %d took %s", n, round+1, time.Since(began).Round(time.Millisecond))
	}
	redistest.Want(t, "workers that failed", g.log.Count("is failing"), 0)
}
