package redistest

import (
	"fmt"
	"os"
	"testing"
)

// Own returns a server for this test only. The test may kill it, pause it and start it again. The server and its data
// are removed when the test ends. Args are redis-server arguments ("--appendonly", "yes"); without any, it stores
// nothing on disk. If DUESTREAM_TEST_OWN_IMAGE names an image, the server is a container of that image. Otherwise it is
// a child process if redis-server or valkey-server is on the PATH, or else a container. Cluster does not use this
// variable. Own fails the test when it can start no server. DUESTREAM_TEST_REDIS_URL is not used here, because tests
// may not kill that server.
func Own(t testing.TB, args ...string) *Server {
	t.Helper()
	dir := t.TempDir() // before the server's cleanup is registered, so that it is removed after the server has ended
	s, err := startOwn(dir, args)
	if err != nil {
		t.Fatalf("redistest: this test needs a server that it may kill: %v", err)
	}
	s.owned(t)
	return s
}

// owned makes the test the owner of a server: the test may kill the server, and the server ends with the test.
func (s *Server) owned(t testing.TB) {
	s.tb = t
	remove := AtExit(s.inst.end) // for a test that ends without its cleanups
	t.Cleanup(func() {
		remove()
		if err := s.inst.end(); err != nil {
			t.Errorf("redistest: end %s: %v", s.Name(), err)
		}
	})
}

func startOwn(dir string, args []string) (*Server, error) {
	if image := os.Getenv(EnvOwnImage); image != "" {
		s, err := ownContainer(dir, image, args)
		if err != nil {
			return nil, fmt.Errorf("%s=%s: %w", EnvOwnImage, image, err)
		}
		return s, nil
	}
	if serverBinary() != "" {
		return fromPath(dir, args...)
	}
	s, errEngine := ownContainer(dir, "", args)
	if errEngine == nil {
		return s, nil
	}
	s, err := fromPath(dir, args...)
	if err == nil {
		return s, nil
	}
	return nil, noServer(errEngine, err)
}

func ownContainer(dir, preferred string, args []string) (*Server, error) {
	image, err := chooseImage(preferred)
	if err != nil {
		return nil, err
	}
	return startContainer(image, dir, args)
}
