package bridgetest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// All kits share the child process. Regression: it ended with the thread that had started it, for example when the test
// that opened the first kit had locked its thread.
func TestTheServerOutlivesTheThreadThatStartedIt(t *testing.T) {
	t.Parallel()
	program := programOnPath()
	if program == "" {
		t.Skip("there is no redis-server")
	}
	var c *child
	var err error
	thread := make(chan int)
	var onThread func()
	onThread = func() {
		runtime.LockOSThread()               // a thread that is still locked ends with its goroutine
		if syscall.Gettid() == os.Getpid() { // the first thread does not end
			defer runtime.UnlockOSThread()
			go onThread()
			<-t.Context().Done()
			return
		}
		c, err = startChild(t.Context(), program)
		thread <- syscall.Gettid()
	}
	go onThread()
	task := fmt.Sprintf("/proc/self/task/%d", <-thread)
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		_, err := os.Stat(task)
		return errors.Is(err, os.ErrNotExist), "the thread lives"
	})
	r, err := bridge.Dial(t.Context(), c.url())
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}
