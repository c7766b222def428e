package stream

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// goroutineID returns the number of the calling goroutine as in stack traces; 0 = unknown. It takes some microseconds.
func goroutineID() uint64 {
	var line [64]byte
	return numberOf(line[:runtime.Stack(line[:], false)])
}

// numberOf returns the goroutine's number from its stack trace; 0 = it is not a stack trace.
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
	maxTraces  = 16 << 20 // bytes, of all goroutines
	maxStack   = 8 << 10  // bytes, of one goroutine in the log
	tracesLast = time.Second
)

// stackTraces returns the stacks of hanging goroutines. Taking them stops all goroutines of the process. So the stacks
// are reused for a second: thousands of handlers may hang, and be abandoned, at once.
type stackTraces struct {
	mu     sync.Mutex
	taken  time.Time
	stacks map[uint64][]byte
}

// of returns the stack of a goroutine at some time after since.
func (s *stackTraces) of(id uint64, since time.Time) string {
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
