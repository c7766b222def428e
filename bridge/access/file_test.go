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

func line(d digest, rest string) string {
	return fmt.Sprintf(`{"digest":%q,"name":"ci",%s}`, d, rest) + "\n"
}

func TestAFileOfTokensIsFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
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
		t.Error("a first token beside a file", err)
	}
	stored := r.add(Token{Name: "ci"})
	r.granted(s, stored) // tokens in Redis count as well

	write(line(digestTwo, all))
	r.refused(s, one, ErrRefused)
	r.granted(s, two)
	write("{") // a half-written file
	r.granted(s, two)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.pass(FreshFor)
	r.granted(s, two)
	r.pass(FreshFor)
	r.granted(s, two)
	redistest.Want(t, "lines of what is wrong", strings.Count(r.log(), "cannot be read, so the former tokens hold"), 2)
	write(line(digestOne, all))
	r.granted(s, one)
	r.refused(s, two, ErrRefused)
}

func TestAFileThatIsWrongIsRefusedWhole(t *testing.T) {
	t.Parallel()
	none := struct{ rueidis.Client }{} // a call panics
	secret, d := newSecret()
	_, other := newSecret()
	const all = `"verbs":["publish"],"queues":["*"]`
	for what, c := range map[string]struct{ text, says string }{
		"a secret":    {strings.Replace(line(d, all), d.String(), secret, 1), "digest of 47 bytes: must be the SHA-256"},
		"upper case":  {strings.Replace(line(d, all), d.String(), strings.ToUpper(d.String()), 1), "0-9 a-f"},
		"no JSON":     {secret + "\n", "line 1"},
		"two names":   {line(d, all) + line(other, all), "line 2: token \"ci\": must stand in the file once"},
		"two digests": {line(d, all) + strings.Replace(line(d, all), "ci", "cd", 1), "must stand in the file once"},
		"unknown":     {line(d, all+`,"ip":"10.0.0.0/8"`), "ip"},
		"no verb":     {line(d, `"queues":["*"]`), "verb"},
		"too long":    {strings.Repeat("#", maxFileBytes+1), "at most 16777216 bytes"},
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
		t.Error("a directory")
	}
}

// A limit that is added to the file, or changed there, takes effect. An unchanged limit keeps the level of its bucket.
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
		text := line(d, `"verbs":["publish"],"queues":["*"]`+c.limits) + strings.Repeat("#", i) + "\n" // a new size
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
