package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/tryout"
	"github.com/duestream/duestream/internal/view"
)

const (
	cleanTimeout = time.Minute
	portTries    = 100
)

// rig is a server with a bridge, under a prefix of its own.
type rig struct {
	server   *tryout.Server // nil: the user runs the server
	url      string
	prefix   string
	redis    *bridge.Redis
	opt      rueidis.ClientOption // options of the connection
	info     Server
	untapped string // why programs cannot be watched; "" = they can

	stop  context.CancelFunc
	ended chan error
}

// newRig starts a bridge, on the configured server or on a new one.
func newRig(ctx context.Context, cfg *Config) (*rig, error) {
	r := &rig{url: cfg.URL, prefix: cfg.Prefix + "-" + strconv.FormatUint(rand.Uint64(), 36), ended: make(chan error, 1)}
	if r.url == "" {
		var err error
		if r.server, err = startServer(ctx, cfg.ServerProgram); err != nil {
			return nil, err
		}
		r.url = r.server.URL()
	}
	if err := r.open(ctx, cfg); err != nil {
		return nil, errors.Join(err, r.end())
	}
	return r, nil
}

// startServer starts a server. Its port is outside the range that the system uses for outgoing connections, so that
// no other process takes the port while the server is down.
func startServer(ctx context.Context, program string) (*tryout.Server, error) {
	for try := 1; ; try++ {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		s, err := tryout.Start(ctx, tryout.Config{Program: program, Port: port})
		if err == nil || try == 5 || !strings.Contains(err.Error(), "in use") {
			return s, err
		}
	}
}

// freePort returns a port of 127.0.0.1, between 20000 and 32000, at which nobody listens.
func freePort() (int, error) {
	for range portTries {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			l.Close()
			return port, nil
		}
	}
	return 0, errors.New("no free port between 20000 and 32000 on 127.0.0.1")
}

// open connects to the server, prepares it, and starts a bridge.
func (r *rig) open(ctx context.Context, cfg *Config) (err error) {
	if r.redis, err = bridge.Dial(ctx, r.url, func(opt *rueidis.ClientOption) { r.opt = *opt }); err != nil {
		return err
	}
	op, err := admin.New(r.redis, r.prefix)
	if err != nil {
		return err
	}
	info, err := view.CheckServer(ctx, r.redis.Client)
	if err != nil {
		return err
	}
	r.info = Server{info.Product, info.Version}
	r.untapped = tappable(r.url, r.redis.Client, r.opt)
	if r.server != nil {
		// With everysec, the server delays a write while the disk is slow, and a kill then loses writes that were
		// acknowledged.
		c := r.redis.Client
		always := c.B().ConfigSet().ParameterValue().ParameterValue("appendfsync", "always").Build()
		if err := c.Do(ctx, always).Error(); err != nil {
			return fmt.Errorf("CONFIG SET appendfsync: %w", err)
		}
		if cfg.Level == Complete {
			if _, err := op.LoadFunctions(ctx, "conformance", false); err != nil {
				return err
			}
		}
	}
	if err := op.WriteDefaults(ctx, cfg.policy()); err != nil {
		return err
	}
	b, err := bridge.NewBridge(bridge.Config{Redis: r.redis, Prefix: r.prefix, Defaults: cfg.policy()})
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	go func() { r.ended <- b.Run(serving) }()
	return nil
}

// end stops the bridge, and then the server. A server of the user keeps running, and loses the keys of the prefix.
func (r *rig) end() error {
	var errs []error
	if r.stop != nil {
		r.stop()
		errs = append(errs, <-r.ended)
	}
	if r.redis != nil && r.server == nil {
		errs = append(errs, r.clean())
	}
	if r.redis != nil {
		r.redis.Close()
	}
	if r.server != nil {
		errs = append(errs, r.server.Stop())
	}
	return errors.Join(errs...)
}

// clean removes every key of the prefix, including keys that a program invented. It scans the keys of every server,
// in bounded steps.
func (r *rig) clean() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	c := r.redis.Client
	for _, node := range c.Nodes() {
		for cursor := uint64(0); ; {
			page, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(r.prefix+":*").Count(1000).Build()).AsScanEntry()
			if err != nil {
				return fmt.Errorf("remove the keys of %s, some of which may be left: %w", r.prefix, err)
			}
			for _, key := range page.Elements {
				if err := c.Do(ctx, c.B().Unlink().Key(key).Build()).Error(); err != nil {
					return fmt.Errorf("remove %q: %w", key, err)
				}
			}
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	return nil
}
