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

// network is a stack whose far end is behind a proxy, if a test uses it. Everything that it runs logs to log, and
// runs in goroutines that carry its label.
type network struct {
	*stack
	proxy   *redistest.Proxy
	far     *stack
	admin   rueidis.Client // a single connection
	log     *logLines
	refused atomic.Int64
	base    int // number of goroutines before the faults
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
	n.schedule(100, "warm-", within(100*time.Millisecond))
	n.settled(20*time.Second, groups...)
	if n.base = goroutines(n.t); n.base < 10 {
		n.t.Fatalf("%d goroutines bear the label of the test: it proves nothing", n.base)
	}
}

// produce schedules messages one after the other through both clients until stop is called. It records the outcome of
// each in the ledger.
func (n *network) produce() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var producers sync.WaitGroup
	for which, client := range []*bridge.Client{n.client, n.far.client} {
		producers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("p%d-%d", which, i)
				receipt, err := client.Schedule(context.Background(), n.queue, []byte("payload of "+id), bridge.WithID(id),
					bridge.In(within(300*time.Millisecond)(i)))
				switch {
				case err == nil:
					n.ledger.Sent(id, receipt.Due.UnixMilli())
				case errors.Is(err, bridge.ErrDuplicate): // of itself: an earlier attempt was accepted
					n.ledger.Sent(id, 0)
				case errors.Is(err, bridge.ErrFull):
					n.ledger.NotExpected(id)
					n.refused.Add(1)
				default:
					n.ledger.MaybeSent(id, 0)
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

// deleteStream deletes the stream, and returns the IDs of the messages that it held.
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
