// Command duestream serves and operates a Redis Streams bridge for delayed messages: see `duestream --help`.
//
// Only this command, with its packages under internal, reads the environment, flags and signals, writes to standard
// output, or exits. It uses bridge and bridge/admin, as any program may. Package command under internal puts the
// commands together. Each command is in a file with its name (dead_redrive.go), in the package of its subject:
// messages, looking, deadletters, recurrences, queues, workers, servers, functions or tools.
//
// Invariants:
//   - exit codes keep their meaning and are documented (TestExitCodesAreDocumented);
//   - wrong input is reported with its limit, before Redis is touched (TestWrongInputIsNamedAndDoesNotTouchRedis);
//   - scheduling a file again schedules nothing twice (TestFileAgainSchedulesNothing);
//   - after a failure, the command prints the number of the line to continue from
//     (TestRedisGoneInTheMiddleOfAFileLosesNothing);
//   - work never acknowledges a message whose command it stopped (TestWorkGivesBackWhatAStopCutShort);
//   - bench leaves no keys behind when it ends (TestBenchCleansUpWhenItIsInterrupted);
//   - top restores the terminal, however it ends (TestTopGivesTheTerminalBack,
//     TestTopGivesTheTerminalBackWhenItPanics);
//   - a completion waits at most one second for Redis (TestCompletionNeverHangs);
//   - the manual page has every command, flag, variable and exit code (TestManualIsComplete);
//   - no program that this process started outlives it (TestSecondSignalLeavesNoCommandRunning,
//     TestCommandDiesWithAWorkerThatIsKilled, TestServerOfDevDiesWithIt).
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
	_ "time/tzdata" // time zones for recurrences on systems without zone files

	"github.com/duestream/duestream/cmd/duestream/internal/child"
	"github.com/duestream/duestream/cmd/duestream/internal/command"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
)

// version is set by the linker: see Makefile.
var version = "devel"

func main() {
	ctx, stop := interruptible(context.Background())
	code := command.Run(ctx, version, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	child.EndAll(0)
	os.Exit(code)
}

// lastGrace is the time between SIGTERM and SIGKILL to child processes when this process ends at once.
const lastGrace = time.Second

// interruptible returns a context that the first SIGINT or SIGTERM cancels, for a clean stop. A second signal ends
// the child processes and then this process at once. SIGHUP, which a closed terminal sends, counts like SIGTERM, unless
// SIGHUP is ignored (nohup).
func interruptible(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		<-signals
		cancel()
		<-signals
		child.EndAll(lastGrace)
		os.Exit(exit.Interrupted)
	}()
	return ctx, cancel
}
