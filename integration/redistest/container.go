package redistest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest/wire"
)

// container is a server in a Docker container, whose port is bound to a fixed port of 127.0.0.1.
type container struct {
	id      string
	port    int
	dataDir string

	mu     sync.Mutex
	paused bool
}

const startAttempts = 5 // of a server, because another process may take its port first

// startContainer runs an image. With a data directory, the container can be killed and started again, and keeps its
// data there. Without one, the engine removes the container as soon as it ends.
func startContainer(image, dataDir string, args []string, env ...string) (*Server, error) {
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		c := &container{port: port, dataDir: dataDir}
		if err = c.create(image, args, env); err == nil {
			return serverOf(c, port, "docker "+image, shortName(image), image)
		}
		portIsTaken := strings.Contains(err.Error(), "port is already allocated") || strings.Contains(err.Error(), "in use")
		if attempt == startAttempts || !portIsTaken {
			return nil, fmt.Errorf("run %s: %w", image, err)
		}
	}
}

func (c *container) create(image string, args, env []string) (err error) {
	r := wire.Request{
		Op: wire.Create, Subject: image, Name: fmt.Sprintf("duestream-test-%d-%08x", os.Getpid(), rand.Uint32()),
		Port: c.port, Dir: c.dataDir, Env: env, Lifetime: uint(lifetime().Seconds()),
		Args: append([]string{"--save", "", "--appendonly", "no"}, args...),
		Labels: map[string]string{
			wire.LabelExpires: strconv.FormatInt(time.Now().Add(lifetime()).Unix(), 10),
			wire.LabelOwner:   ownerLabel(),
		},
	}
	if c.dataDir != "" {
		r.Args = append(r.Args, "--dir", "/data")
	}
	if c.id, err = ask(r); err != nil {
		return err
	}
	if err := c.ready(); err != nil {
		return errors.Join(err, c.end())
	}
	return nil
}

// ready waits until the server answers.
func (c *container) ready() error {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port))
	return awaitReady(rueidis.ClientOption{InitAddress: []string{addr}}, 0, readyTimeout, nil)
}

// lifetime returns how long a container may live: a minute longer than the timeout of go test, or an hour when there
// is none.
func lifetime() time.Duration {
	if f := flag.Lookup("test.timeout"); f != nil {
		if d, err := time.ParseDuration(f.Value.String()); err == nil && d > 0 {
			return d + time.Minute
		}
	}
	return time.Hour
}

func (c *container) dir() string { return c.dataDir }

func (c *container) ask(op string) error {
	_, err := ask(wire.Request{Op: op, Subject: c.id})
	return err
}

func (c *container) start() error {
	if err := c.ask(wire.Start); err != nil {
		return err
	}
	return c.ready()
}

func (c *container) kill() error { return c.finish(wire.Kill) }
func (c *container) stop() error { return c.finish(wire.Stop) }

func (c *container) finish(op string) error {
	c.mu.Lock()
	paused := c.paused
	c.mu.Unlock()
	if paused { // because the engine does not signal a paused container
		if err := c.resume(); err != nil {
			return err
		}
	}
	return c.ask(op)
}

func (c *container) pause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.ask(wire.Pause)
	c.paused = c.paused || err == nil
	return err
}

func (c *container) resume() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.ask(wire.Resume)
	c.paused = c.paused && err != nil
	return err
}

func (c *container) end() error { return c.ask(wire.End) }
