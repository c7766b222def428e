package bridge_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/duestream/duestream/bridge"
)

// The tests of this package import nothing that a program with duestream in it does not need: its module file would name all of
// that. So their server runs beside them, in a process that ends with its input.

func TestMain(m *testing.M) {
	code := m.Run()
	endServer()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines outlived the tests:", err)
		code = 1
	}
	os.Exit(code)
}

var endServer = func() {}

// server returns the URL of a server that is there until the tests end, and a prefix of keys that are deleted then.
var server = sync.OnceValues(func() (url, prefix string) {
	cmd := exec.Command("go", "run", "../integration/redistest/serve")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(err)
	out, err := cmd.StdoutPipe()
	check(err)
	check(cmd.Start())
	endServer = func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		check(cmd.Wait())
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	check(err)
	_, err = fmt.Sscan(line, &url, &prefix)
	check(err)
	return url, prefix
})

var prefixes atomic.Int64

// connect returns a connection to the server and a prefix that nobody else uses.
func connect(ctx context.Context) (*bridge.Redis, string) {
	url, prefix := server()
	r, err := bridge.Dial(ctx, url)
	check(err)
	return r, fmt.Sprint(prefix, "-", prefixes.Add(1))
}

// begin gives an example a server, a prefix of its own, and a bridge, until the returned function is called.
func begin() (ctx context.Context, r *bridge.Redis, prefix string, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r, prefix = connect(ctx)
	b, err := bridge.NewBridge(bridge.Config{Redis: r, Prefix: prefix, AnyServer: true, Defaults: bridge.Policy{
		VisibilityTimeout: time.Second, MaxAttempts: 10, RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond,
	}})
	check(err)
	stop, stopped := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { check(b.Run(stop)) })
	return ctx, r, prefix, func() {
		stopped()
		running.Wait()
		r.Close()
		cancel()
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// until waits for a condition, and gives up after a minute.
func until(condition func() bool) {
	for deadline := time.Now().Add(time.Minute); !condition(); {
		if time.Now().After(deadline) {
			panic("not so after a minute")
		}
		<-time.After(10 * time.Millisecond)
	}
}
