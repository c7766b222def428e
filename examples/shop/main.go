// Command shop closes the orders that nobody pays within 30 minutes. README.md explains it.
package main

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/kelseyhightower/envconfig"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/bridge/outbox"
	"github.com/duestream/duestream/bridge/tracing"
)

// Config is read from the environment: SHOP_DATABASE, SHOP_REDIS and so on.
type Config struct {
	Database    string        `required:"true"` // URL of PostgreSQL
	Redis       string        `default:"redis://127.0.0.1:6379"`
	Listen      string        `default:"127.0.0.1:8080"`
	RemindAfter time.Duration `split_words:"true" default:"20m"`
	CloseAfter  time.Duration `split_words:"true" default:"30m"`
}

func main() {
	var cfg Config
	envconfig.MustProcess("shop", &cfg)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.Default()
	db := must(sql.Open("pgx", cfg.Database))
	defer db.Close()
	r := must(bridge.DialWait(ctx, cfg.Redis, log))
	defer r.Close()
	m := must(metrics.New(metrics.Config{Logger: log}))

	shop := &Shop{Config: cfg, DB: db, Outbox: must(outbox.New(outbox.Config{}))}
	shop.Mail = func(_ context.Context, order, text string) error {
		log.Info("mail", "order", order, "text", text)
		return nil
	}
	check(shop.Migrate(ctx))
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" {
		provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(must(otlptracehttp.New(ctx))))
		defer func() { check(provider.Shutdown(context.Background())) }()
		shop.Tracing.Provider = provider
	}

	client := must(bridge.NewClient(bridge.ClientConfig{Redis: r, Observer: m, Logger: log,
		Middleware: []bridge.SendMiddleware{bridge.LogSent(log)}}))
	defer client.Close()
	relay := must(outbox.NewRelay(outbox.RelayConfig{Outbox: shop.Outbox, DB: db, Client: client, Observer: m,
		Logger: log}))
	worker := must(bridge.NewWorker(tracing.Worker(bridge.WorkerConfig{Redis: r, Group: "shop", Mux: shop.Mux(log),
		HandlerTimeout: 30 * time.Second, Observer: m, Logger: log}, shop.Tracing)))
	b := must(bridge.NewBridge(bridge.Config{Redis: r, Observer: m, Logger: log}))
	check(bridge.Run(ctx, shop.Server(cfg.Listen, m), worker.Run, relay.Run, b.Run))
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// check ends the program after an error. Open connections end with the process.
func check(err error) {
	if err != nil {
		slog.Error("the shop ends", "error", err)
		os.Exit(1)
	}
}
