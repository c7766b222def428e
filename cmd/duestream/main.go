// Command duestream serves and operates a Redis Streams bridge for delayed messages: see `duestream --help`.
//
// Only this package reads the environment, flags and signals, writes to standard output, or exits. Of our packages it uses bridge, and bench,
// which is part of this command.
//
// Invariants:
//   - exit codes keep their meaning and are documented (TestExitCodesAreDocumented);
//   - wrong input is named, with its limit, before Redis is touched (TestWrongInputIsNamedAndDoesNotTouchRedis);
//   - a file that is scheduled again schedules nothing twice (TestFileAgainSchedulesNothing);
//   - what was not taken of a file is known by its line (TestRedisGoneInTheMiddleOfAFileLosesNothing);
//   - a command that was told to stop is never taken for done (TestWorkGivesBackWhatAStopCutShort);
//   - what bench makes is gone when it ends (TestBenchCleansUpWhenItIsInterrupted);
//   - a terminal is given back as it was, however top ends (TestTopGivesTheTerminalBack, TestTopGivesTheTerminalBackWhenItPanics);
//   - while someone types, nothing waits for Redis longer than a second (TestCompletionNeverHangs);
//   - the manual page has every command, flag, variable and exit code (TestManualHasEveryCommandFlagCodeAndVariable);
//   - nothing that we started outlives us (TestCommandDiesWithAWorkerThatIsKilled, TestServerOfDevDiesWithIt).
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := interruptible(context.Background())
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// interruptible returns a context that the first SIGINT or SIGTERM cancels, for a clean stop. The second one ends the process at once.
func interruptible(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(exitInterrupted)
	}()
	return ctx, cancel
}
