package redistest

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
)

const (
	engineTimeout = 3 * time.Second
	pullTimeout   = time.Minute
	pullRetry     = 10 * time.Minute // after a failed pull, other test processes do not try again for so long
	labelExpires  = "duestream.redistest.expires"
	labelOwner    = "duestream.redistest.owner"
)

// Images are the server images that [Each] looks for, the preferred one first. All are optional; docs/OPERATIONS.md tells how
// they differ.
func Images() []string {
	return []string{"redis:7.0", "redis:8.0", "valkey/valkey:8.1", "valkey/valkey:9.1", "redis:8.6", "valkey/valkey:8.0"}
}

// engine is the connection to the local Docker engine, made at most once per process.
var engine = sync.OnceValues(func() (*dockertest.Pool, error) {
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
	atExit(func() error {
		pool.Client.HTTPClient.CloseIdleConnections()
		return nil
	})
	removeStale(pool)
	return pool, nil
})

// localEngine refuses an engine on another machine: its containers cannot be bound to our 127.0.0.1.
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

func hasImage(pool *dockertest.Pool, image string) bool {
	_, err := pool.Client.InspectImage(image)
	return err == nil
}

// chooseImage returns the preferred image when it is there, else another one that is, else one that could be pulled.
func chooseImage(pool *dockertest.Pool, preferred string) (string, error) {
	if preferred != "" {
		if hasImage(pool, preferred) {
			return preferred, nil
		}
		return preferred, pull(pool, preferred)
	}
	for _, image := range Images() {
		if hasImage(pool, image) {
			return image, nil
		}
	}
	image := Images()[0]
	return image, pull(pool, image)
}

// pull fetches an image within pullTimeout. Test processes take turns, and a failure is remembered for all of them, so
// that a machine without a registry does not pay for it in every package.
func pull(pool *dockertest.Pool, image string) error {
	return withMachineLock(func() error {
		if hasImage(pool, image) {
			return nil
		}
		failed := machineFile("no-" + sanitised(image))
		if st, err := os.Stat(failed); err == nil && time.Since(st.ModTime()) < pullRetry {
			return fmt.Errorf("image %s is not there and could not be pulled at %s; that is tried again %v later or when %s is "+
				"removed",
				image, st.ModTime().Format(time.TimeOnly), pullRetry, failed)
		}
		ctx, cancel := context.WithTimeout(context.Background(), pullTimeout)
		defer cancel()
		repository, tag := splitImage(image)
		opts := docker.PullImageOptions{Repository: repository, Tag: tag, Context: ctx}
		if err := pool.Client.PullImage(opts, docker.AuthConfiguration{}); err != nil {
			_ = os.WriteFile(failed, []byte(err.Error()), 0o600) // only saves time
			return fmt.Errorf("pull %s: %w", image, err)
		}
		return nil
	})
}

func splitImage(image string) (repository, tag string) {
	slash := strings.LastIndex(image, "/")
	if colon := strings.LastIndex(image, ":"); colon > slash {
		return image[:colon], image[colon+1:]
	}
	return image, "latest"
}

// ownerLabel names this test process.
func ownerLabel() string {
	host, _ := os.Hostname()
	return host + "/" + strconv.Itoa(os.Getpid())
}

// removeStale removes containers of test processes that were killed, as far as it can: expired ones, and those whose
// process on this host is gone.
func removeStale(pool *dockertest.Pool) {
	list, err := pool.Client.ListContainers(docker.ListContainersOptions{
		All: true, Filters: map[string][]string{"label": {labelExpires}},
	})
	if err != nil {
		return
	}
	host, _ := os.Hostname()
	for _, c := range list {
		expires, err := strconv.ParseInt(c.Labels[labelExpires], 10, 64)
		stale := err != nil || time.Now().Unix() > expires
		if pid, ok := strings.CutPrefix(c.Labels[labelOwner], host+"/"); ok {
			n, err := strconv.Atoi(pid)
			stale = stale || err == nil && errors.Is(syscall.Kill(n, 0), syscall.ESRCH)
		}
		if stale {
			_ = pool.Client.RemoveContainer(docker.RemoveContainerOptions{ID: c.ID, Force: true, RemoveVolumes: true})
		}
	}
}
