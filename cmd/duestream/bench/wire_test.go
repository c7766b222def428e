package bench

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// Requests are counted correctly for any content and any split into packets. MONITOR gives the true count.
func TestIdleCountsWhatTheServerSees(t *testing.T) {
	server := redistest.Own(t)
	var w wire
	r, err := bridge.Dial(context.Background(), server.URL(), w.count)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	monitor := server.Monitor(t)
	const requests = 600
	send := func() {
		var all sync.WaitGroup
		for i := range requests / 3 {
			all.Go(func() {
				c := r.Client
				// A value that looks like requests, and fills several packets, must not be counted.
				value := strings.Repeat("*1\r\n$4\r\nPING\r\n", i*100)
				for _, reply := range c.DoMulti(context.Background(),
					c.B().Set().Key("k").Value(value).Build(), c.B().Set().Key("").Value("").Build(),
					c.B().Eval().Script("return redis.call('GET', KEYS[1])").Numkeys(1).Key("k").Build()) {
					if err := reply.Error(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	send() // opens all connections first, because MONITOR does not show every command that opens one
	monitor.Reset()
	before := w.requests.Load()
	send()
	seen, counted := monitor.Count(), int(w.requests.Load()-before)
	pings := monitor.Commands()["PING"] // the client library sends them on idle connections
	if counted != seen || seen-pings != requests {
		t.Errorf("counted %d requests, the server saw %d, among them %d PINGs; %d were sent", counted, seen, pings, requests)
	}
}
