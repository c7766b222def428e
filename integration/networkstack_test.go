package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// network is a stack for tests of faults. What the stack itself runs is connected to the server directly; what far runs
// is connected through proxy. Both log to log. Their goroutines carry the label of the test, so that they can be
// counted.
type network struct {
	*stack
	proxy   *redistest.Proxy
	far     *stack         // the same stack, with all connections through proxy
	admin   rueidis.Client // a client with one connection
	log     *logLines
	refused atomic.Int64 // calls of the producers that were refused with ErrFull
	base    int          // number of goroutines before the faults
}

func newNetwork(t *testing.T, server *redistest.Server) *network {
	t.Helper()
	label(t)
	n := &network{stack: newStack(t, server), proxy: server.Proxy(t), log: newLogLines()}
	n.stack.log = n.log.logger()
	n.admin = server.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient, o.PipelineMultiplex = true, -1 })
	far := *n.stack
	far.redis = far.dial(n.proxy.URL())
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: far.redis, Prefix: far.prefix, Logger: far.log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	far.client = client
	n.far = &far
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", n.log)
		}
	})
	return n
}

// warm delivers messages before the first fault, and then counts the goroutines.
func (n *network) warm(groups ...string) {
	n.t.Helper()
	n.schedule(100, "warm-", spreadOver(100*time.Millisecond))
	n.awaitSettled(20*time.Second, groups...)
	if n.base = goroutines(n.t); n.base < 10 {
		n.t.Fatalf("%d goroutines bear the label of the test: it proves nothing", n.base)
	}
}

// produce schedules messages through the direct client and through the client behind the proxy until stop is called. It
// records the result of each call in the ledger.
func (n *network) produce() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var producers sync.WaitGroup
	for which, client := range []*bridge.Client{n.client, n.far.client} {
		producers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("p%d-%d", which, i)
				receipt, err := client.Schedule(context.Background(), n.queue, []byte("payload of "+id), bridge.WithID(id),
					bridge.In(spreadOver(300*time.Millisecond)(i)))
				if errors.Is(err, bridge.ErrFull) {
					n.ledger.NotExpected(id)
					n.refused.Add(1)
				} else {
					n.record(id, receipt, err)
				}
				select { // thousands of messages a second would only slow down the tests of other packages
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		producers.Wait()
	})
	n.t.Cleanup(stop)
	return stop
}

// awaitMore waits until that many further messages were accepted.
func (n *network) awaitMore(group string, further int) {
	n.t.Helper()
	sent := n.ledger.Summary(group).Sent
	redistest.Eventually(n.t, 20*time.Second, func() (bool, string) {
		return n.ledger.Summary(group).Sent >= sent+further, "the producer does not get on"
	})
}

// cutOff runs a worker behind the proxy, waits until its handlers hold this many messages, and stalls the proxy. The
// returned function waits until the contexts of all these handlers are cancelled with ErrUnreachable.
func (n *network) cutOff(held int64) (wait func()) {
	n.t.Helper()
	var running, told atomic.Int64
	n.far.worker("g", int(held), func(ctx context.Context, m *bridge.Message) error {
		if running.Add(1) > held {
			return nil
		}
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), bridge.ErrUnreachable) {
			told.Add(1)
		}
		return context.Cause(ctx)
	})
	n.schedule(int(held), "m", spreadOver(0))
	redistest.Eventually(n.t, 10*time.Second, func() (bool, string) {
		return running.Load() == held, fmt.Sprint(running.Load(), " run")
	})
	n.proxy.Stall(true)
	return func() {
		n.t.Helper()
		redistest.Eventually(n.t, 10*time.Second, func() (bool, string) {
			return told.Load() == held, fmt.Sprint(told.Load(), " were told")
		})
	}
}

// deleteStream deletes the stream, and returns the IDs of the messages that were in it.
func (n *network) deleteStream() (ids []string) {
	n.t.Helper()
	stream := n.keys().Stream
	c := n.redis.Client
	replies := c.DoMulti(context.Background(), c.B().Multi().Build(), c.B().Xrange().Key(stream).Start("-").End("+").Build(),
		c.B().Del().Key(stream).Build(), c.B().Exec().Build())
	executed, err := replies[3].ToArray()
	if err != nil {
		n.t.Fatal(err)
	}
	found, err := executed[0].AsXRange()
	if err != nil && !rueidis.IsRedisNil(err) {
		n.t.Fatal(err)
	}
	for _, e := range found {
		ids = append(ids, e.FieldValues["id"])
	}
	return ids
}
