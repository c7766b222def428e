package redistest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/rueidis"
)

// node says how one server of a topology is started. Fields that are zero are left out.
type node struct {
	args   []string             // {port} and {bus} stand for free ports
	config string               // the content of a configuration file
	opt    rueidis.ClientOption // the user, password and TLS settings that the tests use
	scheme string               // of its URL; default redis
}

// startNode starts a child process for one test: the test may kill it, and it ends with the test.
func startNode(t testing.TB, n node) *Server {
	t.Helper()
	s, err := tryNode(t, n)
	if err != nil {
		t.Fatalf("redistest: this test needs a server that it may kill: %v", err)
	}
	s.owned(t)
	return s
}

// tryNode starts a server on a free port, and tries again on another one if the port is taken meanwhile.
func tryNode(t testing.TB, n node) (*Server, error) {
	if serverBinary() == "" {
		if err := installServer(); err != nil {
			return nil, err
		}
	}
	for attempt := 1; ; attempt++ {
		dir := t.TempDir()
		s, err := launch(dir, n)
		if err == nil || attempt == startAttempts || !strings.Contains(err.Error(), "in use") {
			return s, err
		}
	}
}

func launch(dir string, n node) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	bus, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &process{binary: serverBinary(), port: port, dataDir: dir, opt: n.opt}
	fill := strings.NewReplacer("{port}", strconv.Itoa(port), "{bus}", strconv.Itoa(bus))
	for _, arg := range n.args {
		p.args = append(p.args, fill.Replace(arg))
	}
	if n.config != "" {
		p.config = filepath.Join(dir, "server.conf")
		err = errors.Join(err, os.WriteFile(p.config, []byte(n.config), 0o600))
	}
	if err == nil {
		err = p.start()
	}
	if err != nil {
		return nil, err
	}
	opt := n.opt
	opt.InitAddress = []string{"127.0.0.1:" + strconv.Itoa(port)}
	scheme := n.scheme
	if scheme == "" {
		scheme = "redis"
	}
	s := &Server{url: address(scheme, opt.Username, opt.Password, opt.InitAddress[0]), opt: opt, product: "server", inst: p,
		origin: "process", short: "process"}
	if err := s.identify(); err != nil {
		return nil, errors.Join(err, p.end())
	}
	return s, nil
}

// address returns a URL. It has a user only if there is a password.
func address(scheme, user, password, hostPort string) string {
	if password != "" {
		hostPort = user + ":" + password + "@" + hostPort
	}
	return scheme + "://" + hostPort
}

// front returns a server that stands for a whole topology: it has the topology's URL, and the product and version of
// like. It cannot be killed.
func front(t testing.TB, url, name string, like *Server) *Server {
	t.Helper()
	s := At(t, url, name)
	s.tb, s.product, s.version = t, like.product, like.version
	return s
}

// ask sends one command to this server only, even if it is part of a cluster, and returns the reply as text. It does
// not support arrays.
func (s *Server) ask(args ...string) (string, error) {
	c, err := dialRaw(s.opt)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return c.call(args...)
}

// Do sends one command to this server only, whatever its role, and fails the test on an error. It does not support
// arrays.
func (s *Server) Do(t testing.TB, args ...string) string {
	t.Helper()
	reply, err := s.ask(args...)
	if err != nil {
		t.Fatalf("redistest: %s at %s: %v", strings.Join(args, " "), s.Addr(), err)
	}
	return reply
}

// info returns the fields of an INFO section of this server only.
func (s *Server) info(section string) (map[string]string, error) {
	c, err := dialRaw(s.opt)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.info(section)
}

// Role returns "master" or "slave" as the server itself reports it, or "" when it does not answer.
func (s *Server) Role() string {
	fields, err := s.info("replication")
	if err != nil {
		return ""
	}
	return fields["role"]
}
