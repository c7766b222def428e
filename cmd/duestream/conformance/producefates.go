package conformance

import (
	"net"
	"slices"
)

// A fate is what the network does to a command of a producer: it breaks before or behind it, or is slow.
type fate struct {
	meant func(c *tapped, s *sent) bool
	what  doom
	until <-chan struct{} // then what is held goes on
	times int             // how many commands are still to meet this fate
	met   chan struct{}   // closed when as many commands have met it
}

type doom int

const (
	nothing     doom = iota
	breakBefore      // the connection breaks before the server gets the command
	breakBehind      // the server executes it, and the connection breaks before the reply
	leaveBehind      // as breakBehind; then no connection reaches the server until the tap's network is back
	holdCommand      // the server gets it later
	holdReply        // the program gets its reply, and all that follow on the connection, later
)

// fated is what a fate has made of a connection.
type fated struct {
	schedules bool            // the transaction under way has a ZADD of a schedule
	mute      bool            // replies go nowhere
	hold      <-chan struct{} // replies wait for this
}

// doom has the next commands of a kind meet a fate.
func (t *tap) doom(what doom, times int, until <-chan struct{}, meant func(*tapped, *sent) bool) *fate {
	f := &fate{meant: meant, what: what, until: until, times: times, met: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fates = append(t.fates, f)
	return f
}

// meets returns what becomes of a command that the server has not got yet. A command that is held waits here.
func (c *tapped) meets(s *sent) doom {
	f := c.fateOf(s)
	c.mu.Lock()
	switch {
	case s.is("MULTI"):
		c.fated.schedules = false
	case c.queued && s.schedules():
		c.fated.schedules = true
	}
	if f != nil {
		c.fated.mute = f.what == breakBehind || f.what == leaveBehind
		if f.what == holdReply {
			c.fated.hold = f.until
		}
	}
	c.mu.Unlock()
	if f == nil {
		return nothing
	}
	if f.what == holdCommand {
		select {
		case <-f.until:
		case <-c.ctx.Done():
		}
	}
	return f.what
}

func (c *tapped) fateOf(s *sent) *fate {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	i := slices.IndexFunc(c.fates, func(f *fate) bool { return f.meant(c, s) })
	if i < 0 {
		return nil
	}
	f := c.fates[i]
	if f.times--; f.times == 0 {
		c.fates = slices.Delete(c.fates, i, i+1)
		close(f.met)
	}
	if f.what == leaveBehind {
		c.gone = true // the network, for all connections to come
	}
	return f
}

// sendAndBreak hands on a command, and returns when the server has executed it and closed the connection.
func (c *tapped) sendAndBreak(to net.Conn, command []byte) {
	if _, err := to.Write(command); err != nil {
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		<-c.ended
	}
}

// withheld reports whether a reply goes nowhere. One that is held waits here.
func (c *tapped) withheld() bool {
	c.mu.Lock()
	mute, hold := c.fated.mute, c.fated.hold
	c.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-c.ctx.Done():
		}
	}
	return mute
}

// schedules reports whether a command puts members into a schedule.
func (s *sent) schedules() bool { return s.is("ZADD") && isDue(s.arg(1)) }

func isDue(key string) bool { return len(key) > 4 && key[len(key)-4:] == ":due" }

// decides is the command with which a message is scheduled: EXEC, a script or function, or a ZADD that stands alone.
func decides(c *tapped, s *sent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.is("EXEC") && c.queued && c.fated.schedules || !c.queued && s.schedules() ||
		s.isScript() && slices.ContainsFunc(s.keys(), isDue)
}

// schedulesWhole is decides, but in a transaction it is the ZADD, not the EXEC.
func schedulesWhole(c *tapped, s *sent) bool { return s.schedules() || !s.is("EXEC") && decides(c, s) }

// network returns the tap of the producer. A case that breaks the network cannot do without one.
func (t *trial) network() *tap {
	all := t.allTaps()
	if len(all) == 0 {
		notTriedf("the network between the program and the server is not the kit's: %s", t.untapped)
	}
	return all[len(all)-1]
}

// hasMet waits until all commands that were to meet a fate have.
func (t *trial) hasMet(f *fate) {
	t.await(0, func() string {
		select {
		case <-f.met:
			return ""
		default:
			return "no command that schedules the message has come"
		}
	})
}
