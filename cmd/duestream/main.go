// Command duestream serves and operates a Redis Streams bridge for delayed messages: see `duestream --help`.
//
// Only this package reads the environment, flags and signals, writes to standard output, or exits. It stands on bridge and
// bridge/admin, as any program may. Each command has a file that its path names (dead_redrive.go); everything else is in
// packages under internal.
//
// Invariants:
//   - exit codes keep their meaning and are documented (TestExitCodesAreDocumented);
//   - wrong input is named, with its limit, before Redis is touched (TestWrongInputIsNamedAndDoesNotTouchRedis);
//   - a file that is scheduled again schedules nothing twice (TestFileAgainSchedulesNothing);
//   - the lines of a file that were not taken are known by number (TestRedisGoneInTheMiddleOfAFileLosesNothing);
//   - work never acknowledges a message whose command it stopped (TestWorkGivesBackWhatAStopCutShort);
//   - bench leaves no keys behind when it ends (TestBenchCleansUpWhenItIsInterrupted);
//   - a terminal is given back as it was, however top ends (TestTopGivesTheTerminalBack,
//     TestTopGivesTheTerminalBackWhenItPanics);
//   - a completion waits for Redis for a second at most (TestCompletionNeverHangs);
//   - the manual page has every command, flag, variable and exit code (TestManualHasEveryCommandFlagCodeAndVariable);
//   - no program that this process started outlives it (TestSecondSignalLeavesNoCommandRunning,
//     TestCommandDiesWithAWorkerThatIsKilled, TestServerOfDevDiesWithIt).
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
	_ "time/tzdata" // of recurrences, where there are no zone files

	"github.com/duestream/duestream/cmd/duestream/internal/child"
)

func main() {
	ctx, stop := interruptible(context.Background())
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	child.EndAll(0)
	os.Exit(code)
}

// lastGrace is how long commands and servers that we started get to end by themselves when we end at once.
const lastGrace = time.Second

// interruptible returns a context that the first SIGINT or SIGTERM cancels, for a clean stop. The second one ends the process
// at once, and what it started before that. A terminal that is closed (SIGHUP) says the same, unless nohup told us not to
// listen.
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
		os.Exit(exitInterrupted)
	}()
	return ctx, cancel
}
