// Package child runs other programs so that they do not outlive this process. Each program leads a process group of its
// own, which is ended as a whole. A Ctrl-C at the terminal reaches only this process, not that group. On Linux the
// program also ends when this process is killed without time to clean up.
//
// Invariants, held by tests of the command:
//   - the whole group ends, even processes that ignore SIGTERM (TestWorkKillsTheWholeGroupOfACommandThatTakesTooLong);
//   - the program dies with this process, on Linux (TestCommandDiesWithAWorkerThatIsKilled);
//   - a process that ends cleanly, or at once, leaves no group behind (TestSecondSignalLeavesNoCommandRunning).
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

// alive holds the running programs, so that EndAll can end them.
var alive = struct {
	sync.Mutex
	programs map[*Process]struct{}
	ending   bool
}{programs: map[*Process]struct{}{}}

var errEnding = errors.New("this process is about to end")

// Process is a program that was started.
type Process struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed when the program has ended
	done chan struct{} // closed after gone, but never after EndAll, because nobody may act on an end that EndAll caused
	err  error
}

// Start starts cmd. Done is closed when the program has ended.
func Start(cmd *exec.Cmd) (*Process, error) {
	ownGroup(cmd)
	p := &Process{cmd: cmd, gone: make(chan struct{}), done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The death signal of Linux is bound to the thread that started the program. So that thread lives as long as
		// the program.
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

// start starts the program, unless EndAll has begun, which would not end the program.
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

// EndAll ends all programs and their groups, because this process ends at once. It sends SIGTERM, and SIGKILL after
// grace. It then waits for the programs, for at most grace or a second, whichever is longer. No program starts any
// more, and Done of the running programs stays open: a handler that saw the end would report a failure of its message.
func EndAll(grace time.Duration) {
	alive.Lock()
	alive.ending = true
	var programs []*Process
	for p := range alive.programs {
		programs = append(programs, p)
	}
	alive.Unlock()
	signal := func(sig syscall.Signal) {
		for _, p := range programs { // also ended programs, whose group may have other members
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

// await waits until all programs have ended, at most for timeout.
func await(programs []*Process, timeout time.Duration) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for _, p := range programs {
		select {
		case <-p.gone:
		case <-timer.C:
			return
		}
	}
}

// Done returns a channel that is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the program ended, as exec.Cmd.Wait does. It is set once Done is closed.
func (p *Process) Err() error { return p.err }

// Stop sends SIGTERM to the group, kills the remaining processes of the group after grace, and waits for the program.
func (p *Process) Stop(grace time.Duration) {
	select {
	case <-p.done: // another process may have its process ID
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

// Kill kills the group at once, and waits for the program.
func (p *Process) Kill() {
	select {
	case <-p.done: // another process may have its process ID
	default:
		signalGroup(p.cmd, syscall.SIGKILL)
	}
	<-p.done
}

// Run starts cmd and waits for it. If ctx ends first, Run stops the program with this grace, and returns the cause of
// the context, whatever the program's exit code is.
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
