package bridge_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// begin connects an example to a server, with a prefix of its own, and runs a bridge until end is called. end also
// closes the connection.
func begin() (ctx context.Context, r *bridge.Redis, prefix string, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	url, prefix, giveBack := redistest.Lend()
	r, err := bridge.Dial(ctx, url)
	check(err)
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
		giveBack()
		cancel()
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// until waits for a condition, and panics after a minute.
func until(condition func() bool) {
	for deadline := time.Now().Add(time.Minute); !condition(); {
		if time.Now().After(deadline) {
			panic("not so after a minute")
		}
		<-time.After(10 * time.Millisecond)
	}
}
