package access

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/duestream/duestream/lua"
)

const maxFileBytes = 16 << 20

// FileToken is a line of a file of tokens: a token with the SHA-256 of its secret, in hexadecimal digits.
type FileToken struct {
	Digest string `json:"digest"`
	Token
}

// tokenFile is a file of tokens, with the tokens that were last read from it.
type tokenFile struct {
	path string

	mu        sync.Mutex
	checkedAt time.Time   // when the file was last checked for a change
	info      os.FileInfo // of the file when it was last read; nil = the file could not be opened
	grants    map[digest]*Grant
}

func openFile(path string) (*tokenFile, error) {
	f := &tokenFile{path: path}
	return f, f.read()
}

// grant returns the grant of a digest, or nil if the file has none. Once per FreshFor it checks whether the file has
// changed. An error in a changed file is logged once, and the former tokens hold until the file is corrected.
func (f *tokenFile) grant(d digest, now time.Time, log *slog.Logger) *Grant {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.checkedAt) >= FreshFor {
		f.checkedAt = now
		if f.hasChanged() {
			if err := f.read(); err != nil {
				log.Error("the changed file of tokens cannot be read, so the former tokens hold", slog.Any("error", err))
			} else {
				log.Info("read the changed file of tokens", slog.Int("count", len(f.grants)))
			}
		}
	}
	return f.grants[d]
}

// hasChanged reports whether the file differs from the one that was last read. A file that is still missing has not
// changed.
func (f *tokenFile) hasChanged() bool {
	info, err := os.Stat(f.path)
	if err != nil || f.info == nil {
		return err == nil || f.info != nil
	}
	return !os.SameFile(info, f.info) || !info.ModTime().Equal(f.info.ModTime()) || info.Size() != f.info.Size()
}

// read loads the tokens of the file: all of them or, with an error, none.
func (f *tokenFile) read() error {
	f.info = nil
	file, err := os.Open(f.path)
	if err != nil {
		return fmt.Errorf("file of tokens: %w", err)
	}
	defer file.Close()
	if f.info, err = file.Stat(); err != nil {
		return fmt.Errorf("file of tokens: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err == nil && len(text) > maxFileBytes {
		err = fmt.Errorf("must be at most %d bytes", maxFileBytes)
	}
	if err != nil {
		return fmt.Errorf("file of tokens %s: %w", f.path, err)
	}
	grants, err := parseFile(text)
	if err != nil {
		return fmt.Errorf("file of tokens %s: %w", f.path, err)
	}
	for d, g := range grants { // a token with an unchanged limit keeps its buckets, and so their levels
		if old := f.grants[d]; old != nil && old.token.Rate == g.token.Rate && old.token.Burst == g.token.Burst &&
			sameLimits(old.token.Limits, g.token.Limits) {
			g.buckets = old.buckets
		}
	}
	f.grants = grants
	return nil
}

func sameLimits(a, b *Limits) bool { return a == b || a != nil && b != nil && *a == *b }

// parseFile reads one token a line. It ignores empty lines and lines that begin with #.
func parseFile(text []byte) (map[digest]*Grant, error) {
	grants, names := map[digest]*Grant{}, map[string]bool{}
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		d, t, err := parseLine(line)
		if err == nil && names[t.Name] {
			err = lua.Invalid("token", t.Name, "must stand in the file once")
		}
		if err == nil && grants[d] != nil {
			err = lua.Invalid("digest", d.String(), "must stand in the file once")
		}
		if err == nil && len(grants) >= MaxTokens {
			err = fmt.Errorf("must hold at most %d tokens", MaxTokens)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		grants[d], names[t.Name] = newGrant(d, t), true
	}
	return grants, nil
}

func parseLine(line []byte) (d digest, t *Token, err error) {
	var one FileToken
	if err := parse(line, &one); err != nil {
		return d, nil, err
	}
	d, ok := parseDigest(one.Digest)
	if !ok {
		// The error leaves out the value, because it may be the secret itself.
		err = &lua.InvalidError{Field: "digest", Value: fmt.Sprintf("of %d bytes", len(one.Digest)),
			Rule: fmt.Sprintf("must be the SHA-256 of a secret, %d digits of 0-9 a-f", digestBytes)}
	}
	return d, &one.Token, errors.Join(err, one.Check())
}
