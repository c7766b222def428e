package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"

	"github.com/duestream/duestream/integration/redistest/wire"
)

const (
	engineTimeout = 3 * time.Second
	pullTimeout   = time.Minute
	stopTimeout   = 20 * time.Second
	redisPort     = docker.Port("6379/tcp")
)

// engine is the local Docker engine, and the containers that this process has started in it.
type engine struct {
	once sync.Once
	pool *dockertest.Pool
	err  error

	mu  sync.Mutex
	all map[string]*dockertest.Resource
}

// connect returns nil if there is a local engine. Only the first call looks for one.
func (e *engine) connect() error {
	e.once.Do(func() { e.pool, e.err = findEngine() })
	return e.err
}

func findEngine() (*dockertest.Pool, error) {
	if err := localEngine(); err != nil {
		return nil, err
	}
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, fmt.Errorf("no Docker engine: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	if err := pool.Client.PingWithContext(ctx); err != nil {
		return nil, fmt.Errorf("no Docker engine answers: %w", err)
	}
	removeStale(pool)
	return pool, nil
}

// localEngine refuses an engine on another machine, because its containers cannot be bound to our 127.0.0.1.
func localEngine() error {
	u, err := url.Parse(os.Getenv("DOCKER_HOST"))
	if err != nil {
		return fmt.Errorf("DOCKER_HOST is not understood: %w", err)
	}
	host := u.Hostname()
	if u.Scheme == "" || u.Scheme == "unix" || host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("DOCKER_HOST is on another machine (%s), tests use a local engine only", host)
}

// has returns "yes" if an image is there.
func (e *engine) has(image string) string {
	if _, err := e.pool.Client.InspectImage(image); err != nil {
		return ""
	}
	return "yes"
}

func (e *engine) pull(image string) error {
	ctx, cancel := context.WithTimeout(context.Background(), pullTimeout)
	defer cancel()
	repository, tag := splitImage(image)
	opts := docker.PullImageOptions{Repository: repository, Tag: tag, Context: ctx}
	return e.pool.Client.PullImage(opts, docker.AuthConfiguration{})
}

func splitImage(image string) (repository, tag string) {
	slash := strings.LastIndex(image, "/")
	if colon := strings.LastIndex(image, ":"); colon > slash {
		return image[:colon], image[colon+1:]
	}
	return image, "latest"
}

// create runs an image. With a directory, the container can be killed and started again. Without one, the engine
// removes the container as soon as it ends.
func (e *engine) create(r wire.Request) (string, error) {
	repository, tag := splitImage(r.Subject)
	opts := &dockertest.RunOptions{
		Name: r.Name, Repository: repository, Tag: tag, Cmd: r.Args, Env: r.Env, Labels: r.Labels,
		PortBindings: map[docker.Port][]docker.PortBinding{redisPort: {{HostIP: "127.0.0.1", HostPort: strconv.Itoa(r.Port)}}},
	}
	if r.Dir != "" {
		opts.Mounts = []string{r.Dir + ":/data"}
		opts.User = fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
	}
	resource, err := e.pool.RunWithOptions(opts, func(h *docker.HostConfig) {
		h.AutoRemove = r.Dir == ""
		h.PublishAllPorts = false
	})
	if err != nil {
		// A container that could not start remains in the state "created".
		_ = e.pool.Client.RemoveContainer(docker.RemoveContainerOptions{ID: r.Name, Force: true, RemoveVolumes: true})
		return "", err
	}
	id := resource.Container.ID
	if err := resource.Expire(r.Lifetime); err != nil {
		return "", errors.Join(err, e.pool.Purge(resource))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		e.all = map[string]*dockertest.Resource{}
	}
	e.all[id] = resource
	return id, nil
}

func (e *engine) control(op, id string) error {
	e.mu.Lock()
	resource := e.all[id]
	e.mu.Unlock()
	if resource == nil {
		return fmt.Errorf("no container %s of ours", id)
	}
	c := e.pool.Client
	switch op {
	case wire.Start:
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		return c.StartContainerWithContext(id, nil, ctx)
	case wire.Kill:
		return e.finish(id, docker.SIGKILL)
	case wire.Stop:
		return e.finish(id, docker.SIGTERM)
	case wire.Pause:
		return c.PauseContainer(id)
	case wire.Resume:
		return c.UnpauseContainer(id)
	case wire.End:
		err := e.pool.Purge(resource)
		if gone := new(docker.NoSuchContainer); errors.As(err, &gone) {
			return nil
		}
		return err
	}
	return fmt.Errorf("unknown request %q", op)
}

// finish sends a signal to a container and waits until the engine says that it no longer runs.
func (e *engine) finish(id string, sig docker.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := e.pool.Client.KillContainer(docker.KillContainerOptions{ID: id, Signal: sig, Context: ctx}); err != nil {
		return err
	}
	_, err := e.pool.Client.WaitContainerWithContext(id, ctx)
	return err
}

// removeStale removes the containers that killed test processes have left, as far as it can: those whose time has
// expired, and those whose test process was on this host and has ended.
func removeStale(pool *dockertest.Pool) {
	list, err := pool.Client.ListContainers(docker.ListContainersOptions{
		All: true, Filters: map[string][]string{"label": {wire.LabelExpires}},
	})
	if err != nil {
		return
	}
	host, _ := os.Hostname()
	for _, c := range list {
		expires, err := strconv.ParseInt(c.Labels[wire.LabelExpires], 10, 64)
		stale := err != nil || time.Now().Unix() > expires
		if pid, ok := strings.CutPrefix(c.Labels[wire.LabelOwner], host+"/"); ok {
			n, err := strconv.Atoi(pid)
			stale = stale || err == nil && errors.Is(syscall.Kill(n, 0), syscall.ESRCH)
		}
		if stale {
			_ = pool.Client.RemoveContainer(docker.RemoveContainerOptions{ID: c.ID, Force: true, RemoveVolumes: true})
		}
	}
}
