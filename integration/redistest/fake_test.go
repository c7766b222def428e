package redistest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// fakeTB stands in for a test that is expected to fail.
type fakeTB struct {
	testing.TB
	failed bool
	log    strings.Builder
}

func (f *fakeTB) Helper()                   {}
func (f *fakeTB) Log(args ...any)           { fmt.Fprintln(&f.log, args...) }
func (f *fakeTB) Errorf(s string, a ...any) { f.failed = true; fmt.Fprintf(&f.log, s+"\n", a...) }
func (f *fakeTB) Fatal(args ...any)         { f.failed = true; fmt.Fprintln(&f.log, args...); runtime.Goexit() }
func (f *fakeTB) Fatalf(s string, a ...any) { f.Errorf(s, a...); runtime.Goexit() }

// run calls g as a test function is called, and returns when g has ended.
func (f *fakeTB) run(g func(testing.TB)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		g(f)
	}()
	<-done
}
