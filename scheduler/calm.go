package scheduler

import (
	"sync"
	"time"
)

// calm tells since when the server has been there without an interruption. Time that entries spend pending during an outage says
// nothing about their consumers, so nobody reclaims before a visibility timeout of calm has passed.
type calm struct {
	mu        sync.Mutex
	since     time.Time
	disturbed bool // until the next heartbeat
	suspected bool // a connection broke: perhaps only that, perhaps the server
}

func newCalm() *calm { return &calm{disturbed: true} }

// Since is now while the calm is disturbed.
func (c *calm) Since() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.disturbed || c.suspected {
		return time.Now()
	}
	return c.since
}

// disturb ends the calm; it begins again with the next heartbeat.
func (c *calm) disturb() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disturbed = true
}

// suspect ends the calm unless the next heartbeat finds the same server, not restarted.
func (c *calm) suspect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspected = true
}

func (c *calm) isSuspected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.suspected
}

// settle takes a good heartbeat: if the calm was disturbed, it begins now.
func (c *calm) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.disturbed {
		c.since = time.Now()
	}
	c.disturbed, c.suspected = false, false
}
