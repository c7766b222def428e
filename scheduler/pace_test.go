package scheduler

import (
	"testing"
	"time"
)

func TestPaceKeepsADrainWithinItsBudget(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name  string
		feed  func(*pace)
		limit int
	}{
		{"nothing known", func(*pace) {}, 500},
		{"4 µs each", func(p *pace) { p.took(500, 2000*us, 0) }, 500},
		{"2 µs each, and no more than configured", func(p *pace) { p.took(500, 500*us, 0) }, 1000},
		{"20 µs each", func(p *pace) { p.took(500, 10_000*us, 0) }, 100},
		{"a distant server is not a slow one", func(p *pace) { p.took(500, 52_000*us, 50_000*us) }, 500},
		{"never less than a few", func(p *pace) { p.took(500, time.Second, 0) }, 50},
		{"few members say nothing", func(p *pace) { p.took(15, time.Second, 0) }, 500},
		{"one that waited does not count beside others", func(p *pace) { p.took(500, 2000*us, 0); p.took(500, time.Second, 0) },
			500},
		{"what was long ago does not count", func(p *pace) {
			p.took(500, 2000*us, 0)
			for range paceSamples {
				p.took(500, 10_000*us, 0)
			}
		}, 100},
		{"quicker than an idle request", func(p *pace) { p.took(500, us, 5*us) }, 1000},
	} {
		p := &pace{most: 1000}
		c.feed(p)
		if got := p.limit(); got != c.limit {
			t.Errorf("%s: at most %d members, want %d", c.name, got, c.limit)
		}
	}
}
