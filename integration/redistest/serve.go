package redistest

import (
	"fmt"
	"io"
	"math/rand/v2"
)

// Serve gives another process a server: it writes the URL of the shared one and a prefix, in one line, and when in has ended it deletes the keys
// under the prefix and ends what it started. It is for tests that may not import this package, because the module of everyone who imports
// theirs would have to know what this one imports.
func Serve(in io.Reader, out io.Writer) error {
	s, err := shared()
	if err != nil {
		return err
	}
	prefix := fmt.Sprintf("t-%08x", rand.Uint32())
	if _, err = fmt.Fprintln(out, s.URL(), prefix); err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	if failed := s.deleteKeys(prefix + "*"); err == nil {
		err = failed
	}
	if failed := endAll(); err == nil {
		err = failed
	}
	return err
}
