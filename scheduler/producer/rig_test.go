package producer

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func newProducer(t *testing.T, client rueidis.Client, prefix string, change ...func(*Config)) *Producer {
	t.Helper()
	cfg := Config{Client: client, Prefix: prefix}
	for _, f := range change {
		f(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// loseReply cuts the connection before the reply to the producer's next script call, but not to a registration beside
// an earlier call.
func loseReply(p *Producer, proxy *redistest.Proxy) {
	p.busy.Wait()
	proxy.CutAfterForward(1, "EVALSHA", "EVAL")
}
