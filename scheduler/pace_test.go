package scheduler

import (
	"testing"
	"time"
)

// A drain blocks the server, so pace must limit its messages by what recent drains took: about 2 ms for each drain. The
// arguments of add are the number of messages, the time of the drain, and the time of a request that does nothing.
func TestPaceKeepsADrainWithinItsBudget(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name  string
		feed  func(*pace)
		limit int
	}{
		{"no drain yet", func(*pace) {}, 500},
		{"4 µs for each message", func(p *pace) { p.add(500, 2000*us, 0) }, 500},
		{"1 µs for each message, but never more than configured", func(p *pace) { p.add(500, 500*us, 0) }, 1000},
		{"20 µs for each message", func(p *pace) { p.add(500, 10_000*us, 0) }, 100},
		{"a distant server is not a slow one", func(p *pace) { p.add(500, 52_000*us, 50_000*us) }, 500},
		{"never less than a few", func(p *pace) { p.add(500, time.Second, 0) }, 50},
		{"a drain of few messages does not count", func(p *pace) { p.add(15, time.Second, 0) }, 500},
		{"one slow drain beside others does not count", func(p *pace) { p.add(500, 2000*us, 0); p.add(500, time.Second, 0) },
			500},
		{"old drains do not count", func(p *pace) {
			p.add(500, 2000*us, 0)
			for range paceSamples {
				p.add(500, 10_000*us, 0)
			}
		}, 100},
		{"quicker than an idle request", func(p *pace) { p.add(500, us, 5*us) }, 1000},
	} {
		p := &pace{most: 1000}
		c.feed(p)
		if got := p.limit(); got != c.limit {
			t.Errorf("%s: at most %d members, want %d", c.name, got, c.limit)
		}
	}
}
