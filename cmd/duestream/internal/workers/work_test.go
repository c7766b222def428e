package workers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// A command gets the payload on standard input, byte by byte, and the fields and headers in its environment. A header
// with a zero byte fits only into DUESTREAM_HEADERS, and letters outside of ASCII become "_" in a name.
func TestWorkGivesTheCommandPayloadAndFields(t *testing.T) {
	c, dir := clitest.NewWork(t)
	t.Setenv("DUESTREAM_HEADER_STALE", "x") // as if this worker ran in the command of another message
	payload := "\x00binary\xff\r\n"
	r := c.RunIn(payload, "schedule", "q", "--id", "one", "--header", "trace-id=a b", "--header", "ünï=c",
		"--header", "nul=a\x00b")
	if r.Code != exit.OK {
		t.Fatal(r)
	}
	w := c.Work(dir,
		`env > "$1/env.tmp"; cat > "$1/payload"; mv "$1/env.tmp" "$1/env"; echo to stdout; echo to stderr >&2`)
	c.Gone("one")
	if got, _ := os.ReadFile(filepath.Join(dir, "payload")); string(got) != payload {
		t.Errorf("payload %q", got)
	}
	text, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[name] = value
	}
	for name, want := range map[string]string{
		"DUESTREAM_ID": "one", "DUESTREAM_QUEUE": "q", "DUESTREAM_GROUP": "g", "DUESTREAM_ATTEMPT": "1",
		"DUESTREAM_HEADER_TRACE_ID": "a b", "DUESTREAM_HEADER__N_": "c",
		"DUESTREAM_REDIS_URL": c.URL, "DUESTREAM_PREFIX": c.Prefix, "HOME": os.Getenv("HOME"),
	} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	if _, err := strconv.ParseInt(env["DUESTREAM_DUE_MS"], 10, 64); err != nil ||
		!strings.Contains(env["DUESTREAM_ENTRY"], "-") {
		t.Errorf("due %q, entry %q", env["DUESTREAM_DUE_MS"], env["DUESTREAM_ENTRY"])
	}
	for _, name := range []string{"DUESTREAM_HEADER_STALE", "DUESTREAM_HEADER_NUL"} {
		if value, there := env[name]; there {
			t.Errorf("%s is %q", name, value)
		}
	}
	var headers map[string]string
	if err := json.Unmarshal([]byte(env["DUESTREAM_HEADERS"]), &headers); err != nil || len(headers) != 3 ||
		headers["nul"] != "a\x00b" {
		t.Errorf("headers %v, error %v", headers, err)
	}
	w.Says("to stdout\n")
	if w.Err.String() != "to stderr\n" {
		t.Errorf("stderr %q", w.Err)
	}
	w.Stop()
	if code := w.Wait(); code != exit.OK {
		t.Errorf("exit code %d", code)
	}
}

// A failed command is retried up to max_attempts, which is 3 here. The error of the dead letter has the exit code and
// the end of standard error, cut to the size of an error.
func TestWorkRetriesWithTheEndOfStandardErrorAndThenDeadLetters(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("schedule", "q", "--id", "bad", "x")
	w := c.Work(dir,
		`echo "$DUESTREAM_ATTEMPT" >> "$1/attempts"; head -c 5000 /dev/zero | tr '\0' a >&2; echo " the end" >&2; exit 75`)
	l := c.Letter(w)
	if l.ID != "bad" || l.Group != "g" || l.Reason != "max_attempts" || l.Attempt != 3 ||
		!strings.HasPrefix(l.Error, "exit status 75: aaa") ||
		!strings.HasSuffix(l.Error, "aaa the end") || len(l.Error) > admin.MaxErrorBytes {
		t.Errorf("%+v", l)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "attempts")); string(got) != "1\n2\n3\n" {
		t.Errorf("attempts %q", got)
	}
}

// A command that succeeds at its second attempt gets no third one.
func TestWorkRetriesUntilTheCommandSucceeds(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("schedule", "q", "--id", "flaky", "x")
	c.Work(dir, `echo "$DUESTREAM_ATTEMPT" >> "$1/attempts"; test "$DUESTREAM_ATTEMPT" -eq 2`)
	c.Gone("flaky")
	if got, _ := os.ReadFile(filepath.Join(dir, "attempts")); string(got) != "1\n2\n" {
		t.Errorf("attempts %q", got)
	}
}

// Exit code 65 says that the message itself is bad, so it becomes a dead letter at its first attempt.
func TestWorkDeadLettersAtOnceByExitCode65(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("schedule", "q", "--id", "bad", "x")
	l := c.Letter(c.Work(dir, `echo "no such customer" >&2; exit 65`))
	if l.Reason != "dead_letter" || l.Attempt != 1 || l.Error != "exit status 65: no such customer" {
		t.Errorf("%+v", l)
	}
}

// A command that takes longer than --timeout is killed with its children, and the message fails.
func TestWorkKillsTheWholeGroupOfACommandThatTakesTooLong(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("schedule", "q", "--id", "slow", "--max-attempts", "1", "x")
	// Outer and inner shell ignore SIGTERM, so only SIGKILL to their process group ends them.
	w := c.Work(dir,
		`trap '' TERM; sh -c 'trap "" TERM; echo $$ > "$0/inner"; while :; do sleep 0.1; done' "$1" & echo $$ > "$1/outer"; wait`,
		"--timeout", "300ms", "--kill-after", "100ms")
	if l := c.Letter(w); l.Reason != "handler_timeout" || l.Error != "handler_timeout: not done after 300ms" ||
		l.Attempt != 1 {
		t.Errorf("%+v", l)
	}
	for _, name := range []string{"outer", "inner"} {
		clitest.EventuallyGone(t, clitest.EventuallyNumber(t, filepath.Join(dir, name)))
	}
}

// The handler timeout of the policy wins over --timeout, and that of the message over both.
func TestWorkFollowsTheTimeOfMessageAndPolicy(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("queue", "set", "q", "handler_timeout=300ms", "max_attempts=1")
	c.OK("schedule", "q", "--id", "by policy", "x")
	w := c.Work(dir, `echo waits for "$DUESTREAM_ID" >&2; while :; do sleep 0.01; done`, "--timeout", "1h",
		"--kill-after", "100ms")
	if l := c.Letter(w); l.Reason != "handler_timeout" ||
		l.Error != "handler_timeout: not done after 300ms: waits for by policy" {
		t.Errorf("%+v", l)
	}
	c.OK("queue", "set", "q", "handler_timeout=1h")
	c.OK("dead", "purge", "q", "--all", "--yes")
	c.OK("schedule", "q", "--id", "by itself", "--handler-timeout", "200ms", "x")
	if l := c.Letter(w); l.Reason != "handler_timeout" || l.Attempt != 1 ||
		l.Error != "handler_timeout: not done after 200ms: waits for by itself" {
		t.Errorf("%+v", l)
	}
	c.OK("dead", "redrive", "q", "--all", "--in", "1h")
	if out := c.OK("export", "q"); strings.Count(out, `"handler_timeout_ms":"200"`) != 1 {
		t.Errorf("a redriven letter has not kept its time: %s", out)
	}
}

// A command that exits with 0 because it was told to stop may have left its work undone.
func TestWorkGivesBackWhatAStopCutShort(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("schedule", "q", "--id", "cut", "x")
	w := c.Work(dir, `trap 'exit 0' TERM; echo $$ > "$1/pid"; while :; do sleep 0.01; done`, "--shutdown-timeout", "0s")
	pid := clitest.EventuallyNumber(t, filepath.Join(dir, "pid"))
	w.Stop()
	if code := w.Wait(); code != exit.OK {
		t.Errorf("exit code %d: %s", code, w.Err)
	}
	clitest.EventuallyGone(t, pid)
	var places []admin.Place
	c.JSON(&places, "show", "q", "cut")
	if len(places) != 1 || places[0].State == "pending" || places[0].Attempt != 1 {
		t.Errorf("%+v", places)
	}
}

// A worker that is told to stop waits for its command, and acknowledges the message.
func TestWorkLetsTheCommandFinishWhenItIsToldToStop(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("schedule", "q", "--id", "last", "x")
	w := c.Work(dir, `echo $$ > "$1/pid"; while ! test -e "$1/go"; do sleep 0.01; done`)
	clitest.EventuallyNumber(t, filepath.Join(dir, "pid"))
	w.Stop()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := w.Wait(); code != exit.OK {
		t.Errorf("exit code %d: %s", code, w.Err)
	}
	c.Fails(exit.NotFound, nil, "show", "q", "last")
}

// A worker whose entry is acknowledged by somebody else has lost the delivery. It kills the command, so that the
// message is not worked on twice.
func TestWorkKillsTheCommandWhenItsDeliveryIsLost(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("queue", "set", "q", "--create", "visibility_timeout=300ms")
	c.OK("schedule", "q", "--id", "lost", "x")
	c.Work(dir, `echo "$DUESTREAM_ENTRY" > "$1/entry"; echo $$ > "$1/pid"; sleep 300`)
	pid := clitest.EventuallyNumber(t, filepath.Join(dir, "pid"))
	entry, err := os.ReadFile(filepath.Join(dir, "entry"))
	if err != nil {
		t.Fatal(err)
	}
	client := c.Redis()
	ack := client.B().Xack().Key(c.Key("q", "stream")).Group("g").Id(strings.TrimSpace(string(entry))).Build()
	if n, err := client.Do(t.Context(), ack).AsInt64(); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	clitest.EventuallyGone(t, pid)
}

// With -n 3, three commands run at the same time: each one ends only when all three have begun.
func TestWorkRunsSeveralCommandsAtOnce(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	for _, id := range []string{"a", "b", "c"} {
		c.OK("schedule", "q", "--id", id, "x")
	}
	c.Work(dir,
		`touch "$1/$DUESTREAM_ID"; while ! test -e "$1/a" -a -e "$1/b" -a -e "$1/c"; do sleep 0.01; done; echo line of output`, "-n", "3")
	for _, id := range []string{"a", "b", "c"} {
		c.Gone(id)
	}
}

// A command must not go on without its worker, because its message is delivered again.
func TestCommandDiesWithAWorkerThatIsKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Log("not tested here: it needs Linux (parent-death signal)")
		return
	}
	c, dir := clitest.NewWork(t)
	c.OK("schedule", "q", "--id", "orphan", "x")
	cmd, _ := c.Program("work", "q", "--group", "g", "--redis", c.URL, "--prefix", c.Prefix, "--", "sh", "-c",
		`echo $$ > "$0/pid"; exec sleep 300`, dir)
	pid := clitest.EventuallyNumber(t, filepath.Join(dir, "pid"))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	clitest.EventuallyGone(t, pid)
}

// The first signal lets the command finish, for up to an hour here. A second one ends the worker at once, with an exit
// code of its own.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	c, dir := clitest.NewWork(t)
	c.OK("schedule", "q", "--id", "long", "x")
	cmd, out := c.Program("work", "q", "--group", "g", "--redis", c.URL, "--prefix", c.Prefix, "--shutdown-timeout",
		"1h", "--",
		"sh", "-c", `echo $$ > "$0/pid"; exec sleep 300`, dir)
	clitest.EventuallyNumber(t, filepath.Join(dir, "pid"))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		_ = cmd.Process.Signal(syscall.SIGTERM) // repeated, because two signals that coincide count as one
		select {
		case err = <-ended:
			return true, ""
		default:
			return false, out.String()
		}
	})
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.ExitCode() != exit.Interrupted {
		t.Errorf("%v\n%s", err, out)
	}
}

// Regression: the second signal ended the worker but not its commands. Processes that ignore SIGTERM, and children of a
// shell, went on while the message was delivered again. Now both end before the worker does.
func TestSecondSignalLeavesNoCommandRunning(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			c, dir := clitest.NewWork(t)
			c.OK("schedule", "q", "--id", "long", "x")
			cmd, out := c.Program("work", "q", "--group", "g", "--redis", c.URL, "--prefix", c.Prefix, "--shutdown-timeout",
				"1h",
				"--kill-after", "1h", "--",
				"sh", "-c",
				`trap '' TERM HUP; sh -c 'echo $$ > "$0/inner"; while :; do sleep 0.1; done' "$0" & echo $$ > "$0/outer"; wait; sleep 300`, dir)
			pids := []int{clitest.EventuallyNumber(t, filepath.Join(dir, "outer")),
				clitest.EventuallyNumber(t, filepath.Join(dir, "inner"))}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			redistest.Eventually(t, clitest.Patience, func() (bool, string) {
				_ = cmd.Process.Signal(sig) // repeated, because two signals that coincide count as one
				select {
				case <-ended:
					return true, ""
				default:
					return false, out.String()
				}
			})
			if code := cmd.ProcessState.ExitCode(); code != exit.Interrupted {
				t.Errorf("exit code %d\n%s", code, out)
			}
			for _, pid := range pids {
				if err := syscall.Kill(pid, 0); err == nil && !clitest.Zombie(pid) {
					t.Errorf("process %d of the command runs, and the worker has ended", pid)
				}
			}
			var places []admin.Place
			c.JSON(&places, "show", "q", "long")
			if len(places) != 1 || places[0].State != "pending" || places[0].Attempt != 1 {
				t.Errorf("a message whose result is unknown must stay pending: %+v", places)
			}
		})
	}
}

// One worker with one slot serves three queues. With --strict, all messages of the first queue come first, then those
// of the second; with weights, the order is not certain. Each queue may be named once, with weights or --strict.
func TestWorkServesSeveralQueues(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	dir := t.TempDir()
	for i, queues := range []string{"high,mid,low --strict", "high=6,mid=3,low"} {
		for _, queue := range []string{"low", "high", "mid"} {
			for range 3 {
				c.OK("schedule", queue, "--in", "0s", "x")
			}
		}
		group := fmt.Sprint("g", i)
		args := append(append([]string{"work"}, strings.Fields(queues)...), "--group", group)
		w := c.Start(append(args, "--", "sh", "-c", `echo $DUESTREAM_QUEUE >> "$1"`, "sh", filepath.Join(dir, group))...)
		var got []string
		redistest.Eventually(t, clitest.Patience, func() (bool, string) {
			text, _ := os.ReadFile(filepath.Join(dir, group))
			got = strings.Fields(string(text))
			return len(got) == 9, string(text) + w.Out.String() + w.Err.String()
		})
		if strings.Contains(queues, "strict") && strings.Join(got, " ") != "high high high mid mid mid low low low" {
			t.Error(got)
		}
		w.Stop()
		if code := w.Wait(); code != exit.OK {
			t.Error(code, w.Err.String())
		}
	}
	c = &clitest.CLI{T: t, URL: clitest.Unreachable}
	for _, queues := range []string{"q --strict", "a,a", "a,b=1,a", "a=0", "a=x,b", "a=,b", "a=1001,b", "a,,b", ",",
		"a=1,b --strict", "a{b},c", "a,b c"} {
		c.Fails(exit.Invalid, nil, append(append([]string{"work"}, strings.Fields(queues)...), "--group", "g", "--",
			"true")...)
	}
}
