package bridge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/observe"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/shareddial"
	"github.com/duestream/duestream/lua"
)

// Redis holds two clients of the Redis library: one for commands, one for blocking reads. It is safe for concurrent
// use. Any number of Clients, Workers and Bridges may share it. Close it after all of them have stopped.
type Redis struct {
	Client   rueidis.Client
	Blocking rueidis.Client

	connect *rueidis.ClientOption // the options that Dial used; nil when Dial did not make the clients

	mu       sync.Mutex
	policies map[string]*policy.Reader // by prefix; shared by all Workers
}

// Connect returns the options that Dial connected with, for a caller that opens its own connection. It is nil if Dial
// did not make the clients. The caller must not change it.
func (r *Redis) Connect() *rueidis.ClientOption { return r.connect }

// policyReader returns the reader of policies of a prefix. The reader keeps the defaults as long as r exists, so a new
// worker knows the defaults that an earlier one has read. If r is nil, it returns nil.
func (r *Redis) policyReader(prefix string) *policy.Reader {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.policies[prefix] == nil {
		if r.policies == nil {
			r.policies = map[string]*policy.Reader{}
		}
		r.policies[prefix] = policy.NewReader(prefix)
	}
	return r.policies[prefix]
}

// observed returns both clients. If there is an Observer, they report their calls to it. A client that is missing is
// nil; if r is nil, both are.
func (r *Redis) observed(o Observer) (client, blocking rueidis.Client) {
	if r == nil {
		return nil, nil
	}
	if r.Client != nil {
		client = observe.Wrap(r.Client, o)
	}
	if r.Blocking != nil {
		blocking = observe.Wrap(r.Blocking, o)
	}
	return client, blocking
}

// Close closes both clients.
func (r *Redis) Close() {
	if r.Blocking != nil {
		r.Blocking.Close()
	}
	if r.Client != nil {
		r.Client.Close()
	}
}

// Dial connects to the server, Sentinel or cluster of a URL. If no server answers, it fails; DialWait waits instead.
//
//	redis://user:password@host:6379/0             one server, or any node of a cluster; also valkey://, unix:///path
//	redis://host-1:6379?addr=host-2:6379          a further node of a cluster, used if the first is unavailable
//	redis://host-1:26379?master_set=main          Sentinel; user and password in the URL are for the Redis servers
//	   &sentinel_user=u&sentinel_password=p       user and password for the sentinels
//	rediss://host:6380                            TLS; each server's certificate must have the host name of its address
//	   ?ca=file&cert=file&key=file                trust only this CA, not those of the system; send this certificate
//	   &server_name=name                          the certificate of every server must have this name instead
//
// The functions in with change further settings of both clients. After them Dial sets DisableCache, ConnLifetime,
// Dialer.KeepAlive and AlwaysPipelining itself. Errors: ErrInvalid for the URL and its files, ErrUnavailable,
// ErrDenied, ErrUntrusted.
//
// A caller whose context is cancelled while a client connects does not disturb other callers of the client.
func Dial(ctx context.Context, url string, with ...func(*rueidis.ClientOption)) (*Redis, error) {
	opt, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	for _, set := range with {
		set(&opt)
	}
	opt.DisableCache = true // otherwise every connection sends CLIENT TRACKING, and needs a permission for it
	opt.ConnLifetime = 0    // no limit, because a connection that expires would send scripts twice
	// The client library pings every idle connection at this interval. Calls have deadlines of their own, so pings
	// may be rare: idle should cost nothing.
	opt.Dialer.KeepAlive = time.Minute
	if opt.Sentinel.MasterSet != "" {
		if opt.Sentinel.TLSConfig == nil {
			opt.Sentinel.TLSConfig = opt.TLSConfig
		}
		// Without this a lost +switch-master message would leave the client on the old master.
		opt.Sentinel.TopologyRefreshInterval = 5 * time.Second
	} else if err := chooseMode(ctx, &opt); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", Redact(url), lua.Classify("HELLO", explain(ctx, opt, err)))
	}
	client, err := rueidis.NewClient(opt)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", Redact(url), lua.Classify("connect", explain(ctx, opt, err)))
	}
	connect := opt
	opt.AlwaysPipelining = true // else a context with a deadline does not interrupt a blocking read
	opt.RingScaleEachConn, opt.ReadBufferEachConn, opt.WriteBufferEachConn = 8, 32<<10, 4<<10
	blocking, err := rueidis.NewClient(opt)
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("connect to %s: %w", Redact(url), lua.Classify("connect", err))
	}
	return &Redis{Client: shareddial.Wrap(client), Blocking: shareddial.Wrap(blocking), connect: &connect}, nil
}

// chooseMode asks the server whether it is part of a cluster. The client library would guess that from commands that
// some servers answer although they are no cluster.
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

// explain finds out why a TLS connection broke. A server that does not accept our certificate sends the reason after
// the handshake and closes the connection. A client that is writing then sees only a broken connection. A client that
// only reads gets the reason, so explain connects once more and reads.
func explain(ctx context.Context, opt rueidis.ClientOption, err error) error {
	if opt.TLSConfig == nil || opt.DialCtxFn != nil {
		return err
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	dialer := tls.Dialer{NetDialer: &opt.Dialer, Config: opt.TLSConfig}
	conn, failed := dialer.DialContext(ctx, "tcp", opt.InitAddress[0])
	if failed == nil {
		defer conn.Close()
		deadline, _ := ctx.Deadline()
		_ = conn.SetReadDeadline(deadline)
		_, failed = conn.Read(make([]byte, 1))
	}
	if errors.Is(lua.Classify("", failed), lua.ErrUntrusted) {
		return failed
	}
	return err
}

// DialWait is Dial with retries. It retries temporary errors, with backoff, until ctx ends. It logs one line when it
// starts to wait and one when it has connected; a nil log discards them.
func DialWait(ctx context.Context, url string, log *slog.Logger, with ...func(*rueidis.ClientOption)) (*Redis, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	wait := backoff.NewExponentialBackOff(backoff.WithInitialInterval(100*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
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
			log.Error("cannot connect to redis, and goes on trying", slog.Any("error", err), slog.String("url", Redact(url)))
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
