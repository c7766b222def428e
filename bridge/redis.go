package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/lua"
)

// Redis holds the two clients that the parts of duestream use: one for commands, one for reads that block. Both are safe for
// concurrent use and may be shared by any number of Clients, Workers and Bridges. Close it after all of them have stopped.
type Redis struct {
	Client   rueidis.Client
	Blocking rueidis.Client
}

// Close closes both clients.
func (r *Redis) Close() {
	r.Blocking.Close()
	r.Client.Close()
}

// Dial connects to the server, Sentinel or cluster that a URL names (schemes redis, rediss, valkey, valkeys, unix; more addresses by
// addr=, Sentinel by master_set=). It fails when nothing answers; see DialWait for patience. Further settings are changed by with,
// on both clients; DisableCache and AlwaysPipelining are kept as duestream needs them.
func Dial(ctx context.Context, url string, with ...func(*rueidis.ClientOption)) (*Redis, error) {
	opt, err := rueidis.ParseURL(url)
	if err != nil {
		return nil, &lua.InvalidError{Field: "redis URL", Value: redact(url), Rule: "must be like redis://host:6379 or rediss://user:password@host:6379/0"}
	}
	for _, set := range with {
		set(&opt)
	}
	opt.DisableCache = true // without it every connection needs CLIENT TRACKING, and a permission for it
	opt.ConnLifetime = 0    // an expiring connection would send scripts twice
	// The client library pings every idle connection this often. Calls have deadlines of their own; idle should cost nothing.
	opt.Dialer.KeepAlive = time.Minute
	if opt.Sentinel.MasterSet != "" {
		opt.Sentinel.TopologyRefreshInterval = 5 * time.Second // a missed switch message would leave us on the old master
	} else if err := chooseMode(ctx, &opt); err != nil {
		return nil, fmt.Errorf("bridge: connect to %s: %w", redact(url), lua.Classify("HELLO", err))
	}
	client, err := rueidis.NewClient(opt)
	if err != nil {
		return nil, fmt.Errorf("bridge: connect to %s: %w", redact(url), lua.Classify("connect", err))
	}
	opt.AlwaysPipelining = true // else a context with a deadline does not interrupt a blocking read
	opt.RingScaleEachConn, opt.ReadBufferEachConn, opt.WriteBufferEachConn = 8, 32<<10, 4<<10
	blocking, err := rueidis.NewClient(opt)
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("bridge: connect to %s: %w", redact(url), lua.Classify("connect", err))
	}
	return &Redis{Client: client, Blocking: blocking}, nil
}

// chooseMode asks the server whether it is part of a cluster. Asking, because the client library guesses from commands that some
// servers answer although they are none.
func chooseMode(ctx context.Context, opt *rueidis.ClientOption) error {
	var failed error
	for _, addr := range opt.InitAddress {
		probe := *opt
		probe.InitAddress, probe.ForceSingleClient = []string{addr}, true
		c, err := rueidis.NewClient(probe)
		if err != nil {
			if c != nil {
				c.Close()
			}
			failed = errors.Join(failed, err)
			continue
		}
		hello, err := c.Do(ctx, c.B().Arbitrary("HELLO").Build()).AsMap()
		c.Close()
		mode := ""
		if m, ok := hello["mode"]; ok {
			mode, _ = m.ToString()
		}
		if err == nil && mode == "sentinel" {
			return errors.New("this is a Sentinel: add ?master_set=<name> to the URL")
		}
		opt.ForceSingleClient = err != nil || mode != "cluster"
		if opt.ForceSingleClient {
			opt.InitAddress = []string{addr}
		}
		return nil
	}
	return failed
}

// DialWait is Dial that goes on trying, with backoff, until ctx ends or the error is not one of availability. It logs one line when
// it starts to wait, and one when it is through.
func DialWait(ctx context.Context, url string, log *slog.Logger, with ...func(*rueidis.ClientOption)) (*Redis, error) {
	wait := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond), backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	waiting := false
	for {
		r, err := Dial(ctx, url, with...)
		if err == nil {
			if waiting {
				log.Info("connected to redis")
			}
			return r, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !lua.Temporary(err) {
			return nil, err
		}
		if !waiting {
			waiting = true
			log.Error("cannot connect to redis, and goes on trying", slog.Any("error", err), slog.String("url", redact(url)))
		}
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-timer.C:
		}
	}
}

// redact hides what stands between "//" and "@": a user and a password.
func redact(url string) string {
	scheme, rest, ok := strings.Cut(url, "//")
	if !ok {
		return url
	}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		rest = "…@" + rest[i+1:]
	}
	return scheme + "//" + rest
}
