package lua

import (
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// A script begins with a write that a full server accepts and that is meant to change nothing. It must remove nothing,
// whatever names are used. Before, that write deleted the field 0x1F, and a member of that name lost its payload.
func TestOpeningAFullServerRemovesNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		kept := func(after string) {
			b.Helper()
			for _, member := range []string{Separator, ""} {
				redistest.Want(b, "due after "+after, b.dueOf(member) > 0, true)
				redistest.Want(b, "payload after "+after, b.text("HGET", b.k.Payload, member), "kept")
				redistest.Want(b, "meta after "+after, b.text("HGET", b.k.Meta, member), `{"id":"odd"}`)
			}
		}
		for _, member := range []string{Separator, ""} {
			b.do("HSET", b.k.Payload, member, "kept")
			b.do("HSET", b.k.Meta, member, `{"id":"odd"}`)
			b.do("ZADD", b.k.Due, ms(b.now()+3_600_000), member)
		}
		for _, c := range calls() {
			if c.script == orphansScript || c.script == heartbeatScript {
				continue
			}
			if err := c.run(b); err != nil {
				b.Logf("%s: %v", c.script.name, err)
			}
			kept(c.script.name)
		}
		b.do("ZADD", b.k.Due, "1", Separator, "2", "")
		b.drain(10)
		got := 0
		for _, e := range b.entries(b.k.Stream) {
			if e.ID == "odd" && string(e.Payload) == "kept" {
				got++
			}
		}
		redistest.Want(b, "delivered with their payloads", got, 2)
	})
}
