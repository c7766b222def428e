package redistest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/shareddial"
)

// Server is a Redis or Valkey server that tests may use. All methods are safe for concurrent use.
//
// Kill, Stop, Start, Pause and Resume work only on servers from [Own]. On any other server they panic, because other
// tests use it at the same time. They report errors with Errorf of the test that owns the server, so they may be
// called from any goroutine.
type Server struct {
	url     string
	opt     rueidis.ClientOption
	product string // "redis" or "valkey"
	version string
	origin  string // "process", "docker redis:7.0", "url"
	short   string // name of the subtest in Each
	image   string // the Docker image, or empty if it is not a container

	inst instance   // nil if this process did not start the server
	tb   testing.TB // the test that owns the server; nil for shared servers
}

// instance is a server that this process started: a child process or a container.
type instance interface {
	start() error
	kill() error
	stop() error
	pause() error
	resume() error
	// end removes the server for good. It may be called in any state and more than once.
	end() error
	dir() string
}

// At wraps a server that somebody else runs, for example an in-process one, so that the helpers of this package work
// on it. It fails the test when the URL cannot be parsed. It does not connect.
func At(t testing.TB, url, name string) *Server {
	t.Helper()
	s, err := newServer(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.origin, s.short = name, name
	return s
}

func newServer(url string, inst instance) (*Server, error) {
	opt, err := rueidis.ParseURL(url)
	if err != nil {
		// The parser's error repeats the URL, which may contain a password.
		return nil, errors.New("redistest: the server URL is not understood; it should look like redis://127.0.0.1:6379")
	}
	return &Server{url: url, opt: opt, product: "server", inst: inst}, nil
}

// Addr returns host:port.
func (s *Server) Addr() string { return s.opt.InitAddress[0] }

// URL returns the address in the form that rueidis.ParseURL and DUESTREAM_REDIS_URL take, with the password if there
// is one.
func (s *Server) URL() string { return s.url }

// Version returns the server's own version, for example "7.0.15" or, for Valkey, "8.1.1".
func (s *Server) Version() string { return s.version }

// Name returns a name for people, for example "redis 7.0.15 (process)".
func (s *Server) Name() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s (%s)", s.product, s.version, s.origin)), " ")
}

// Valkey reports whether the server is Valkey and not Redis.
func (s *Server) Valkey() bool { return s.product == "valkey" }

// Client returns a client without client-side caching, which is closed when the test ends. The functions in opts
// change its options first. It fails the test when the server does not answer.
func (s *Server) Client(t testing.TB, opts ...func(*rueidis.ClientOption)) rueidis.Client {
	t.Helper()
	return newClient(t, s.opt, opts)
}

func newClient(t testing.TB, opt rueidis.ClientOption, opts []func(*rueidis.ClientOption)) rueidis.Client {
	t.Helper()
	opt.DisableCache = true
	for _, o := range opts {
		o(&opt)
	}
	c, err := rueidis.NewClient(opt)
	if err != nil {
		if c != nil {
			c.Close()
		}
		t.Fatalf("redistest: connect to %s: %v", strings.Join(opt.InitAddress, ","), err)
	}
	t.Cleanup(c.Close)
	return shareddial.Wrap(c)
}

// Kill ends the server with SIGKILL and returns when it has ended. Its data directory stays.
func (s *Server) Kill() { s.control("kill", instance.kill) }

// Stop ends the server with SIGTERM, so that it saves what it is configured to save, and returns when it has ended.
func (s *Server) Stop() { s.control("stop", instance.stop) }

// Start starts a killed or stopped server again, on the same address with the same data directory. It returns when the
// server has loaded its data and answers PING with PONG.
func (s *Server) Start() { s.control("start", instance.start) }

// Pause stops the server's process (SIGSTOP): connections stay open and nothing answers.
func (s *Server) Pause() { s.control("pause", instance.pause) }

// Resume lets a paused server continue.
func (s *Server) Resume() { s.control("resume", instance.resume) }

// Dir returns the server's data directory, which is removed at the end of the test. It is empty for shared servers.
func (s *Server) Dir() string {
	if s.inst == nil {
		return ""
	}
	return s.inst.dir()
}

// control does something to a server that its test owns, and panics for any other server. verb is for messages.
func (s *Server) control(verb string, do func(instance) error) {
	if s.tb == nil || s.inst == nil {
		panic("redistest: " + verb + " of a server that other tests use; take one with Own")
	}
	s.tb.Helper()
	if err := do(s.inst); err != nil {
		s.tb.Errorf("redistest: %s %s: %v", verb, s.Name(), err)
	}
}
