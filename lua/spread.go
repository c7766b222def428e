package lua

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"strings"
	"time"
)

// SpreadOf returns a delay for a message from 0 to less than d, in whole milliseconds, that depends on its ID alone:
// the first eight bytes of the SHA-256 of the ID, a big-endian number, modulo the milliseconds of d. IDs that differ in
// one character get very different delays.
func SpreadOf(id string, d time.Duration) time.Duration {
	if d < time.Millisecond {
		return 0
	}
	sum := sha256.Sum256([]byte(id))
	return time.Duration(binary.BigEndian.Uint64(sum[:])%uint64(d.Milliseconds())) * time.Millisecond
}

// Later returns the point in time that is d after w, in whole milliseconds. If w does not parse, it returns w.
func (w When) Later(d time.Duration) When {
	text, relative := strings.CutPrefix(string(w), "+")
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return w
	}
	text = strconv.FormatInt(ms+d.Milliseconds(), 10)
	if relative {
		text = "+" + text
	}
	return When(text)
}

// Unix returns the point in time in Unix milliseconds. A relative one counts from now.
func (w When) Unix(now int64) int64 {
	text, relative := strings.CutPrefix(string(w), "+")
	ms, _ := strconv.ParseInt(text, 10, 64)
	if relative {
		ms += now
	}
	return ms
}
