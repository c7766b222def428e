package campaign

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// slot is the place of one process. When its process dies, the next one starts under a new name, behind the same
// network path.
type slot struct {
	part    part
	proxy   *redistest.Proxy // nil: it connects to the server directly
	front   *front           // front of a gateway
	program []string         // runs a package in another language; nil: the part is a process of the test binary
	busy    sync.Mutex       // held while its process is started, stopped or ended

	mu     sync.Mutex
	before bool // the next process is of the previous release
	starts int
	name   string // of the current process
	ledger string // path
	cmd    *exec.Cmd
	gone   chan struct{} // closed when the process was reaped
	err    error         // how it ended; set before gone is closed
}

// family holds all processes of a campaign.
type family struct {
	t     testing.TB
	dir   string // directory of the ledgers
	old   string // program of the previous release; "" = none takes part
	slots []*slot
	wg    sync.WaitGroup
}

func (f *family) add(p part, proxy *redistest.Proxy, users *guests) *slot {
	s := &slot{part: p, proxy: proxy}
	if proxy != nil {
		s.part.URL = proxy.URL()
	}
	s.part.URL = users.url(s.part.URL, p.Role)
	f.slots = append(f.slots, s)
	return s
}

// of returns the slots of the given roles.
func (f *family) of(roles ...string) []*slot {
	var some []*slot
	for _, s := range f.slots {
		if slices.Contains(roles, s.part.Role) {
			some = append(some, s)
		}
	}
	return some
}

func names(slots []*slot) []string {
	all := make([]string, len(slots))
	for i, s := range slots {
		all[i] = s.current()
	}
	return all
}

func (s *slot) current() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.name
}

// start starts the process of a slot under its next name.
func (f *family) start(s *slot) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.part
	p.Name = fmt.Sprintf("%s.%d", s.part.Name, s.starts)
	if s.before {
		program, p.Name = f.old, p.Name+ofBefore
	}
	p.Seed += uint64(s.starts)
	s.starts++
	p.Ledger = filepath.Join(f.dir, p.Name+".ledger")
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	cmd := exec.Command(program)
	if s.program != nil {
		cmd = exec.Command(s.program[0], s.program[1:]...)
	}
	cmd.Env = append(os.Environ(), envPart+"="+string(text),
		"GORACE="+os.Getenv("GORACE")+" exitcode=0 log_path="+filepath.Join(f.dir, raceLog)) // reportRaces reads the log
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = childAttr()
	started, gone := make(chan error, 1), make(chan struct{})
	f.wg.Add(1)
	go func() {
		defer f.wg.Done()
		// The parent-death signal is bound to the thread that started the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			err = cmd.Wait()
		}
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		close(gone)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	s.name, s.ledger, s.cmd, s.gone = p.Name, p.Ledger, cmd, gone
	return nil
}

func (s *slot) signal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(sig)
	}
}

// freeze stops the process by SIGSTOP, or continues it.
func (s *slot) freeze(stop bool) {
	if stop {
		s.signal(syscall.SIGSTOP)
		return
	}
	s.signal(syscall.SIGCONT)
}

// end sends a signal and waits until the process has ended. After the timeout the process is killed, and end returns
// an error. A killed process is no error, an exit status other than 0 is.
func (s *slot) end(sig os.Signal, timeout time.Duration) error {
	s.mu.Lock()
	name, ledger, gone := s.name, s.ledger, s.gone
	s.mu.Unlock()
	if gone == nil {
		return nil
	}
	if sig != os.Kill {
		s.signal(syscall.SIGCONT)
		waitUntilItHandlesSignals(ledger, gone)
	}
	s.signal(sig)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
		s.signal(os.Kill)
		<-gone
		return fmt.Errorf("%s did not end within %s of %v", name, timeout, sig)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var exit *exec.ExitError
	if s.err != nil && !(sig == os.Kill && errors.As(s.err, &exit)) {
		return fmt.Errorf("%s: %w", name, s.err)
	}
	return nil
}

// endAll stops all processes, and returns when all have ended.
func endAll(slots []*slot, timeout time.Duration) error {
	errs := make([]error, len(slots))
	var all sync.WaitGroup
	for i, s := range slots {
		all.Go(func() { errs[i] = s.end(syscall.SIGTERM, timeout) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// waitUntilItHandlesSignals waits at most a minute until a process that was just started handles signals. It handles
// them before it opens its ledger. With the race detector and dozens of starts at once, that takes many seconds.
func waitUntilItHandlesSignals(ledger string, gone <-chan struct{}) {
	for range 12_000 { // times 5 ms
		if _, err := os.Stat(ledger); err == nil {
			return
		}
		select {
		case <-gone:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// running reports whether the process still runs.
func (s *slot) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == nil {
		return false
	}
	select {
	case <-s.gone:
		return false
	default:
		return true
	}
}

// killAll kills all remaining processes.
func (f *family) killAll() {
	for _, s := range f.slots {
		_ = s.end(os.Kill, 10*time.Second)
	}
	f.wg.Wait()
}
