package browser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/dashboard"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// demoOrders is how many orders the shop of the demo sends.
const demoOrders = 400

// TestDemoOfAShop records the dashboard of a shop as files, for the site of the documents: `make site-demo` sets
// DUESTREAM_TEST_DEMO to their directory. The messages of the shop are the same in each recording.
func TestDemoOfAShop(t *testing.T) {
	dir := os.Getenv("DUESTREAM_TEST_DEMO")
	if dir == "" {
		t.Skip("DUESTREAM_TEST_DEMO is not set")
	}
	own := queuetest.New(t, redistest.Own(t, "--appendonly", "yes", "--maxmemory", "512mb"))
	own.Prefix = "duestream" // the pages show it
	s := &shop{rig: newRigOf(own, func(cfg *dashboard.Config) { cfg.Version = "0.1.0" }),
		partner: errors.New("POST https://globex.example/v1/orders: 503 Service Unavailable")}
	secret := s.secret("ana", access.Verbs()...)
	jar, err := cookiejar.New(nil)
	must(t, err)
	server, err := url.Parse(own.Server.URL())
	must(t, err)
	rec := newRecording(s.direct, server.Host, &http.Client{Jar: jar, Timeout: time.Minute})
	t.Cleanup(rec.client.CloseIdleConnections)
	form := url.Values{"token": {secret}}
	answer, err := rec.client.PostForm(s.direct+"login", form)
	must(t, err)
	must(t, answer.Body.Close())

	s.openDemo()
	s.run(rec.watch("live-queue?queue=orders")) // meanwhile the dashboard collects the points of the chart
	s.awaitDemo()
	rec.private = append(rec.private, secret)
	must(t, rec.crawl("", "queue?queue=orders", "queue?queue=orders&tab=history",
		"queue?queue=orders&tab=settings&change=1&rate=500/s&retry_max=10m",
		"message?queue=orders&id=globex-0", "message?queue=orders&id=slow-1", "dead?queue=orders",
		"dead-letters?queue=orders", "recurrence?queue=reports&name=nightly-report"))

	// The browser shows what a search finds as it arrives, so the page is recorded from there.
	b := s.browser()
	b.logInWith(secret)
	rec.searched = "search?q=" + url.QueryEscape(`"tenant":"acme"`)
	b.open(rec.searched)
	b.sees("All was looked at")
	var text string
	b.eval("document.documentElement.outerHTML", &text)
	must(t, rec.add(rec.searched, text))
	must(t, rec.crawl())
	files, err := rec.write(dir)
	must(t, err)
	t.Logf("%d files, %d pages", files, len(rec.pages))
	const all = "queue message dead dead-letters recurrences callbacks tokens servers search"
	for path := range strings.FieldsSeq(all) {
		if rec.count[path] == 0 {
			t.Errorf("no page %s was recorded", path)
		}
	}
}

// openDemo fills the queues, and starts the bridge, the workers and the producer.
func (s *shop) openDemo() {
	ctx, history := s.T.Context(), 200_000
	for _, queue := range []string{"orders", "reminders", "invoices", "reports", "imports", "partner-calls"} {
		must(s.T, s.op.WritePolicy(ctx, queue, "", admin.PolicyUpdate{History: &history}))
	}
	_, err := s.op.SetPartitions(ctx, "invoices", 4, func(int, int) {})
	must(s.T, err)
	for i := range 1200 {
		s.send("reminders", fmt.Sprintf("reminder-%04d", i), `{"kind":"cart","tenant":"initech"}`,
			bridge.In(time.Minute+time.Duration(i*i)*30*time.Millisecond))
	}
	for i := range 200 {
		tenant := []string{"acme", "initech", "umbrella"}[i%3]
		s.send("invoices", fmt.Sprintf("invoice-%03d", i), fmt.Sprintf(`{"invoice":%d,"tenant":%q}`, i, tenant),
			bridge.In(time.Duration(i)*11*time.Minute), bridge.Header("tenant", tenant))
		s.send("imports", fmt.Sprintf("import-%03d", i), `{"file":"customers.csv"}`)
	}
	_, err = s.op.Pause(ctx, "imports", true)
	must(s.T, err)
	for _, one := range []bridge.Recurrence{
		{Name: "nightly-report", Queue: "reports", Cron: "30 3 * * *", Zone: "Europe/Berlin",
			Payload: []byte(`{"report":"sales"}`)},
		{Name: "month-end", Queue: "reports", Cron: "0 6 1 * *", Zone: "America/New_York", Payload: []byte("{}"),
			Paused: true},
	} {
		_, err := s.op.Recur(ctx, one)
		must(s.T, err)
	}
	_, err = s.op.SetPushTarget(ctx, admin.PushTarget{Queue: "partner-calls", Group: "partner",
		URL: "https://hooks.partner.example/duestream", Rate: "5/s"})
	must(s.T, err)
	s.send("partner-calls", "call-1", `{"call":1}`, bridge.In(time.Hour))
	s.secret("ci-deploy", access.Publish)
	s.secret("night-shift", access.Inspect)

	b, err := bridge.NewBridge(bridge.Config{Redis: s.redis(), Prefix: s.Prefix, Logger: s.log.Logger(),
		Identity: lua.NewIdentity("bridge-1", 1, "0.1.0")})
	must(s.T, err)
	s.run(b.Run)
	done := func(context.Context, *bridge.Message) error { return nil }
	s.demoWorker("orders", "mailer", s.deliver)
	s.demoWorker("orders", "audit", done)
	s.demoWorker("reports", "reporter", done)
	s.demoWorker("invoices", "billing", done)
	for i := range 8 {
		s.send("orders", fmt.Sprint("globex-", i), fmt.Sprintf(`{"order":%d,"tenant":"globex","total":"49.90"}`, 7000+i),
			bridge.Header("tenant", "globex"), bridge.MaxAttempts(1+i%3))
	}
	s.send("orders", "slow-1", `{"order":6999,"tenant":"acme"}`)
	s.run(s.sellDemo)
}

// demoWorker runs a worker whose name says nothing of this machine.
func (s *shop) demoWorker(queue, group string, handler bridge.Handler) {
	s.T.Helper()
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: s.redis(), Prefix: s.Prefix, Queue: queue, Group: group,
		Consumer: group + "-1", Handler: handler, Logger: s.log.Logger()})
	must(s.T, err)
	s.run(w.Run)
}

// sellDemo sends orders, one after the other, each due within 3 s.
func (s *shop) sellDemo(ctx context.Context) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for i := range demoOrders {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		tenant := []string{"acme", "initech", "umbrella", "hooli"}[i%4]
		_, err := s.client.Schedule(ctx, "orders", fmt.Appendf(nil, `{"order":%d,"tenant":%q,"total":"19.90"}`, i, tenant),
			bridge.WithID(fmt.Sprintf("order-%05d", i)), bridge.Header("tenant", tenant),
			bridge.MaxAttempts(3), bridge.In(time.Duration(i*37%3000)*time.Millisecond))
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// awaitDemo waits until most orders were sent, and dead letters are there.
func (s *shop) awaitDemo() {
	s.T.Helper()
	redistest.Eventually(s.T, 2*time.Minute, func() (bool, string) {
		n, err := s.op.DeadLetters().Count(s.T.Context(), "orders", admin.LetterFilter{})
		must(s.T, err)
		last := fmt.Sprintf("order-%05d", demoOrders*9/10)
		_, err = s.op.Story(s.T.Context(), last, admin.StoryOptions{Queues: []string{"orders"}})
		return n >= 4 && err == nil, fmt.Sprintf("%d dead letters, the story of %s: %v", n, last, err)
	})
}

// watch reads a stream of updates until the test ends.
func (r *recording) watch(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+address, nil)
		if err != nil {
			return err
		}
		request.Header.Set("Accept", "text/event-stream")
		streaming := &http.Client{Jar: r.client.Jar, Transport: r.client.Transport} // without its limit of time
		answer, err := streaming.Do(request)
		if err != nil {
			return context.Cause(ctx)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.Body.Close()
	}
}
