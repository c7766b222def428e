package access

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// line returns a line of a file of tokens: the token "ci" with this digest, and with the further fields rest.
func line(d digest, rest string) string {
	return fmt.Sprintf(`{"digest":%q,"name":"ci",%s}`, d, rest) + "\n"
}

// A Store takes over each valid change of its file of tokens. When the file becomes invalid or unreadable, the tokens
// of its last valid contents remain in force, and the log says so. Tokens in Redis are accepted beside those of the
// file.
func TestAFileOfTokensIsFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) { // replaces the file whole, and lets the Store notice the change
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		r.pass(FreshFor)
	}
	one, digestOne := newSecret()
	two, digestTwo := newSecret()
	const all = `"verbs":["publish"],"queues":["*"]`
	write("# for people\n\n" + line(digestOne, all+`,"expires":"2100-01-02T03:04:05Z"`))
	s := r.store(r.client, path)
	g := r.granted(s, one)
	redistest.Want(t, "name", g.Name(), "ci")
	r.refused(s, two, ErrRefused)
	if secret, err := s.First(t.Context()); secret != "" || err != nil {
		t.Error("a first token was made although there is a file", err)
	}
	stored := r.add(Token{Name: "ci"})
	r.granted(s, stored) // a token in Redis, with a name that is also in the file

	write(line(digestTwo, `"verbs":["inspect"],"queues":["*"]`))
	r.refused(s, one, ErrRefused)
	inspector := r.granted(s, two)
	redistest.Want(t, "inspect", inspector.May(Inspect, "orders"), true)
	redistest.Want(t, "operate", inspector.May(Operate, "orders"), false)
	write("{") // a half-written file
	r.granted(s, two)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.pass(FreshFor)
	r.granted(s, two)
	r.pass(FreshFor)
	r.granted(s, two)
	// One line for the half-written file and one for the missing file, although the missing file was looked for twice.
	redistest.Want(t, "lines about a bad file", strings.Count(r.log(), "cannot be read, so the former tokens hold"), 2)
	write(line(digestOne, all))
	r.granted(s, one)
	r.refused(s, two, ErrRefused)
}

// One invalid line makes Open refuse the whole file. The error names the fault, and shows no secret. The file is
// read before Redis is asked for anything.
func TestAFileThatIsWrongIsRefusedWhole(t *testing.T) {
	t.Parallel()
	none := struct{ rueidis.Client }{} // any command panics
	secret, d := newSecret()
	_, other := newSecret()
	const all = `"verbs":["publish"],"queues":["*"]`
	for what, c := range map[string]struct{ text, says string }{
		"a secret":    {strings.Replace(line(d, all), d.String(), secret, 1), "digest of 47 bytes: must be the SHA-256"},
		"upper case":  {strings.Replace(line(d, all), d.String(), strings.ToUpper(d.String()), 1), "0-9 a-f"},
		"no JSON":     {secret + "\n", "line 1"},
		"two names":   {line(d, all) + line(other, all), "line 2: token \"ci\": must stand in the file once"},
		"two digests": {line(d, all) + strings.Replace(line(d, all), "ci", "cd", 1), "must stand in the file once"},
		"unknown":     {line(d, all+`,"ip":"10.0.0.0/8"`), "ip"}, // ip is no field of a token
		"no verb":     {line(d, `"queues":["*"]`), "verb"},
		"too long":    {strings.Repeat("#", maxFileBytes+1), "at most 16777216 bytes"},
		"a rate beside limits": {line(d, all+`,"rate":"1/s","limits":{"read":5,"write":6,"interval":7}`),
			`limits "read 5, write 6 in 7 s": must not stand beside a rate`},
		"too many": {strings.Repeat("\n", 5) + func() string {
			var b strings.Builder
			for i := range MaxTokens + 1 {
				_, d := newSecret()
				b.WriteString(strings.Replace(line(d, all), "ci", fmt.Sprint("t", i), 1))
			}
			return b.String()
		}(), "at most 10000 tokens"},
	} {
		path := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Config{Client: none, File: path})
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, %v", what, s, err)
		}
	}
	if _, err := Open(Config{Client: none, File: t.TempDir()}); err == nil {
		t.Error("a directory is accepted as the file")
	}
}

// A limit that is added to the file, or changed there, takes effect. An unchanged limit keeps the level of its bucket.
// Each step writes the file with other limits and then publishes five times: want says how many of the five are
// allowed. The third step has the limits of the second, whose bucket is empty by then.
func TestLimitsInAFileAreFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	path := filepath.Join(t.TempDir(), "tokens")
	secret, d := newSecret()
	s := (*Store)(nil)
	for i, c := range []struct {
		limits string
		want   int
	}{{"", 5}, {`,"limits":{"read":0,"write":2,"interval":86400}`, 2}, {`,"limits":{"read":0,"write":2,"interval":86400}`, 0},
		{`,"limits":{"read":0,"write":100,"interval":86400}`, 5}, {"", 5}} {
		// Each text has another size, so that the Store notices the change also within one tick of the file system.
		text := line(d, `"verbs":["publish"],"queues":["*"]`+c.limits) + strings.Repeat("#", i) + "\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s == nil {
			s = r.store(r.client, path)
		}
		r.pass(2 * FreshFor)
		took := 0
		for range 5 {
			if wait, err := s.Take(t.Context(), r.granted(s, secret), Publish, 1); err != nil {
				t.Fatal(err)
			} else if wait == 0 {
				took++
			}
		}
		redistest.Want(t, fmt.Sprint("taken with limits ", c.limits), took, c.want)
	}
}
