package redistest

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
)

// Serve gives another process a server: it writes the URL of the shared one and a prefix, in one line, and when in has ended it
// deletes the keys under the prefix and ends what it started. It is for tests that may not import this package, because the
// module of everyone who imports theirs would have to know what this one imports.
func Serve(in io.Reader, out io.Writer) error {
	url, prefix, end, err := lend()
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintln(out, url, prefix); err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	return errors.Join(err, end(), endAll())
}

// Lend gives an example, which has no test that could fail, the URL of the shared server, and a prefix whose keys the returned
// function deletes. It panics when there is no server, and says what to do.
func Lend() (url, prefix string, end func()) {
	url, prefix, giveBack, err := lend()
	if err != nil {
		panic(err)
	}
	return url, prefix, func() {
		if err := giveBack(); err != nil {
			panic(err)
		}
	}
}

func lend() (url, prefix string, end func() error, err error) {
	s, err := shared()
	if err != nil {
		return "", "", nil, err
	}
	prefix = fmt.Sprintf("t-%08x", rand.Uint32())
	return s.URL(), prefix, func() error { return s.deleteKeys(prefix + "*") }, nil
}
