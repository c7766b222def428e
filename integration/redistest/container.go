package redistest

import (
	"context"
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

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
	"github.com/redis/rueidis"
)

const redisPort = docker.Port("6379/tcp")

// container is a server in a Docker container whose port is bound to a fixed port of 127.0.0.1.
type container struct {
	pool     *dockertest.Pool
	resource *dockertest.Resource
	port     int
	dataDir  string

	mu     sync.Mutex
	paused bool
}

// startContainer runs an image. With a data directory the container can be killed and started again, and keeps its data
// there; without one, the engine removes it as soon as it ends.
func startContainer(pool *dockertest.Pool, image, dataDir string, args []string, env ...string) (*Server, error) {
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		c := &container{pool: pool, port: port, dataDir: dataDir}
		if err = c.create(image, args, env); err == nil {
			return serverOf(c, port, "docker "+image, shortName(image), image)
		}
		if attempt == 5 || !strings.Contains(err.Error(), "port is already allocated") &&
			!strings.Contains(err.Error(), "in use") {
			return nil, fmt.Errorf("run %s: %w", image, err)
		}
	}
}

// shortName is the image without its account, because a slash in a subtest's name would split it for -run.
func shortName(image string) string { return image[strings.LastIndex(image, "/")+1:] }

func (c *container) create(image string, args, env []string) error {
	repository, tag := splitImage(image)
	name := fmt.Sprintf("duestream-test-%d-%08x", os.Getpid(), rand.Uint32())
	opts := &dockertest.RunOptions{
		Name: name, Repository: repository, Tag: tag,
		Cmd: append([]string{"--save", "", "--appendonly", "no"}, args...), Env: env,
		Labels: map[string]string{
			labelExpires: strconv.FormatInt(time.Now().Add(lifetime()).Unix(), 10),
			labelOwner:   ownerLabel(),
		},
		PortBindings: map[docker.Port][]docker.PortBinding{
			redisPort: {{HostIP: "127.0.0.1", HostPort: strconv.Itoa(c.port)}},
		},
	}
	if c.dataDir != "" {
		opts.Mounts = []string{c.dataDir + ":/data"}
		opts.Cmd = append(opts.Cmd, "--dir", "/data")
		opts.User = fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
	}
	resource, err := c.pool.RunWithOptions(opts, func(h *docker.HostConfig) {
		h.AutoRemove = c.dataDir == ""
		h.PublishAllPorts = false
	})
	if err != nil {
		// A container that could not start stays created.
		_ = c.pool.Client.RemoveContainer(docker.RemoveContainerOptions{ID: name, Force: true, RemoveVolumes: true})
		return err
	}
	c.resource = resource
	if err := c.ready(); err != nil {
		return errors.Join(err, c.end())
	}
	return nil
}

// ready arms the container's end and waits until the server answers.
func (c *container) ready() error {
	if err := c.resource.Expire(uint(lifetime().Seconds())); err != nil {
		return err
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port))
	return awaitReady(rueidis.ClientOption{InitAddress: []string{addr}}, 0, readyTimeout, nil)
}

// lifetime is how long a container may live: a minute longer than go test lets this process live, an hour when it sets
// no limit.
func lifetime() time.Duration {
	if f := flag.Lookup("test.timeout"); f != nil {
		if d, err := time.ParseDuration(f.Value.String()); err == nil && d > 0 {
			return d + time.Minute
		}
	}
	return time.Hour
}

func (c *container) dir() string { return c.dataDir }

func (c *container) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := c.pool.Client.StartContainerWithContext(c.resource.Container.ID, nil, ctx); err != nil {
		return err
	}
	return c.ready()
}

func (c *container) kill() error { return c.finish(docker.SIGKILL) }
func (c *container) stop() error { return c.finish(docker.SIGTERM) }

// finish sends the signal and waits until the engine says that the container is not running.
func (c *container) finish(sig docker.Signal) error {
	if err := c.unpauseIfPaused(); err != nil { // the engine does not signal a paused container
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	id := c.resource.Container.ID
	if err := c.pool.Client.KillContainer(docker.KillContainerOptions{ID: id, Signal: sig, Context: ctx}); err != nil {
		return err
	}
	_, err := c.pool.Client.WaitContainerWithContext(id, ctx)
	return err
}

func (c *container) pause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.pool.Client.PauseContainer(c.resource.Container.ID)
	c.paused = c.paused || err == nil
	return err
}

func (c *container) resume() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.pool.Client.UnpauseContainer(c.resource.Container.ID)
	c.paused = c.paused && err != nil
	return err
}

func (c *container) unpauseIfPaused() error {
	c.mu.Lock()
	paused := c.paused
	c.mu.Unlock()
	if !paused {
		return nil
	}
	return c.resume()
}

func (c *container) end() error {
	err := c.pool.Purge(c.resource)
	if gone := new(docker.NoSuchContainer); errors.As(err, &gone) {
		return nil
	}
	return err
}
