package campaign

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/metrics"
)

// Suffixes of files beside a ledger: the metrics address of the process, and its final metrics after a clean end.
const (
	addrFile  = ".addr"
	finalFile = ".final"
)

// scrapeEvery is how often each process is scraped.
const scrapeEvery = time.Second

// shown is a process with metrics.
type shown struct {
	metrics *metrics.Metrics
	handler http.Handler
	ledger  string
}

// show makes a part serve its metrics. It returns nil if the campaign does not scrape.
func (p part) show(log *slog.Logger) (*shown, error) {
	if !p.Metrics {
		return nil, nil
	}
	m, err := metrics.New(metrics.Config{Timeout: 500 * time.Millisecond, Logger: log})
	if err != nil {
		return nil, err
	}
	s := &shown{metrics: m, ledger: p.Ledger}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.metrics)
	s.handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { _ = http.Serve(l, s.handler) }()
	return s, os.WriteFile(p.Ledger+addrFile, []byte(l.Addr().String()), 0o644)
}

// observer returns the observer of a part, or nil.
func (s *shown) observer() bridge.Observer {
	if s == nil {
		return nil
	}
	return s.metrics
}

// page is the response of a handler.
type page struct {
	bytes.Buffer
	header http.Header
}

func (p *page) Header() http.Header { return p.header }
func (p *page) WriteHeader(int)     {}

// end writes the final metrics at a clean end.
func (s *shown) end() {
	if s == nil {
		return
	}
	r, err := http.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	p := &page{header: http.Header{}}
	if err == nil {
		s.handler.ServeHTTP(p, r)
		err = os.WriteFile(s.ledger+finalFile, p.Bytes(), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "campaign: cannot keep the metrics:", err)
	}
}

// scrape holds the metrics of a process. Series of several queues and groups are added up, once under their name and
// reason, and once under name@queue.
type scrape struct {
	from   time.Time
	values map[string]float64
}

func parseScrape(from time.Time, text io.Reader) (scrape, error) {
	s := scrape{from, map[string]float64{}}
	for lines := bufio.NewScanner(text); lines.Scan(); {
		line := strings.TrimPrefix(lines.Text(), "duestream_")
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		name, labels, _ := strings.Cut(line[:at], "{")
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return s, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		s.values[name] += v
		for label := range strings.SplitSeq(strings.TrimSuffix(labels, "}"), ",") {
			if queue, is := strings.CutPrefix(label, `queue="`); is {
				s.values[name+"@"+strings.TrimSuffix(queue, `"`)] += v
			}
		}
	}
	return s, nil
}

// scraper scrapes all processes as Prometheus would.
type scraper struct {
	client http.Client
	mu     sync.Mutex
	last   map[string]scrape // by name of the process
	count  int
}

func newScraper() *scraper {
	return &scraper{client: http.Client{Timeout: scrapeEvery}, last: map[string]scrape{}}
}

func (s *scraper) run(ctx context.Context, f *family) {
	for pause(ctx, scrapeEvery) {
		s.all(f)
	}
}

func (s *scraper) all(f *family) {
	var one sync.WaitGroup
	for _, slot := range f.slots {
		slot.mu.Lock()
		name, ledger := slot.name, slot.ledger
		slot.mu.Unlock()
		if name != "" && slot.part.Role != rolePlain {
			one.Go(func() { s.one(name, ledger) })
		}
	}
	one.Wait()
}

// one scrapes a process. It ignores errors, because the process may be stopped or killed.
func (s *scraper) one(name, ledger string) {
	addr, err := os.ReadFile(ledger + addrFile)
	if err != nil {
		return
	}
	from := time.Now()
	reply, err := s.client.Get("http://" + string(addr) + "/metrics")
	if err != nil {
		return
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		return
	}
	if got, err := parseScrape(from, bytes.NewReader(text)); err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last[name] = got
		s.count++
	}
}

// ended returns the final metrics of a process, if it ended cleanly.
func ended(dir, name string) (scrape, bool, error) {
	text, err := os.ReadFile(filepath.Join(dir, name+".ledger"+finalFile))
	if errors.Is(err, os.ErrNotExist) {
		return scrape{}, false, nil
	}
	if err != nil {
		return scrape{}, false, err
	}
	s, err := parseScrape(time.Now(), bytes.NewReader(text))
	return s, true, err
}

var exitWords = []string{"acknowledged", "retried", "released", "snoozed", "lost", "unknown", "stuck"}

// counterOf returns the counter of a ledger line, or "". Words without a counter are those of plain workers.
func counterOf(r record) string {
	switch {
	case r.verb == verbTaken:
		return "enqueued_total"
	case r.verb == verbDup:
		return "duplicates_total"
	case r.verb == verbCancel && r.word == changeOK, r.verb == verbHalt && (r.word == changeOK || r.word == changeRunning):
		return "cancelled_total"
	case r.verb == verbMove && r.word == changeOK:
		return "rescheduled_total"
	case r.verb == verbStart:
		return "delivered_total"
	case r.verb == verbEnd:
		return "handler_duration_seconds_count"
	case r.verb == verbExit && slices.Contains(exitWords, r.word):
		return r.word + "_total"
	case r.verb == verbExit && r.word == "dead":
		return "dead_lettered_total"
	}
	return ""
}
