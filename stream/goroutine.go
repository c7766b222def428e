package stream

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// goroutineID returns the number of the calling goroutine, as it stands in stack traces, or 0 if it cannot be found. It
// takes some microseconds.
func goroutineID() uint64 {
	var line [64]byte
	return numberOf(line[:runtime.Stack(line[:], false)])
}

// numberOf returns the goroutine's number from its stack trace, or 0 if trace is not a stack trace.
func numberOf(trace []byte) uint64 {
	trace, found := bytes.CutPrefix(trace, []byte("goroutine "))
	number, _, ended := bytes.Cut(trace, []byte(" "))
	if !found || !ended {
		return 0
	}
	id, err := strconv.ParseUint(string(number), 10, 64)
	if err != nil {
		return 0
	}
	return id
}

const (
	maxTraces  = 16 << 20    // bytes of the stacks of all goroutines
	maxStack   = 8 << 10     // bytes of one stack in the log
	tracesLast = time.Second // how long taken stacks are reused
)

// stackTraces returns the stacks of hanging goroutines. Taking stacks stops all goroutines of the process, and
// thousands of handlers may be abandoned at once. So the taken stacks are reused for a second.
type stackTraces struct {
	mu     sync.Mutex
	taken  time.Time
	stacks map[uint64][]byte
}

// stack returns the stack of a goroutine, taken after since.
func (s *stackTraces) stack(id uint64, since time.Time) string {
	if id == 0 {
		return "not known: the timeout was set after the handler had begun"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stacks == nil || s.taken.Before(since) {
		s.stacks, s.taken = takeStacks(), time.Now()
		time.AfterFunc(tracesLast, s.forget)
	}
	stack, ok := s.stacks[id]
	if !ok {
		return "not known: the goroutine has just ended, or the process has too many goroutines"
	}
	return string(stack[:min(len(stack), maxStack)])
}

func (s *stackTraces) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.taken) >= tracesLast {
		s.stacks = nil
	}
}

// takeStacks returns the stacks of all goroutines by number, as far as they fit into maxTraces.
func takeStacks() map[uint64][]byte {
	traces := make([]byte, 1<<20)
	for {
		n := runtime.Stack(traces, true)
		if n < len(traces) || n >= maxTraces {
			traces = traces[:n]
			break
		}
		traces = make([]byte, 2*len(traces))
	}
	stacks := map[uint64][]byte{}
	for trace := range bytes.SplitSeq(traces, []byte("\n\n")) {
		if id := numberOf(trace); id != 0 {
			stacks[id] = trace
		}
	}
	return stacks
}
