// Package child runs other programs so that they do not outlive this one: each leads a process group of its own, which is ended
// as a whole, and which a Ctrl-C at the terminal does not reach before we have seen it. On Linux the program also ends when
// this process is killed in a way that leaves it no time to clean up.
//
// Invariants, held by tests of the command:
//   - the whole group ends, also what ignores SIGTERM (TestWorkKillsTheWholeGroupOfACommandThatTakesTooLong);
//   - the program dies with this process, on Linux (TestCommandDiesWithAWorkerThatIsKilled);
//   - a process that ends in order, or at once, leaves no group behind (TestSecondSignalLeavesNoCommandRunning).
package child

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// alive holds the programs that run, so that none is left behind: see EndAll.
var alive = struct {
	sync.Mutex
	programs map[*Process]struct{}
	ending   bool
}{programs: map[*Process]struct{}{}}

var errEnding = errors.New("this process is about to end")

// Process is a program that was started.
type Process struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed when it is
	done chan struct{} // closed after that, but not when EndAll ended it: nobody is to draw a conclusion from that
	err  error
}

// Start starts cmd. The program is gone when Done is closed.
func Start(cmd *exec.Cmd) (*Process, error) {
	own(cmd)
	p := &Process{cmd: cmd, gone: make(chan struct{}), done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The death signal of Linux is bound to the thread that started the program: this one lives as long as it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		p.end()
	}()
	return p, <-started
}

// start starts the program, unless it would be left behind.
func (p *Process) start() error {
	alive.Lock()
	defer alive.Unlock()
	if alive.ending {
		return errEnding
	}
	err := p.cmd.Start()
	if err == nil {
		alive.programs[p] = struct{}{}
	}
	return err
}

func (p *Process) end() {
	alive.Lock()
	defer alive.Unlock()
	delete(alive.programs, p)
	close(p.gone)
	if !alive.ending {
		close(p.done)
	}
}

// EndAll ends all programs and their groups when this process ends at once: it sends SIGTERM, then SIGKILL after grace, and
// waits as long again, but at least a second. From then on no program starts, and Done of those that ran stays open: a handler
// that saw the end would take it for a failure, and its message would be delivered again.
func EndAll(grace time.Duration) {
	alive.Lock()
	alive.ending = true
	var programs []*Process
	for p := range alive.programs {
		programs = append(programs, p)
	}
	alive.Unlock()
	signal := func(sig syscall.Signal) {
		for _, p := range programs { // also those that are gone, and may have left others of their group
			signalGroup(p.cmd, sig)
		}
	}
	if grace > 0 {
		signal(syscall.SIGTERM)
		await(programs, grace)
	}
	signal(syscall.SIGKILL)
	await(programs, max(grace, time.Second))
}

// await waits until programs are gone, but not for longer than patience.
func await(programs []*Process, patience time.Duration) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for _, p := range programs {
		select {
		case <-p.gone:
		case <-late.C:
			return
		}
	}
}

// Done returns a channel that is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the program ended, once Done is closed: see exec.Cmd.Wait.
func (p *Process) Err() error { return p.err }

// Stop asks the group to end with SIGTERM, kills after grace what is left of it, and waits for the program.
func (p *Process) Stop(grace time.Duration) {
	select {
	case <-p.done: // its number may be another's by now
		return
	default:
	}
	signalGroup(p.cmd, syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	signalGroup(p.cmd, syscall.SIGKILL)
	<-p.done
}

// Kill kills the group without asking, and waits for the program.
func (p *Process) Kill() {
	select {
	case <-p.done: // its number may be another's by now
	default:
		signalGroup(p.cmd, syscall.SIGKILL)
	}
	<-p.done
}

// Run starts cmd and waits for it. When ctx ends first, Run stops the program, with so much grace, and returns the context's
// cause, whatever the program's exit code.
func Run(ctx context.Context, cmd *exec.Cmd, grace time.Duration) error {
	p, err := Start(cmd)
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		return p.Err()
	case <-ctx.Done():
		p.Stop(grace)
		return context.Cause(ctx)
	}
}
