package lmstfy

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// versionMark is the first character of the ID of a job that may have attributes. It is lmstfy's version of the ID.
// Other IDs have no version.
const versionMark = "1"

// ids makes job IDs like lmstfy's server: ULIDs whose last four bytes are the delay in seconds. Each ID is greater than
// the ID before it.
type ids struct {
	mu   sync.Mutex
	ms   uint64
	tail uint64 // the 48 bits between the time and the delay
}

func (s *ids) next(now time.Time, delay time.Duration, versioned bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tail++
	if ms := uint64(max(0, now.UnixMilli())); ms > s.ms {
		var random [8]byte
		_, _ = rand.Read(random[:])
		s.ms, s.tail = ms, binary.BigEndian.Uint64(random[:])>>17 // 47 bits, so that the tail can count up
	}
	var id ulid.ULID
	_ = id.SetTime(s.ms)
	var tail [8]byte
	binary.BigEndian.PutUint64(tail[:], s.tail)
	copy(id[6:12], tail[2:])
	binary.LittleEndian.PutUint32(id[12:], seconds(delay))
	if versioned {
		return versionMark + id.String()
	}
	return id.String()
}

// seconds returns a duration in whole seconds, rounded up, and at most the largest number of four bytes.
func seconds(d time.Duration) uint32 {
	return uint32(min(max(0, (d+time.Second-1)/time.Second), math.MaxUint32))
}

// ParseID returns the publish time and the delay in a job's ID, and whether the job may have attributes. ok is false if
// lmstfy's server does not make IDs of this form.
func ParseID(id string) (published time.Time, delay time.Duration, versioned, ok bool) {
	if versioned = len(id) == ulid.EncodedSize+1 && id[:1] == versionMark; versioned {
		id = id[1:]
	}
	u, err := ulid.ParseStrict(id)
	if err != nil {
		return time.Time{}, 0, false, false
	}
	delay = time.Duration(binary.LittleEndian.Uint32(u[12:])) * time.Second
	return ulid.Time(u.Time()), delay, versioned, true
}
