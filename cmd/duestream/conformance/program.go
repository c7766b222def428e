package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/cmd/duestream/internal/child"
)

const (
	stderrLines = 20
	stderrBytes = 16 << 10
	lineBytes   = 64 << 20        // longest line that a program may print
	outputDelay = 2 * time.Second // how long a child of the program may hold its output after its end
)

// program is a running producer or worker.
type program struct {
	name  string
	cmd   *exec.Cmd
	proc  *child.Process
	stdin io.WriteCloser // of a producer only
	last  *tail

	mu          sync.Mutex
	lines       lineReader
	badLine     string // the first output line that breaks the contract, with the reason; "": none
	endExpected bool   // the kit expects the program to end
}

// launch starts a program with the environment of the contract. take is called with each output line, one at a time.
func launch(cfg *Config, name string, env []string, stdin bool, take func(line []byte) error) (*program, error) {
	p := &program{name: name, last: &tail{}}
	p.cmd = exec.Command(cfg.Command[0], cfg.Command[1:]...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.WaitDelay = outputDelay
	p.cmd.Stderr = p.last
	if cfg.Stderr != nil {
		p.cmd.Stderr = io.MultiWriter(p.last, cfg.Stderr)
	}
	p.lines.take = func(line []byte) {
		err := take(line)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil && p.badLine == "" {
			p.badLine = fmt.Sprintf("%s: %.200q", err, line)
		}
	}
	p.cmd.Stdout = &p.lines
	var err error
	if stdin {
		if p.stdin, err = p.cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	if p.proc, err = child.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Command[0], err)
	}
	return p, nil
}

// terminate sends SIGTERM to the program itself, not to its children, as a shell, Docker and Kubernetes do.
func (p *program) terminate() {
	p.expectEnd()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
}

// kill ends the program and its children, and returns when all its output was read.
func (p *program) kill() {
	p.expectEnd()
	p.proc.Kill()
}

// expectEnd says that an end of the program is no fault from now on.
func (p *program) expectEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endExpected = true
}

// running reports whether the program still runs.
func (p *program) running() bool {
	select {
	case <-p.proc.Done():
		return false
	default:
		return true
	}
}

// misprint returns an error with the first output line that does not parse, or nil.
func (p *program) misprint() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.badLine == "" {
		return nil
	}
	return fmt.Errorf("%s printed a line that is not of the contract: %s", p.name, p.badLine)
}

// ended returns an error if the program ended although the kit did not expect its end.
func (p *program) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endExpected || p.running() {
		return nil
	}
	return fmt.Errorf("%s ended by itself: %s", p.name, p.cmd.ProcessState)
}

// lineReader passes on whole lines of the bytes written to it.
type lineReader struct {
	take func([]byte)
	rest []byte
}

func (l *lineReader) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			break
		}
		if len(bytes.TrimSpace(line)) > 0 {
			l.take(bytes.TrimSpace(line))
		}
		l.rest = rest
	}
	if len(l.rest) > lineBytes { // report its beginning as a line, which does not parse
		l.take(l.rest[:200])
		l.rest = nil
	}
	return len(b), nil
}

// tail keeps the end of the bytes written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if extra := len(t.text) - stderrBytes; extra > 0 {
		t.text = append(t.text[:0], t.text[extra:]...)
	}
	return len(b), nil
}

// String returns the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(t.text), "?")), "\n")
	return strings.Join(lines[max(0, len(lines)-stderrLines):], "\n")
}

// begun is an output line of a worker: it begins to work on a message.
type begun struct {
	ID      string            `json:"id"`
	Attempt int               `json:"attempt"`
	Payload []byte            `json:"payload"`
	Headers map[string]string `json:"headers"`

	by string // name of the worker
	at time.Time
}

// readBegun parses an output line of a worker. All fields are required.
func readBegun(line []byte) (b begun, err error) {
	var given struct {
		ID      *string
		Attempt *int
		Payload *[]byte
		Headers *map[string]string
	}
	if !utf8.Valid(line) {
		return b, fmt.Errorf("it is not UTF-8")
	}
	if err := json.Unmarshal(line, &given); err != nil {
		return b, fmt.Errorf("it is no JSON of a begun message (%v)", err)
	}
	if given.ID == nil || given.Attempt == nil || given.Payload == nil || given.Headers == nil {
		return b, fmt.Errorf("it lacks id, attempt, payload or headers")
	}
	return begun{ID: *given.ID, Attempt: *given.Attempt, Payload: *given.Payload, Headers: *given.Headers, at: time.Now()}, nil
}

// answer is an output line of a producer.
type answer struct {
	ID    string `json:"id"`
	OK    bool   `json:"ok"`
	Error string `json:"error"`
}

// readAnswer parses an output line of a producer.
func readAnswer(line []byte) (a answer, err error) {
	var given struct {
		ID    *string
		OK    *bool
		Error string
	}
	if err := json.Unmarshal(line, &given); err != nil {
		return a, fmt.Errorf("it is no JSON of an answer (%v)", err)
	}
	if given.ID == nil || given.OK == nil {
		return a, fmt.Errorf("it lacks id or ok")
	}
	return answer{*given.ID, *given.OK, given.Error}, nil
}

// order is an input line for a producer.
type order struct {
	ID          string            `json:"id"`
	Due         int64             `json:"due_ms"`
	Payload     []byte            `json:"payload,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Expires     int64             `json:"expires_ms,omitempty"`
	Dedup       int64             `json:"dedup_ms,omitempty"` // only at level complete
}
