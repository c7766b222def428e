package redistest

import (
	"fmt"
	"math/rand/v2"
)

// Lend returns the URL of the shared server and a prefix, for an example function, which has no testing.T. end deletes
// the keys with that prefix. Lend panics if there is no server, and says what to do.
func Lend() (url, prefix string, end func()) {
	s, err := shared()
	if err != nil {
		panic(err)
	}
	prefix = fmt.Sprintf("t-%08x", rand.Uint32())
	return s.URL(), prefix, func() {
		if err := s.deleteKeys(prefix + "*"); err != nil {
			panic(err)
		}
	}
}
