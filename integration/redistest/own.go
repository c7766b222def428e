package redistest

import (
	"testing"
)

// Own returns a server of this test's own, which may be killed, paused and started again, and which is gone with its
// data when the test ends. Args are redis-server arguments ("--appendonly", "yes"); without any it keeps nothing on
// disk. It is a child process when redis-server or valkey-server is on the PATH, else a container. It fails the test
// when neither can be had; DUESTREAM_TEST_REDIS_URL does not help here, because that server is not ours to kill.
func Own(t testing.TB, args ...string) *Server {
	t.Helper()
	dir := t.TempDir() // before our cleanup is registered, so that it is removed after the server is gone
	s, err := startOwn(dir, args)
	if err != nil {
		t.Fatalf("redistest: this test needs a server that it may kill: %v", err)
	}
	s.owned(t)
	return s
}

// owned makes a server end with the test that may kill it.
func (s *Server) owned(t testing.TB) {
	s.tb = t
	remove := atExit(s.inst.end) // for a test that ends without its cleanups
	t.Cleanup(func() {
		remove()
		if err := s.inst.end(); err != nil {
			t.Errorf("redistest: end %s: %v", s.Name(), err)
		}
	})
}

func startOwn(dir string, args []string) (*Server, error) {
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
