package redistest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// These environment variables choose the server.
const (
	EnvURL      = "DUESTREAM_TEST_REDIS_URL" // use the server at this URL as the shared one
	EnvImage    = "DUESTREAM_TEST_IMAGE"     // use this Docker image for the shared one, or fail
	EnvOwnImage = "DUESTREAM_TEST_OWN_IMAGE" // use this Docker image for the servers of Own, or fail
	EnvOnly     = "DUESTREAM_TEST_ONLY"      // comma-separated: run Each for these images or subtest names, or "all"
)

const howToGetOne = `no Redis server for the tests. Do one of these:
  - install one on the PATH:      apt-get install redis-server   (or valkey-server, or brew install redis)
  - start a Docker engine that has, or can pull, the image redis:7.0
  - point to a server:            export DUESTREAM_TEST_REDIS_URL=redis://127.0.0.1:6379
    (tests use keys of their own there and delete them)
What was tried:
`

var shared = sync.OnceValues(findShared)

// Shared returns the one server that all tests of this process use. The first call starts it. Use names from
// [Server.Prefix] and [Queue], and expect traffic of other tests. Shared fails the test when no server is available,
// and says what to do.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func findShared() (*Server, error) {
	s, err := firstSource()
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	fmt.Fprintf(os.Stderr, "redistest: %s: tests run on %s at %s\n", filepath.Base(os.Args[0]), s.Name(), s.Addr())
	return s, nil
}

// firstSource returns a server from the first source that works. The package comment names the sources in their order.
func firstSource() (*Server, error) {
	if url := os.Getenv(EnvURL); url != "" {
		return fromURL(url)
	}
	s, err := fromEngine(os.Getenv(EnvImage))
	if err == nil {
		return s, nil
	}
	if image := os.Getenv(EnvImage); image != "" {
		return nil, fmt.Errorf("%s=%s: %w", EnvImage, image, err)
	}
	s, errProcess := fromPath("")
	if errProcess == nil {
		return s, nil
	}
	return nil, noServer(err, errProcess)
}

// noServer returns an error that says how to get a server, and what went wrong with each source.
func noServer(tried ...error) error {
	return fmt.Errorf("%s%w", howToGetOne, errors.Join(tried...))
}

func fromURL(url string) (*Server, error) {
	s, err := newServer(url, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EnvURL, err)
	}
	s.origin, s.short = "url", "url"
	if err := s.identify(); err != nil {
		return nil, fmt.Errorf("%s: the server at %s does not answer: %w", EnvURL, s.Addr(), err)
	}
	return s, nil
}

// fromEngine returns a server that runs the image of chooseImage in the local engine.
func fromEngine(preferred string) (*Server, error) {
	image, err := chooseImage(preferred)
	if err != nil {
		return nil, err
	}
	return imageServer(image)
}

var images struct {
	mu      sync.Mutex
	servers map[string]func() (*Server, error)
}

// imageServer returns this process's one server of an image. The first call starts it.
func imageServer(image string) (*Server, error) {
	images.mu.Lock()
	if images.servers == nil {
		images.servers = map[string]func() (*Server, error){}
	}
	get := images.servers[image]
	if get == nil {
		get = sync.OnceValues(func() (*Server, error) {
			return kept(startContainer(image, "", nil))
		})
		images.servers[image] = get
	}
	images.mu.Unlock()
	return get()
}

// fromPath starts the server program on the PATH. If there is none, it tries to install one. Without a data directory
// the server is shared: it gets a temporary directory, and runs until this process ends.
func fromPath(dataDir string, args ...string) (*Server, error) {
	binary := serverBinary()
	if binary == "" {
		if err := installServer(); err != nil {
			return nil, err
		}
		if binary = serverBinary(); binary == "" {
			return nil, errors.New("redis-server was installed but is not on the PATH")
		}
	}
	if dataDir != "" {
		return startProcess(binary, dataDir, args...)
	}
	dir, err := os.MkdirTemp("", "duestream-redistest-")
	if err != nil {
		return nil, err
	}
	AtExit(func() error { return os.RemoveAll(dir) })
	return kept(startProcess(binary, dir, args...))
}

// kept makes a started server end at the end of [Run], and not with a test.
func kept(s *Server, err error) (*Server, error) {
	if err == nil {
		AtExit(s.inst.end)
	}
	return s, err
}
