package redistest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Monitor counts the requests that clients send to a server, as MONITOR reports them. It does not count commands
// inside scripts and functions, or its own commands. All methods are safe for concurrent use.
type Monitor struct {
	t       testing.TB
	mark    sync.Mutex    // guards control
	control *rawConn      // sends the marks; see sync
	done    chan struct{} // closed when the reader has ended

	mu     sync.Mutex // guards the fields below
	counts map[string]int
	total  int
	marks  map[string]chan struct{} // by mark: closed when MONITOR has reported the mark
	err    error                    // why the reader has ended
}

const markPrefix = "redistest-mark-"

// Monitor starts to count requests, and stops when the test ends. It counts those of every client of the server, so use
// a server of the test's own for exact numbers. It fails the test when the server does not support MONITOR.
func (s *Server) Monitor(t testing.TB) *Monitor {
	t.Helper()
	control, err := dialRaw(s.opt)
	if err != nil {
		t.Fatalf("redistest: monitor %s: %v", s.Name(), err)
	}
	feed, err := dialRaw(s.opt)
	if err == nil {
		_, err = feed.call("MONITOR")
	}
	if err == nil {
		err = feed.SetDeadline(time.Time{})
	}
	if err != nil {
		t.Fatalf("redistest: monitor %s: %v", s.Name(), err)
	}
	m := &Monitor{
		t:       t,
		control: control,
		done:    make(chan struct{}),
		counts:  map[string]int{},
		marks:   map[string]chan struct{}{},
	}
	go m.read(feed)
	t.Cleanup(func() {
		control.Close()
		feed.Close()
		<-m.done
	})
	return m
}

// Count returns how many requests the server has received since the start or the last Reset, up to now.
func (m *Monitor) Count() int {
	m.t.Helper()
	m.sync()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total
}

// Commands returns the same numbers by command name, in upper case.
func (m *Monitor) Commands() map[string]int {
	m.t.Helper()
	m.sync()
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.counts)
}

// Asked returns the same numbers without the requests that the client library sends on its own: it opens connections,
// and it sends PING on connections that are idle for a second.
func (m *Monitor) Asked() map[string]int {
	m.t.Helper()
	asked := m.Commands()
	for _, own := range []string{"PING", "HELLO", "CLIENT", "AUTH", "SELECT"} {
		delete(asked, own)
	}
	return asked
}

// Reset sets the counts to zero, after counting everything that the server has received up to now.
func (m *Monitor) Reset() {
	m.t.Helper()
	m.sync()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total = 0
	clear(m.counts)
}

// sync returns when everything that the server received before this call is counted. It sends a mark on its own
// connection and waits until MONITOR reports the mark.
func (m *Monitor) sync() {
	m.t.Helper()
	mark, seen := markPrefix+strconv.FormatUint(rand.Uint64(), 36), make(chan struct{})
	m.mu.Lock()
	m.marks[mark] = seen
	m.mu.Unlock()
	m.mark.Lock()
	_, err := m.control.call("ECHO", mark)
	m.mark.Unlock()
	timeout := time.NewTimer(10 * time.Second)
	defer timeout.Stop()
	if err == nil {
		select {
		case <-seen:
			return
		case <-m.done:
			m.mu.Lock()
			err = m.err
			m.mu.Unlock()
		case <-timeout.C:
			err = errors.New("no line within 10s")
		}
	}
	m.t.Errorf("redistest: monitor: %v", err)
}

func (m *Monitor) read(feed *rawConn) {
	defer close(m.done)
	for {
		line, err := feed.replies.Reply()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = errors.New("the test has ended")
			}
			m.mu.Lock()
			m.err = err
			m.mu.Unlock()
			return
		}
		m.count(line.Text)
	}
}

// count counts the request in one line of MONITOR, or closes the channel of a mark. The line has the form
//
//	+1700000000.123456 [0 127.0.0.1:40000] "xadd" "key" …
//
// where a command inside a script has "lua" instead of the address.
func (m *Monitor) count(line string) {
	_, rest, ok := strings.Cut(line, " [")
	source, command, ok2 := strings.Cut(rest, `] "`)
	if !ok || !ok2 || strings.HasSuffix(source, " lua") {
		return
	}
	name, args, _ := strings.Cut(command, `"`)
	m.mu.Lock()
	defer m.mu.Unlock()
	if mark := strings.Trim(args, ` "`); strings.HasPrefix(mark, markPrefix) {
		if seen := m.marks[mark]; seen != nil {
			close(seen)
			delete(m.marks, mark)
		}
		return
	}
	m.total++
	m.counts[strings.ToUpper(name)]++
}

// Calls returns how often the server has executed each command since its start, from INFO commandstats. Names are in
// lower case ("xadd", "xgroup|create"). Unlike [Monitor] it includes commands inside scripts, and it does not slow
// the server down. Use the difference of two calls.
func (s *Server) Calls(t testing.TB) map[string]int {
	t.Helper()
	calls, err := s.calls()
	if err != nil {
		t.Fatalf("redistest: commandstats of %s: %v", s.Name(), err)
	}
	return calls
}

func (s *Server) calls() (map[string]int, error) {
	c, err := dialRaw(s.opt)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	fields, err := c.info("commandstats")
	if err != nil {
		return nil, err
	}
	calls := map[string]int{}
	for k, v := range fields {
		name, ok := strings.CutPrefix(k, "cmdstat_")
		if !ok {
			continue
		}
		n, _, _ := strings.Cut(strings.TrimPrefix(v, "calls="), ",")
		if calls[name], err = strconv.Atoi(n); err != nil {
			return nil, fmt.Errorf("%s:%s: %w", k, v, err)
		}
	}
	return calls, nil
}
