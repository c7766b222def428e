package workers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/child"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// commandRunner is a handler that runs a command.
type commandRunner struct {
	path      string
	args      []string // beginning with the command's name
	killAfter time.Duration

	redisURL, prefix string
	out, err         io.Writer

	stop func() // stops the worker cleanly

	mu       sync.Mutex
	startErr error // the reason why commands cannot be started
}

const (
	startTimeout = 2 * time.Second // a binary that is being replaced is missing for a moment
	startPause   = 50 * time.Millisecond
)

// handle runs the command. If the command cannot be started, the message is not at fault, and the next message would
// meet the same error. So the worker stops, and the message is given back without counting an attempt.
func (c *commandRunner) handle(ctx context.Context, m *bridge.Message) error {
	for began := time.Now(); ; {
		if err := c.startError(); err != nil {
			return bridge.Release(err)
		}
		started, err := c.run(ctx, m)
		switch {
		// E2BIG means that the headers of this message are too large for an environment. The command can never start
		// for this message, but it can for others.
		case started, errors.Is(err, syscall.E2BIG):
			return err
		case ctx.Err() != nil:
			return bridge.Release(err)
		case time.Since(began) >= startTimeout:
			c.giveUp(err)
			return bridge.Release(err)
		}
		timer := time.NewTimer(startPause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// giveUp stops the worker because commands cannot be started.
func (c *commandRunner) giveUp(err error) {
	c.mu.Lock()
	if c.startErr == nil {
		c.startErr = fmt.Errorf("%w: %w", exit.ErrCommandStart, err)
	}
	c.mu.Unlock()
	c.stop() // before any message is given back, because a running worker would read the message again
}

// startError returns the reason why commands cannot be started, or nil.
func (c *commandRunner) startError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.startErr
}

// run runs the command once. If the command was started, the error is the handler's result.
func (c *commandRunner) run(ctx context.Context, m *bridge.Message) (started bool, _ error) {
	stderr := &tail{maxBytes: admin.MaxErrorBytes}
	cmd := &exec.Cmd{
		Path: c.path, Args: c.args, Env: c.environment(m), Stdin: bytes.NewReader(m.Payload),
		Stdout: c.out, Stderr: io.MultiWriter(c.err, stderr),
		WaitDelay: c.killAfter, // for children of the command that still hold its output
	}
	err := child.Run(ctx, cmd, c.killAfter)
	if cmd.ProcessState == nil {
		return false, fmt.Errorf("start %s: %w", c.path, err)
	}
	return true, c.verdict(ctx, cmd.ProcessState, err, stderr)
}

// verdict returns the handler's result for a command that has ended.
func (c *commandRunner) verdict(ctx context.Context, state *os.ProcessState, err error, stderr *tail) error {
	switch code := state.ExitCode(); { // -1 if a signal killed the command
	case errors.Is(err, bridge.ErrHandlerTimeout):
		if text := stderr.text(stderr.maxBytes - timeoutPrefixBytes); text != "" {
			return errors.New(text)
		}
		return err
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return err // this process stopped the command: its work may be unfinished, even if its exit code is 0
	case code == 0:
		return nil
	case code == commandDeadLetter:
		return bridge.DeadLetter(stderr.error(state.String()))
	}
	return stderr.error(state.String())
}

// timeoutPrefixBytes is more than the length of the text that the worker puts before the error of a timed-out attempt.
const timeoutPrefixBytes = 80

// ourPasswords are variables that the command does not get, because it could reveal its environment in its output or
// its logs, or to a program that it starts.
var ourPasswords = []string{"DUESTREAM_REDIS_PASSWORD", "DUESTREAM_SENTINEL_PASSWORD"}

// environment returns the environment of the command: the variables of this process without passwords, and the
// variables of the message. If this worker runs inside the command of another worker, the variables of the other
// worker's message are left out.
func (c *commandRunner) environment(m *bridge.Message) []string {
	variables := map[string]string{
		"DUESTREAM_REDIS_URL": c.redisURL, "DUESTREAM_PREFIX": c.prefix,
		"DUESTREAM_ID": m.ID, "DUESTREAM_QUEUE": m.Queue, "DUESTREAM_GROUP": m.Group,
		"DUESTREAM_ATTEMPT": strconv.Itoa(m.Attempt), "DUESTREAM_ENTRY": m.EntryID, "DUESTREAM_DUE_MS": "",
		"DUESTREAM_HEADERS": "{}",
	}
	if !m.Due.IsZero() {
		variables["DUESTREAM_DUE_MS"] = strconv.FormatInt(m.Due.UnixMilli(), 10)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		variables[headerVariable(name)] = m.Headers[name]
	}
	if len(m.Headers) > 0 {
		text, err := json.Marshal(m.Headers)
		if err != nil {
			panic(err) // a map of strings always encodes
		}
		variables["DUESTREAM_HEADERS"] = string(text)
	}
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := variables[name]
		return replaced || strings.HasPrefix(name, headerVariables) || slices.Contains(ourPasswords, name)
	})
	for name, value := range variables {
		if !strings.ContainsRune(value, 0) { // a NUL in a variable would keep the command from starting
			env = append(env, name+"="+value)
		}
	}
	return env
}

const headerVariables = "DUESTREAM_HEADER_"

// headerVariable returns the variable of a header: trace-id is DUESTREAM_HEADER_TRACE_ID.
func headerVariable(name string) string {
	return headerVariables + strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(name))
}

// tail keeps the end of what is written to it.
type tail struct {
	maxBytes int
	b        []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if extra := len(t.b) - t.maxBytes; extra > 0 {
		t.b = append(t.b[:0], t.b[extra:]...)
	}
	return len(p), nil
}

// error returns an error of at most maxBytes, which has a prefix and as much of the tail as fits.
func (t *tail) error(prefix string) error {
	text := t.text(t.maxBytes - len(prefix) - len(": "))
	if text == "" {
		return errors.New(prefix)
	}
	return fmt.Errorf("%s: %s", prefix, text)
}

// text returns at most the last maxBytes of the tail.
func (t *tail) text(maxBytes int) string {
	end := t.b[max(0, len(t.b)-max(0, maxBytes)):]
	return strings.TrimSpace(strings.ToValidUTF8(string(end), ""))
}

// sharedWriter returns a stream that several commands may write to at once. A file is given to the commands directly,
// without copying through this process.
func sharedWriter(w io.Writer) io.Writer {
	raw := term.Unfiltered(w).(io.Writer)
	if f, ok := raw.(*os.File); ok {
		return f
	}
	return term.NewLockedWriter(raw)
}
