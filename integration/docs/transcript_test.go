package docs

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fenced is one fenced block of a document.
type fenced struct {
	document string
	line     int // the number of the first line inside
	lines    []string
}

func fencedBlocks(t *testing.T, document, language string) []fenced {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(document)))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []fenced
	inside := ""
	for i, line := range strings.Split(string(text), "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && inside == "":
			inside = "other"
			if fence == language {
				inside = fence
				blocks = append(blocks, fenced{document: document, line: i + 2})
			}
		case isFence:
			inside = ""
		case inside == language:
			b := &blocks[len(blocks)-1]
			b.lines = append(b.lines, line)
		}
	}
	return blocks
}

// replay holds what all transcripts of one document share: the values of the placeholders.
type replay struct {
	t     *testing.T
	url   string
	known map[string]string
}

// step is a command of a transcript and its expected reply.
type step struct {
	line     int
	command  string
	reply    []string
	within   time.Duration
	anyOrder bool
}

var (
	withinRule  = regexp.MustCompile(`(?i)within (\d+) s`)
	anyOrder    = regexp.MustCompile(`(?i)in any order`)
	placeholder = regexp.MustCompile(`<([a-z][a-z0-9-]*)>`)
	definition  = regexp.MustCompile(`<([a-z][a-z0-9-]*) = now \+ (\d+) (ms|s|min|d)>`)
)

func steps(t *testing.T, b fenced) []step {
	t.Helper()
	var all []step
	next := step{}
	for i, line := range b.lines {
		command, isCommand := strings.CutPrefix(line, "> ")
		switch {
		case isCommand:
			next.line, next.command = b.line+i, command
			all = append(all, next)
			next = step{}
		case strings.HasPrefix(line, "#"):
			if m := withinRule.FindStringSubmatch(line); m != nil {
				seconds, _ := strconv.Atoi(m[1])
				next.within = time.Duration(seconds) * time.Second
			}
			next.anyOrder = next.anyOrder || anyOrder.MatchString(line)
		case strings.TrimSpace(line) == "":
		case len(all) == 0:
			t.Fatalf("%s:%d: a reply before the first command: %s", b.document, b.line+i, line)
		default:
			last := &all[len(all)-1]
			last.reply = append(last.reply, line)
		}
	}
	return all
}

// runBlock sends the commands of a block, and fails if a reply differs from the expected one.
func (r *replay) runBlock(b fenced) {
	r.t.Helper()
	cli := startRedisCLI(r.t, r.url)
	defer cli.end()
	for _, s := range steps(r.t, b) {
		command := r.fill(definition.ReplaceAllStringFunc(s.command, r.define))
		begin := time.Now()
		for {
			got := cli.send(command)
			err := r.match(s, got)
			if err == nil {
				break
			}
			if time.Since(begin) > s.within {
				r.t.Fatalf("%s:%d: %v\n> %s\n%s\nexpected:\n%s", b.document, s.line, err, command, strings.Join(got, "\n"),
					strings.Join(s.reply, "\n"))
			}
			timer := time.NewTimer(20 * time.Millisecond)
			<-timer.C
		}
	}
}

// define sets the value of a placeholder of the form <due = now + 2 s>.
func (r *replay) define(text string) string {
	m := definition.FindStringSubmatch(text)
	n, _ := strconv.Atoi(m[2])
	unit := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "min": time.Minute, "d": 24 * time.Hour}[m[3]]
	r.known[m[1]] = strconv.FormatInt(time.Now().Add(time.Duration(n)*unit).UnixMilli(), 10)
	return r.known[m[1]]
}

// fill replaces the placeholders of a command.
func (r *replay) fill(command string) string {
	return placeholder.ReplaceAllStringFunc(command, func(p string) string {
		value, ok := r.known[p[1:len(p)-1]]
		if !ok {
			r.t.Fatalf("%s has no value yet: %s", p, command)
		}
		return value
	})
}

// match compares a reply with the expected one, and records the values of new placeholders.
func (r *replay) match(s step, got []string) error {
	learned := map[string]string{}
	line := func(want, got string) bool {
		pattern, names := r.pattern(want, learned)
		m := regexp.MustCompile(`^` + pattern + `$`).FindStringSubmatch(got)
		if m == nil {
			return false
		}
		for i, name := range names {
			learned[name] = m[i+1]
		}
		return true
	}
	var ok bool
	if s.anyOrder {
		ok = matchUnordered(s.reply, got, line)
	} else {
		ok = matchOrdered(s.reply, got, line)
	}
	if !ok {
		return errors.New("the reply differs")
	}
	for name, value := range learned {
		r.known[name] = value
	}
	return nil
}

// pattern returns a regular expression for a line of an expected reply, and the placeholders whose values its groups
// capture.
func (r *replay) pattern(want string, learned map[string]string) (pattern string, names []string) {
	at := 0
	for _, m := range placeholder.FindAllStringSubmatchIndex(want, -1) {
		pattern += regexp.QuoteMeta(want[at:m[0]])
		at = m[1]
		name := want[m[2]:m[3]]
		value, known := r.known[name]
		if !known {
			value, known = learned[name]
		}
		switch {
		case name == "ms":
			pattern += `\d{13}`
		case name == "n":
			pattern += `\d+`
		case name == "text":
			pattern += `.*`
		case known:
			pattern += regexp.QuoteMeta(value)
		default:
			pattern += `(\d+-\d+)`
			names = append(names, name)
		}
	}
	return pattern + regexp.QuoteMeta(want[at:]), names
}

func matchOrdered(want, got []string, line func(want, got string) bool) bool {
	for i, w := range want {
		if strings.TrimSpace(w) == "…" {
			for rest := range len(got) - i + 1 {
				if matchOrdered(want[i+1:], got[i+rest:], line) {
					return true
				}
			}
			return false
		}
		if i >= len(got) || !line(w, got[i]) {
			return false
		}
	}
	return len(want) == len(got)
}

// matchUnordered ignores the order of lines and the numbers of list items.
func matchUnordered(want, got []string, line func(want, got string) bool) bool {
	bare := regexp.MustCompile(`^ *(\d+\) +)*`)
	left := make([]string, len(got))
	for i, g := range got {
		left[i] = bare.ReplaceAllString(g, "")
	}
	for _, w := range want {
		found := false
		for i, g := range left {
			if line(bare.ReplaceAllString(w, ""), g) {
				left, found = append(left[:i:i], left[i+1:]...), true
				break
			}
		}
		if !found {
			return false
		}
	}
	return len(left) == 0
}

// redisCLI is a running redis-cli that gets commands on its standard input.
type redisCLI struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func startRedisCLI(t *testing.T, url string) *redisCLI {
	t.Helper()
	path, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Fatal("redis-cli is not on the PATH: install Debian's redis-tools, or redis-server")
	}
	c := &redisCLI{t: t, cmd: exec.Command(path, "-u", url, "--no-auth-warning", "--no-raw"), lines: make(chan string)}
	c.in, err = c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stderr = os.Stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			c.lines <- scan.Text()
		}
	}()
	return c
}

// elapsed matches the line that redis-cli adds after a command that took half a second or more.
var elapsed = regexp.MustCompile(`^\(\d+\.\d+s\)$`)

// send sends a command and, after it, a lone quote, for which redis-cli prints an error without asking the server. It
// returns the lines before that error: the reply. This works within MULTI, too.
func (c *redisCLI) send(command string) []string {
	c.t.Helper()
	if _, err := io.WriteString(c.in, command+"\n\"\n"); err != nil {
		c.t.Fatalf("redis-cli: %v", err)
	}
	var got []string
	timeout := time.NewTimer(60 * time.Second)
	defer timeout.Stop()
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				c.t.Fatalf("redis-cli ended after %q: %q", command, got)
			}
			if line == "Invalid argument(s)" {
				return got
			}
			if !elapsed.MatchString(line) {
				got = append(got, line)
			}
		case <-timeout.C:
			c.t.Fatalf("no reply to %q: %q", command, got)
		}
	}
}

func (c *redisCLI) end() {
	c.in.Close()
	for range c.lines {
	}
	if err := c.cmd.Wait(); err != nil && !c.t.Failed() {
		c.t.Errorf("redis-cli: %v", err)
	}
}
