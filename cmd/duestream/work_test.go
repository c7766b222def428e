package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// newWork returns a queue q with short retry delays and a bridge, and a directory for the files of commands.
func newWork(t *testing.T) (*cli, string) {
	c := newCLI(t)
	c.ok("queue", "set", "q", "--create", "retry_min=1ms", "retry_max=1ms", "max_attempts=3")
	c.serve()
	return c, t.TempDir()
}

// work starts a worker whose command is a shell script with the directory as $1.
func (c *cli) work(dir, script string, flags ...string) *running {
	args := append([]string{"work", "q", "--group", "g"}, flags...)
	return c.start(append(args, "--", "sh", "-c", script, "sh", dir)...)
}

// letter waits for the only dead letter of the queue.
func (c *cli) letter(w *running) (l admin.Letter) {
	c.t.Helper()
	redistest.Eventually(c.t, patience, func() (bool, string) {
		out := c.ok("dead", "list", "q", "--json")
		if out == "" {
			if len(w.ended) > 0 {
				c.t.Fatalf("no dead letter, and the worker has ended: %s%s", w.out, w.err)
			}
			return false, "no dead letter; worker: " + w.out.String() + w.err.String()
		}
		decode(c.t, out, &l)
		return true, ""
	})
	return l
}

// gone waits until the message is done for all groups.
func (c *cli) gone(id string) {
	c.t.Helper()
	redistest.Eventually(c.t, patience, func() (bool, string) {
		r := c.run("show", "q", id)
		return r.code == exitNotFound, r.out + r.err
	})
}

func TestWorkGivesTheCommandPayloadAndFields(t *testing.T) {
	c, dir := newWork(t)
	t.Setenv("DUESTREAM_HEADER_STALE", "x") // as if this worker ran in the command of another message
	payload := "\x00binary\xff\r\n"
	r := c.runIn(payload, "schedule", "q", "--id", "one", "--header", "trace-id=a b", "--header", "ünï=c",
		"--header", "nul=a\x00b")
	if r.code != exitOK {
		t.Fatal(r)
	}
	w := c.work(dir, `env > "$1/env.tmp"; cat > "$1/payload"; mv "$1/env.tmp" "$1/env"; echo to stdout; echo to stderr >&2`)
	c.gone("one")
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
		"DUESTREAM_REDIS_URL": c.url, "DUESTREAM_PREFIX": c.prefix, "HOME": os.Getenv("HOME"),
	} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	if _, err := strconv.ParseInt(env["DUESTREAM_DUE_MS"], 10, 64); err != nil || !strings.Contains(env["DUESTREAM_ENTRY"], "-") {
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
	w.says("to stdout\n")
	if w.err.String() != "to stderr\n" {
		t.Errorf("stderr %q", w.err)
	}
	w.stop()
	if code := w.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// The bug: a command got its worker's passwords, and so did everything that shows an environment.
func TestWorkHandsNoPasswordToItsCommand(t *testing.T) {
	for _, name := range ourPasswords {
		t.Setenv(name, "secret")
		t.Setenv(name+"_FILE", "/run/"+name)
	}
	runner := &commandRunner{redisURL: "redis://redis:6379"}
	m := &bridge.Message{}
	m.ID, m.Headers = "one", map[string]string{"redis-password": "of a message"}
	env := runner.environment(m)
	for _, entry := range env {
		if strings.Contains(entry, "secret") {
			t.Errorf("%s", entry)
		}
	}
	for _, want := range []string{"DUESTREAM_REDIS_PASSWORD_FILE=/run/DUESTREAM_REDIS_PASSWORD",
		"DUESTREAM_REDIS_URL=redis://redis:6379", "DUESTREAM_HEADER_REDIS_PASSWORD=of a message"} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
}

func TestWorkRetriesWithTheEndOfStandardErrorAndThenDeadLetters(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "bad", "x")
	w := c.work(dir,
		`echo "$DUESTREAM_ATTEMPT" >> "$1/attempts"; head -c 5000 /dev/zero | tr '\0' a >&2; echo " the end" >&2; exit 75`)
	l := c.letter(w)
	if l.ID != "bad" || l.Group != "g" || l.Reason != "max_attempts" || l.Attempt != 3 ||
		!strings.HasPrefix(l.Error, "exit status 75: aaa") ||
		!strings.HasSuffix(l.Error, "aaa the end") || len(l.Error) > admin.MaxErrorBytes {
		t.Errorf("%+v", l)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "attempts")); string(got) != "1\n2\n3\n" {
		t.Errorf("attempts %q", got)
	}
}

func TestWorkRetriesUntilTheCommandSucceeds(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "flaky", "x")
	c.work(dir, `echo "$DUESTREAM_ATTEMPT" >> "$1/attempts"; test "$DUESTREAM_ATTEMPT" -eq 2`)
	c.gone("flaky")
	if got, _ := os.ReadFile(filepath.Join(dir, "attempts")); string(got) != "1\n2\n" {
		t.Errorf("attempts %q", got)
	}
}

func TestWorkDeadLettersAtOnceByExitCode65(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "bad", "x")
	l := c.letter(c.work(dir, `echo "no such customer" >&2; exit 65`))
	if l.Reason != "dead_letter" || l.Attempt != 1 || l.Error != "exit status 65: no such customer" {
		t.Errorf("%+v", l)
	}
}

func TestWorkKillsTheWholeGroupOfACommandThatTakesTooLong(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "slow", "--max-attempts", "1", "x")
	// Both ignore SIGTERM, so only SIGKILL to the group ends them. An exit code of 0 would not prove that the work
	// was done.
	w := c.work(dir,
		`trap '' TERM; sh -c 'trap "" TERM; echo $$ > "$0/inner"; while :; do sleep 0.1; done' "$1" & echo $$ > "$1/outer"; wait`,
		"--timeout", "300ms", "--kill-after", "100ms")
	if l := c.letter(w); l.Reason != "handler_timeout" || l.Error != "handler_timeout: not done after 300ms" || l.Attempt != 1 {
		t.Errorf("%+v", l)
	}
	for _, name := range []string{"outer", "inner"} {
		eventuallyGone(t, eventuallyNumber(t, filepath.Join(dir, name)))
	}
}

// The handler timeout of the policy wins over --timeout, and that of the message over both.
func TestWorkFollowsTheTimeOfMessageAndPolicy(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("queue", "set", "q", "handler_timeout=300ms", "max_attempts=1")
	c.ok("schedule", "q", "--id", "by policy", "x")
	w := c.work(dir, `echo waits for "$DUESTREAM_ID" >&2; while :; do sleep 0.01; done`, "--timeout", "1h",
		"--kill-after", "100ms")
	if l := c.letter(w); l.Reason != "handler_timeout" ||
		l.Error != "handler_timeout: not done after 300ms: waits for by policy" {
		t.Errorf("%+v", l)
	}
	c.ok("queue", "set", "q", "handler_timeout=1h")
	c.ok("dead", "purge", "q", "--all", "--yes")
	c.ok("schedule", "q", "--id", "by itself", "--handler-timeout", "200ms", "x")
	if l := c.letter(w); l.Reason != "handler_timeout" || l.Attempt != 1 ||
		l.Error != "handler_timeout: not done after 200ms: waits for by itself" {
		t.Errorf("%+v", l)
	}
	c.ok("dead", "redrive", "q", "--all", "--in", "1h")
	if out := c.ok("export", "q"); strings.Count(out, `"handler_timeout_ms":"200"`) != 1 {
		t.Errorf("a redriven letter has not kept its time: %s", out)
	}
}

// A command that exits with 0 because it was told to stop may have left its work undone.
func TestWorkGivesBackWhatAStopCutShort(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "cut", "x")
	w := c.work(dir, `trap 'exit 0' TERM; echo $$ > "$1/pid"; while :; do sleep 0.01; done`, "--shutdown-timeout", "0s")
	pid := eventuallyNumber(t, filepath.Join(dir, "pid"))
	w.stop()
	if code := w.wait(); code != exitOK {
		t.Errorf("exit code %d: %s", code, w.err)
	}
	eventuallyGone(t, pid)
	var places []admin.Place
	c.json(&places, "show", "q", "cut")
	if len(places) != 1 || places[0].State == "pending" || places[0].Attempt != 1 {
		t.Errorf("%+v", places)
	}
}

func TestWorkLetsTheCommandFinishWhenItIsToldToStop(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "last", "x")
	w := c.work(dir, `echo $$ > "$1/pid"; while ! test -e "$1/go"; do sleep 0.01; done`)
	eventuallyNumber(t, filepath.Join(dir, "pid"))
	w.stop()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := w.wait(); code != exitOK {
		t.Errorf("exit code %d: %s", code, w.err)
	}
	c.fails(exitNotFound, nil, "show", "q", "last")
}

func TestWorkKillsTheCommandWhenItsDeliveryIsLost(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("queue", "set", "q", "--create", "visibility_timeout=300ms")
	c.ok("schedule", "q", "--id", "lost", "x")
	c.work(dir, `echo "$DUESTREAM_ENTRY" > "$1/entry"; echo $$ > "$1/pid"; sleep 300`)
	pid := eventuallyNumber(t, filepath.Join(dir, "pid"))
	entry, err := os.ReadFile(filepath.Join(dir, "entry"))
	if err != nil {
		t.Fatal(err)
	}
	client := c.redis()
	ack := client.B().Xack().Key(c.key("q", "stream")).Group("g").Id(strings.TrimSpace(string(entry))).Build()
	if n, err := client.Do(t.Context(), ack).AsInt64(); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	eventuallyGone(t, pid)
}

func TestWorkRunsSeveralCommandsAtOnce(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	for _, id := range []string{"a", "b", "c"} {
		c.ok("schedule", "q", "--id", id, "x")
	}
	// Each one waits for the other two.
	c.work(dir,
		`touch "$1/$DUESTREAM_ID"; while ! test -e "$1/a" -a -e "$1/b" -a -e "$1/c"; do sleep 0.01; done; echo line of output`, "-n", "3")
	for _, id := range []string{"a", "b", "c"} {
		c.gone(id)
	}
}

func TestCommandDiesWithAWorkerThatIsKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Log("only Linux tells a child of its parent's death: nothing to see here")
		return
	}
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "orphan", "x")
	cmd, _ := c.program("work", "q", "--group", "g", "--redis", c.url, "--prefix", c.prefix, "--", "sh", "-c",
		`echo $$ > "$0/pid"; exec sleep 300`, dir)
	pid := eventuallyNumber(t, filepath.Join(dir, "pid"))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventuallyGone(t, pid)
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	c, dir := newWork(t)
	c.ok("schedule", "q", "--id", "long", "x")
	cmd, out := c.program("work", "q", "--group", "g", "--redis", c.url, "--prefix", c.prefix, "--shutdown-timeout", "1h", "--",
		"sh", "-c", `echo $$ > "$0/pid"; exec sleep 300`, dir)
	eventuallyNumber(t, filepath.Join(dir, "pid"))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	redistest.Eventually(t, patience, func() (bool, string) {
		_ = cmd.Process.Signal(syscall.SIGTERM) // repeated, because two signals that coincide count as one
		select {
		case err = <-ended:
			return true, ""
		default:
			return false, out.String()
		}
	})
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.ExitCode() != exitInterrupted {
		t.Errorf("%v\n%s", err, out)
	}
}

// The bug: the second signal ended the worker but not its commands. Processes that ignore SIGTERM, and children of a
// shell, went on while the message was delivered again. Now both end before the worker does.
func TestSecondSignalLeavesNoCommandRunning(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			c, dir := newWork(t)
			c.ok("schedule", "q", "--id", "long", "x")
			cmd, out := c.program("work", "q", "--group", "g", "--redis", c.url, "--prefix", c.prefix, "--shutdown-timeout", "1h",
				"--kill-after", "1h", "--",
				"sh", "-c",
				`trap '' TERM HUP; sh -c 'echo $$ > "$0/inner"; while :; do sleep 0.1; done' "$0" & echo $$ > "$0/outer"; wait; sleep 300`, dir)
			pids := []int{eventuallyNumber(t, filepath.Join(dir, "outer")), eventuallyNumber(t, filepath.Join(dir, "inner"))}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			redistest.Eventually(t, patience, func() (bool, string) {
				_ = cmd.Process.Signal(sig) // repeated, because two signals that coincide count as one
				select {
				case <-ended:
					return true, ""
				default:
					return false, out.String()
				}
			})
			if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
				t.Errorf("exit code %d\n%s", code, out)
			}
			for _, pid := range pids {
				if err := syscall.Kill(pid, 0); err == nil && !zombie(pid) {
					t.Errorf("process %d of the command runs, and the worker has ended", pid)
				}
			}
			var places []admin.Place
			c.json(&places, "show", "q", "long")
			if len(places) != 1 || places[0].State != "pending" || places[0].Attempt != 1 {
				t.Errorf("nobody knows how it ended: it waits for the visibility timeout: %+v", places)
			}
		})
	}
}

// zombie reports whether a process has ended, even if its parent has not waited for it yet.
func zombie(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	state := strings.TrimSpace(string(out))
	return err != nil || state == "" || strings.HasPrefix(state, "Z")
}

// A worker on a terminal prints its state, and a line for each retry with its delay.
func TestALineTellsOfARetryWithItsDelay(t *testing.T) {
	t.Parallel()
	s := new(strings.Builder)
	a := &app{printer: printer{err: s}}
	a.tellRetried(&bridge.Message{}, 1500_000_000, "exit status 1: \x1b[31mno\n")
	if out := s.String(); !strings.Contains(out, "attempt 0 failed, again in 2s: exit status 1:  [31mno") ||
		strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
}

// With one slot and three queues, the first queues are served first. Each queue is named once, with weights or
// --strict.
func TestWorkServesSeveralQueues(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	dir := t.TempDir()
	for i, queues := range []string{"high,mid,low --strict", "high=6,mid=3,low"} {
		for _, queue := range []string{"low", "high", "mid"} {
			for range 3 {
				c.ok("schedule", queue, "--in", "0s", "x")
			}
		}
		group := fmt.Sprint("g", i)
		args := append(append([]string{"work"}, strings.Fields(queues)...), "--group", group)
		w := c.start(append(args, "--", "sh", "-c", `echo $DUESTREAM_QUEUE >> "$1"`, "sh", filepath.Join(dir, group))...)
		var got []string
		redistest.Eventually(t, patience, func() (bool, string) {
			text, _ := os.ReadFile(filepath.Join(dir, group))
			got = strings.Fields(string(text))
			return len(got) == 9, string(text) + w.out.String() + w.err.String()
		})
		if strings.Contains(queues, "strict") && strings.Join(got, " ") != "high high high mid mid mid low low low" {
			t.Error(got)
		}
		w.stop()
		if code := w.wait(); code != exitOK {
			t.Error(code, w.err.String())
		}
	}
	c = &cli{t: t, url: unreachable}
	for _, queues := range []string{"q --strict", "a,a", "a,b=1,a", "a=0", "a=x,b", "a=,b", "a=1001,b", "a,,b", ",",
		"a=1,b --strict", "a{b},c", "a,b c"} {
		c.fails(exitInvalid, nil, append(append([]string{"work"}, strings.Fields(queues)...), "--group", "g", "--", "true")...)
	}
}
