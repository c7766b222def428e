package browser

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/dashboard"
	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

// shop is a small shop with a bridge, workers and traffic. The pictures of the documents show it.
type shop struct {
	*rig
	partner error // of the deliveries to one partner, which is down
}

// TestPicturesOfAShop writes a picture of each view into the directory of DUESTREAM_TEST_PICTURES: `make pictures`
// calls it with that of the documents. A bridge and workers run meanwhile, and messages come all the time.
func TestPicturesOfAShop(t *testing.T) {
	dir := os.Getenv("DUESTREAM_TEST_PICTURES")
	if dir == "" {
		t.Skip("DUESTREAM_TEST_PICTURES is not set")
	}
	own := queuetest.New(t, redistest.Own(t, "--appendonly", "yes", "--maxmemory", "512mb"))
	own.Prefix = "duestream" // the pages show it
	s := &shop{rig: newRigOf(own, func(cfg *dashboard.Config) { cfg.Version = "0.1.0" }),
		partner: errors.New("POST https://globex.example/v1/orders: 503 Service Unavailable")}
	s.open()
	b, other := s.browser(), s.browser()
	secret := s.secret("ana", access.Verbs()...)
	other.logInWith(secret)
	other.open("queue?queue=orders") // while it is open, the dashboard collects the points of the chart
	b.logInWith(secret)
	s.awaitTraffic()
	must(t, os.MkdirAll(dir, 0o755))
	for _, p := range []struct{ name, page, text string }{
		{"overview", "", "orders"},
		{"queue", "queue?queue=orders", "Messages per second"},
		{"queue-due", "queue?queue=reminders&tab=due", "reminders"},
		{"queue-consumers", "queue?queue=orders&tab=consumers", "mailer"},
		{"queue-latency", "queue?queue=orders&tab=latency", "orders"},
		{"queue-history", "queue?queue=orders&tab=history", "orders"},
		{"queue-settings", "queue?queue=orders&tab=settings", "orders"},
		{"queue-difference", "queue?queue=orders&tab=settings&change=1&rate=500/s&retry_max=10m", "Differences to save"},
		{"queue-partitions", "queue?queue=invoices&tab=partitions", "invoices"},
		{"queue-create", "queue?queue=orders&tab=create", "orders"},
		{"search", "search?q=" + url.QueryEscape(`"tenant":"acme"`), "All was looked at"},
		{"message", "message?queue=orders&id=globex-0", "503 Service Unavailable"},
		{"dead", "dead?queue=orders", "503 Service Unavailable"},
		{"dead-letters", "dead-letters?queue=orders", "globex"},
		{"recurrences", "recurrences", "nightly-report"},
		{"recurrence", "recurrence?queue=reports&name=nightly-report", "nightly-report"},
		{"callbacks", "callbacks", "partner.example"},
		{"tokens", "tokens", "ana"},
		{"system", "servers", "Redis"},
	} {
		b.open(p.page)
		b.sees(p.text)
		s.picture(b, dir, p.name)
	}
	b.open("dead-letters?queue=orders")
	b.click("tbody a")
	b.sees("Failed for good")
	s.picture(b, dir, "dead-letter")
}

// most is the greatest height of a picture, in pixels.
const most = 1400

// onTelephone names the pictures that are also taken on a telephone.
var onTelephone = []string{"overview", "message"}

// picture writes <name>.webp, and of some pages <name>-phone.webp. The documents show the beginning of a long page.
func (s *shop) picture(b *browser, dir, name string) {
	s.T.Helper()
	widths := map[string]int64{name: deskWidth}
	if slices.Contains(onTelephone, name) {
		widths[name+"-phone"] = phoneWidth
	}
	for name, width := range widths {
		b.show(false, width)
		var high int64
		b.eval("document.documentElement.scrollHeight", &high)
		var picture []byte
		b.run(
			emulation.SetDeviceMetricsOverride(width, max(height, min(high, most)), 1, false),
			chromedp.ActionFunc(func(ctx context.Context) (err error) {
				picture, err = page.CaptureScreenshot().WithFormat(page.CaptureScreenshotFormatWebp).WithQuality(85).Do(ctx)
				return err
			}))
		must(s.T, os.WriteFile(filepath.Join(dir, name+".webp"), picture, 0o644))
	}
	b.show(false, deskWidth)
}

// secret adds a token for all queues, and returns its secret.
func (s *shop) secret(name string, verbs ...access.Verb) string {
	s.T.Helper()
	secret, err := s.op.AddToken(s.T.Context(), access.Token{Name: name, Verbs: verbs, Queues: []string{"*"},
		Expires: time.Now().Add(90 * 24 * time.Hour)})
	must(s.T, err)
	return secret
}

// open fills the queues, and starts the bridge, the workers and the producer.
func (s *shop) open() {
	ctx, history := s.T.Context(), 200_000
	for _, queue := range []string{"orders", "reminders", "invoices", "reports", "imports", "partner-calls"} {
		must(s.T, s.op.WritePolicy(ctx, queue, "", admin.PolicyUpdate{History: &history}))
	}
	_, err := s.op.SetPartitions(ctx, "invoices", 4, func(int, int) {})
	must(s.T, err)
	for i := range 6000 {
		far := time.Duration(rand.ExpFloat64() * float64(12*time.Hour))
		s.send("reminders", fmt.Sprintf("reminder-%04d", i), `{"kind":"cart","tenant":"initech"}`, bridge.In(time.Minute+far))
	}
	for i := range 400 {
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
		{Name: "heartbeat", Queue: "reports", Every: 5 * time.Second, Payload: []byte("beat")},
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

	s.bridge()
	s.worker("orders", "mailer", s.deliver)
	s.worker("orders", "audit", func(context.Context, *bridge.Message) error { return nil })
	s.worker("reports", "reporter", func(context.Context, *bridge.Message) error { return nil })
	s.worker("invoices", "billing", func(context.Context, *bridge.Message) error { return nil })
	for i := range 12 {
		s.send("orders", fmt.Sprint("globex-", i), fmt.Sprintf(`{"order":%d,"tenant":"globex","total":"49.90"}`, 7000+i),
			bridge.Header("tenant", "globex"), bridge.MaxAttempts(1+i%3))
	}
	s.send("orders", "slow-1", `{"order":6999,"tenant":"acme"}`)
	s.run(s.sell)
}

// deliver is the handler of the shop's mails: one message hangs, and one partner is down.
func (s *shop) deliver(ctx context.Context, m *bridge.Message) error {
	switch {
	case m.ID == "slow-1":
		<-ctx.Done()
		return ctx.Err()
	case m.Headers["tenant"] == "globex":
		return s.partner
	}
	return nil
}

// sell sends orders until the test ends, some of them due later.
func (s *shop) sell(ctx context.Context) error {
	ticker := time.NewTicker(15 * time.Millisecond)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		tenant := []string{"acme", "initech", "umbrella", "hooli"}[rand.IntN(4)]
		if i%200 == 0 {
			tenant = "globex"
		}
		_, err := s.client.Schedule(ctx, "orders", fmt.Appendf(nil, `{"order":%d,"tenant":%q,"total":"19.90"}`, i, tenant),
			bridge.WithID(fmt.Sprintf("order-%05d", i)), bridge.Header("tenant", tenant),
			bridge.MaxAttempts(3), bridge.In(time.Duration(rand.IntN(3000))*time.Millisecond))
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// awaitTraffic waits until some thousand messages were sent, and dead letters are there.
func (s *shop) awaitTraffic() {
	s.T.Helper()
	redistest.Eventually(s.T, time.Minute, func() (bool, string) {
		n, err := s.op.DeadLetters().Count(s.T.Context(), "orders", admin.LetterFilter{})
		must(s.T, err)
		_, err = s.op.Story(s.T.Context(), "order-04000", admin.StoryOptions{Queues: []string{"orders"}})
		return n >= 4 && err == nil, fmt.Sprintf("%d dead letters, the story of order-04000: %v", n, err)
	})
}
