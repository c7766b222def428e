package conformance

import (
	"net"
	"slices"
)

// netFault is a network fault for chosen commands of a producer: the connection breaks before or after one, or is slow.
type netFault struct {
	matches  func(c *tapped, s *sent) bool // chooses the commands that get this fault
	kind     faultKind
	until    <-chan struct{} // when it is closed, the held command or reply goes on
	times    int             // number of commands that are still to get this fault
	happened chan struct{}   // closed when the last of them has got it
}

type faultKind int

const (
	noFault            faultKind = iota
	breakBeforeCommand           // the connection breaks before the command reaches the server
	breakBeforeReply             // the server executes the command; the connection breaks before the reply
	cutBeforeReply               // like breakBeforeReply, and new connections fail until the tap's network is back
	holdCommand                  // the command reaches the server later
	holdReply                    // this reply, and all later ones on the connection, reach the program later
)

// faultState is the part of a connection's state that its faults change.
type faultState struct {
	schedules bool            // the current transaction has a ZADD of a schedule
	mute      bool            // replies are dropped
	hold      <-chan struct{} // replies wait until it is closed; nil: they do not wait
}

// inject gives a network fault to the next commands that matches accepts. times is the number of these commands.
func (t *tap) inject(
	kind faultKind, times int, until <-chan struct{}, matches func(*tapped, *sent) bool,
) *netFault {
	f := &netFault{matches: matches, kind: kind, until: until, times: times, happened: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, f)
	return f
}

// faultFor returns the fault for a command that has not reached the server yet. It blocks while the command is held.
func (c *tapped) faultFor(s *sent) faultKind {
	f := c.takeFault(s)
	c.mu.Lock()
	switch {
	case s.is("MULTI"):
		c.state.schedules = false
	case c.queued && s.schedules():
		c.state.schedules = true
	}
	if f != nil {
		c.state.mute = f.kind == breakBeforeReply || f.kind == cutBeforeReply
		if f.kind == holdReply {
			c.state.hold = f.until
		}
	}
	c.mu.Unlock()
	if f == nil {
		return noFault
	}
	if f.kind == holdCommand {
		select {
		case <-f.until:
		case <-c.ctx.Done():
		}
	}
	return f.kind
}

// takeFault returns the fault for a command, or nil. It counts the command, and removes the fault after its last one.
func (c *tapped) takeFault(s *sent) *netFault {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	i := slices.IndexFunc(c.faults, func(f *netFault) bool { return f.matches(c, s) })
	if i < 0 {
		return nil
	}
	f := c.faults[i]
	if f.times--; f.times == 0 {
		c.faults = slices.Delete(c.faults, i, i+1)
		close(f.happened)
	}
	if f.kind == cutBeforeReply {
		c.gone = true // all further connections are refused
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
	mute, hold := c.state.mute, c.state.hold
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

// storesMessage reports whether the execution of a command stores a message: an EXEC, a script or function, or a ZADD
// outside a transaction.
func storesMessage(c *tapped, s *sent) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.is("EXEC") && c.queued && c.state.schedules || !c.queued && s.schedules() ||
		s.isScript() && slices.ContainsFunc(s.keys(), isDue)
}

// addsDueTime is like storesMessage, but in a transaction it picks the queued ZADD instead of the EXEC. A connection
// that breaks there leaves half of the message with the server, which then drops it.
func addsDueTime(c *tapped, s *sent) bool {
	return s.schedules() || !s.is("EXEC") && storesMessage(c, s)
}

// network returns the tap of the producer. Without a tap the case counts as not tried.
func (t *trial) network() *tap {
	all := t.allTaps()
	if len(all) == 0 {
		notTriedf("the network between the program and the server is not the kit's: %s", t.untapped)
	}
	return all[len(all)-1]
}

// awaitFault waits until a fault has happened to all its commands.
func (t *trial) awaitFault(f *netFault) {
	t.await(0, func() string {
		select {
		case <-f.happened:
			return ""
		default:
			return "no command that schedules the message has come"
		}
	})
}
