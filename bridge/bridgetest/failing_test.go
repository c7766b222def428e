package bridgetest_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// failing stands in for a test that is expected to fail. It implements bridgetest.TB.
type failing struct {
	t *testing.T

	mu       sync.Mutex
	text     strings.Builder
	failed   bool
	cleanups []func()
}

func (f *failing) Helper() {}

func (f *failing) Cleanup(end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cleanups = append(f.cleanups, end)
}

func (f *failing) Errorf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = true
	fmt.Fprintf(&f.text, format+"\n", args...)
}

func (f *failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

// fail runs a test as the package testing does, and returns it when it has ended with its cleanups.
func fail(t *testing.T, test func(t *failing)) *failing {
	t.Helper()
	f := &failing{t: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer f.cleanUp()
		test(f)
	}()
	<-ended
	return f
}

func (f *failing) cleanUp() {
	for len(f.cleanups) > 0 {
		last := len(f.cleanups) - 1
		end := f.cleanups[last]
		f.cleanups = f.cleanups[:last]
		end()
	}
}

// want checks that the test failed, and what it said.
func (f *failing) want(texts ...string) {
	f.t.Helper()
	if !f.failed {
		f.t.Fatal("the test passed")
	}
	for _, text := range texts {
		if !strings.Contains(f.text.String(), text) {
			f.t.Errorf("the failure does not say %q:\n%s", text, f.text.String())
		}
	}
}
