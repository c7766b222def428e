package conformance

import (
	"net"
	"slices"
)

// fate is a network fault for a chosen command of a producer: the connection breaks before or after it, or is slow.
type fate struct {
	meant func(c *tapped, s *sent) bool
	what  doom
	until <-chan struct{} // when closed, the held command or reply goes on
	times int             // commands that have yet to meet this fate
	met   chan struct{}   // closed when the last of them has met it
}

type doom int

const (
	nothing     doom = iota
	breakBefore      // the connection breaks before the command reaches the server
	breakBehind      // the server executes the command; the connection breaks before the reply
	leaveBehind      // like breakBehind, and new connections fail until the tap's network is back
	holdCommand      // the command reaches the server later
	holdReply        // this reply, and all later ones on the connection, reach the program later
)

// fated is the state of a connection that met a fate.
type fated struct {
	schedules bool            // the current transaction has a ZADD of a schedule
	mute      bool            // replies are dropped
	hold      <-chan struct{} // replies wait for this
}

// doom makes the next commands that meant accepts meet a fate, times of them.
func (t *tap) doom(what doom, times int, until <-chan struct{}, meant func(*tapped, *sent) bool) *fate {
	f := &fate{meant: meant, what: what, until: until, times: times, met: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fates = append(t.fates, f)
	return f
}

// meets returns the fate of a command that has not reached the server yet. It blocks while the command is held.
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
		c.gone = true // the network, for all further connections
	}
	return f
}

// sendAndBreak forwards a command, and returns when the server has executed it and closed the connection.
func (c *tapped) sendAndBreak(to net.Conn, command []byte) {
	if _, err := to.Write(command); err != nil {
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		<-c.ended
	}
}

// withheld reports whether a reply is dropped. It blocks while the reply is held.
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

// decides reports whether a command schedules a message: an EXEC, a script or function, or a ZADD outside a
// transaction.
func decides(c *tapped, s *sent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.is("EXEC") && c.queued && c.fated.schedules || !c.queued && s.schedules() ||
		s.isScript() && slices.ContainsFunc(s.keys(), isDue)
}

// schedulesWhole is like decides, but in a transaction it picks the ZADD instead of the EXEC.
func schedulesWhole(c *tapped, s *sent) bool { return s.schedules() || !s.is("EXEC") && decides(c, s) }

// network returns the tap of the producer. Without a tap the case counts as not tried.
func (t *trial) network() *tap {
	all := t.allTaps()
	if len(all) == 0 {
		notTriedf("the network between the program and the server is not the kit's: %s", t.untapped)
	}
	return all[len(all)-1]
}

// hasMet waits until all commands that were chosen for a fate have met it.
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
