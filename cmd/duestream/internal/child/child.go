// Package child runs other programs so that they do not outlive this one: each leads a process group of its own, which is ended as a
// whole, and which a Ctrl-C at the terminal does not reach before we have seen it. On Linux the program also ends when this process is
// killed in a way that leaves it no time to clean up.
//
// Invariants, held by tests of the command:
//   - the whole group ends, also what ignores SIGTERM (TestWorkKillsTheWholeGroupOfACommandThatTakesTooLong);
//   - the program dies with this process, on Linux (TestCommandDiesWithAWorkerThatIsKilled).
package child

import (
	"context"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a program that was started.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start starts cmd. The program is gone when Done is closed.
func Start(cmd *exec.Cmd) (*Process, error) {
	own(cmd)
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The death signal of Linux is bound to the thread that started the program: this one lives as long as it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		close(p.done)
	}()
	return p, <-started
}

// Done is closed when the program has ended.
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

// Run starts cmd and waits for it. When ctx ends first the program is stopped, with so much grace; the error is the context's cause
// then, however the program took it.
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
