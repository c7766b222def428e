package lua

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// retry settles one entry with a policy, and returns the outcome.
func (b *testQueue) retry(group string, attempts Attempts, f Failure) Outcome {
	b.Helper()
	out, err := Retry(b.ctx, b.c, b.k, group, attempts, []Failure{f})
	if err != nil {
		b.Fatal(err)
	}
	return out[0]
}

// An error text is cut to 1 KiB of valid UTF-8 before it is stored: 512 times ü, which has two bytes.
func TestErrorTextsAreCutAtTheDoor(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		long := strings.Repeat("ü", 600) + "\xff"
		e := b.deliver([]string{"g"}, "m")[0]
		b.fail("g", e.EntryID, ActionRetry, "", long)
		b.makeDue()
		b.drain(1)
		r := b.read("g", "c", 1)[0]
		redistest.Want(b, "error", r.Error, strings.Repeat("ü", 512))
		// The error of an attempt stays if the next settlement has none.
		b.fail("g", r.EntryID, ActionRelease, "", "")
		b.drain(1)
		redistest.Want(b, "error after a release", b.read("g", "c", 1)[0].Error, strings.Repeat("ü", 512))
	})
}

// A meta that looks like a retry's, but is too large, is as malformed as any other.
func TestMetaOfARetryHasTheLimitOfAll(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		for id, size := range map[string]int{"small": 100, "middle": 64 << 10, "huge": 512 << 10} {
			b.do("HSET", b.k.Meta, id, `{"id":"`+id+`","for":"g","attempt":"2","error":"`+strings.Repeat("x", size)+`"}`)
			b.do("ZADD", b.k.Due, "1", id)
		}
		d := b.drain(10)
		redistest.Want(b, "moved", d.Moved, 2)
		redistest.Want(b, "buried", d.Dead, 1)
		letter := b.letters()[0]
		redistest.Want(b, "letter", letter.ID+": "+letter.Error, "huge: meta is larger than 512 KiB")
	})
}

// The retry of a message with overlap = skip has a name in the schedule that follows from ID and group alone. If
// several deliveries of one ID fail, no retry may overwrite another.
func TestRetriesWithoutOverlapOverwriteNoOther(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		var failures []Failure
		for i, together := range []bool{true, true, false} {
			b.do("XADD", b.k.Stream, "*", "id", "m", "payload", fmt.Sprint("p", i), "overlap", "skip")
			e := b.read("g", "c", 1)[0]
			failures = append(failures, Failure{Held: Held{Entry: e.EntryID}, Action: ActionRetry, Delay: time.Hour})
			if together && i == 0 {
				continue
			}
			out, err := Retry(b.ctx, b.c, b.k, "g", policy, failures)
			if err != nil || slices.Contains(out, Lost) {
				b.Fatal(out, err)
			}
			failures = nil
		}
		b.wantState("due=3 payload=3 meta=3 stream=0 dead=0 g=0", "g")
		redistest.Want(b, "named by the ID", b.count("ZCOUNT", b.k.Due, "-inf", "+inf") == 3 &&
			b.try("ZSCORE", b.k.Due, "m"+Separator+"g"+Separator+"0-0").Error() == nil, true)
	})
}
