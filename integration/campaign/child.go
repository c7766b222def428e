package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/duestream/duestream/bridge"
)

// envPart makes the test binary run one part of the system in a process of its own. Its value is a part as JSON.
const envPart = "DUESTREAM_CAMPAIGN_PART"

// abandoned is the exit status of a worker that was told to stop and could not settle its messages.
const abandoned = 4

// Roles of parts.
const (
	roleProducer = "producer"
	roleBridge   = "bridge"
	roleWorker   = "worker"
	roleOperator = "operator"
	rolePlain    = "plain" // XREADGROUP and XACK only
	roleHolder   = "holder"

	roleGateway      = "gateway"
	roleHTTPProducer = "http-producer" // only through gateways
	roleHTTPWorker   = "http-worker"   // only through gateways
)

// part is the configuration of a child process.
type part struct {
	Role, Name, Group string
	URL, Prefix       string
	Ledger            string
	Seed              uint64
	Visibility        time.Duration
	Rate              float64 // messages per second of a producer
	Patience          float64
	Concurrency       int
	Partitions        int      // partitions of the main queue, for a plain worker
	Replicas          int      // replicas that a producer waits for
	Index             int      // index among the parts of its role and group
	Endless           bool     // also produces messages whose handlers do not end by themselves
	Gateways          []string // addresses of gateways
	Secret            string   // token for the gateways
	Rules             *Rules   // for a program in another language
}

// policy has short times, so that a campaign sees many visibility timeouts. Faults cannot use up MaxAttempts.
func policy(visibility time.Duration) bridge.Policy {
	return bridge.Policy{VisibilityTimeout: visibility, MaxAttempts: 40, RetryMin: 30 * time.Millisecond,
		RetryMax: 500 * time.Millisecond}
}

// Child runs this process as a part if envPart is set, and returns its exit status. It must be called before any
// test.
func Child() (status int, isChild bool) {
	text := os.Getenv(envPart)
	if text == "" {
		return 0, false
	}
	var p part
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		return 2, true
	}
	switch err := p.run(); {
	case errors.Is(err, bridge.ErrAbandoned):
		return abandoned, true
	case err != nil:
		fmt.Fprintf(os.Stderr, "campaign: %s: %v\n", p.Name, err)
		return 1, true
	}
	return 0, true
}

func (p part) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := openLedger(p.Ledger, p.Name, p.Role, p.Group)
	if err != nil {
		return err
	}
	go pulse(l)
	switch p.Role {
	case rolePlain:
		return p.plain(ctx, l)
	case roleHTTPWorker:
		return p.workOverHTTP(ctx, l)
	case roleHTTPProducer:
		p.produceBy(ctx, newHTTPClient(p), l)
		return nil
	}
	level := slog.LevelError + 1
	if os.Getenv("DUESTREAM_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("part", p.Name)
	r, err := bridge.DialWait(ctx, p.URL, log)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer r.Close()
	switch p.Role {
	case roleProducer:
		return p.produce(ctx, r, l, log)
	case roleBridge:
		b, err := bridge.NewBridge(bridge.Config{
			Redis:    r,
			Prefix:   p.Prefix,
			Defaults: policy(p.Visibility),
			Logger:   log,
		})
		if err != nil {
			return err
		}
		return b.Run(ctx)
	case roleWorker:
		return p.work(ctx, r, l, log)
	case roleGateway:
		return p.answer(ctx, r, log)
	case roleOperator:
		return p.operate(ctx, r, l)
	case roleHolder:
		return p.hold(ctx, r, l, log)
	}
	return fmt.Errorf("unknown role %q", p.Role)
}

const (
	pulseEvery = 20 * time.Millisecond
	pulseGap   = 250 * time.Millisecond // a longer gap between two beats is a stall
)

// pulse records when this process did not run, because a fault stopped it or the machine was overloaded. A process
// that does not run cannot extend its messages, so the auditor must know.
func pulse(l *ledger) {
	beat(func(from time.Time) { l.must(line{verbStall, "-", []any{from.UnixMicro()}}) })
}

func beat(stalled func(from time.Time)) {
	ticker := time.NewTicker(pulseEvery)
	defer ticker.Stop()
	for last := time.Now(); ; {
		<-ticker.C
		now := time.Now()
		if now.Sub(last) > pulseGap {
			stalled(last)
		}
		last = now
	}
}
