package redistest

import (
	"fmt"
	"math/rand/v2"
)

// Lend gives an example, which has no test that could fail, the URL of the shared server and a prefix. The returned
// function deletes the keys with that prefix. Lend panics when there is no server, and says what to do.
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
