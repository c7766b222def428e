package lua

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

// set writes settings of the policy.
func (b *testQueue) set(values ...string) { b.do(append([]string{"HSET", b.k.Policy}, values...)...) }

// overdue schedules due messages with plain commands.
func (b *testQueue) overdue(prefix string, n int) {
	for i := range n {
		b.do("ZADD", b.k.Due, strconv.Itoa(1000+i), fmt.Sprintf("%s%04d", prefix, i))
	}
}

// With a release rate, drain lets a burst pass, then one message for each token, and returns when the next token comes.
func TestDrainKeepsTheRate(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, c := range []struct {
			rate, burst string
			first       int           // messages that pass at once, which is the burst
			next        time.Duration // of one token: the wait for the next message is at most this long
		}{
			{"1/h", "", 1, time.Hour}, {"2/h", "5", 5, 30 * time.Minute}, {"30/m", "3", 3, 2 * time.Second}, {"20", "4", 4, 50 * time.Millisecond},
			{"20/s", "", 2, 50 * time.Millisecond}, {"1000000/h", "1", 1, 3600 * time.Microsecond},
		} {
			b.do("DEL", b.k.Due, b.k.Stream, b.k.Rate, b.k.Policy)
			b.overdue("m", 20)
			b.set("rate", c.rate)
			if c.burst != "" {
				b.set("burst", c.burst)
			}
			began := b.now()
			d := b.drain(100)
			redistest.Want(b, c.rate+": at first", d.Moved, c.first)
			redistest.Want(b, c.rate+": held by", d.Held, HeldByRate)
			if d.Wait <= 0 || d.Wait > c.next {
				b.Errorf("%s: the next one comes in %s", c.rate, d.Wait)
			}
			again := b.drain(100)
			if passed := time.Duration(b.now()-began+1) * time.Millisecond; again.Moved > int(passed/c.next)+1 {
				b.Errorf("%s: %d more after %s", c.rate, again.Moved, passed)
			}
			if b.inProcess() {
				continue
			}
			if left := b.count("PTTL", b.k.Rate); left > int((time.Duration(c.first+again.Moved)*c.next).Milliseconds())+1 {
				b.Errorf("%s: the bucket is kept for %d ms", c.rate, left)
			}
		}
	})
}

// However often a queue is drained, no more messages become ready than burst and rate allow.
func TestRateHoldsOverTime(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.overdue("m", 2000)
		b.set("rate", "1000", "burst", "50")
		began, moved := b.now(), 0
		for b.now()-began < 150 {
			moved += b.drain(100).Moved
		}
		passed := int(b.now() - began)
		if moved > 50+passed+1 || moved <= 50 {
			b.Errorf("%d became ready in %d ms", moved, passed)
		}
	})
}

// The clock of a server may be set back, and other clients may write any value into the key: the queue goes on, at its
// rate.
func TestRateSurvivesADamagedBucket(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.overdue("m", 100)
		b.set("rate", "100", "burst", "10")
		far := strconv.FormatInt((b.now()+86_400_000)*1000, 10)
		for _, c := range []struct {
			kept  string
			moved int
		}{{far, 0}, {"99999999999999999", 0}, {"5", 10}, {"-7", 10}, {"what", 10}, {"", 10}} {
			b.do("SET", b.k.Rate, c.kept)
			d := b.drain(100)
			redistest.Want(b, c.kept+": moved", d.Moved, c.moved)
			if d.Wait > 10*time.Millisecond {
				b.Errorf("%s: waits %s", c.kept, d.Wait)
			}
		}
		// A bucket that was emptied at a very low rate does not delay messages after the rate was raised.
		b.set("rate", "1/h", "burst", "1000")
		b.do("DEL", b.k.Rate)
		b.drain(100)
		b.overdue("n", 100)
		b.set("rate", "100", "burst", "10")
		if d := b.drain(100); d.Moved != 10 && d.Wait > 10*time.Millisecond {
			b.Errorf("after a change of the rate: %+v", d)
		}
	})
}

// Invalid rates and limits in a policy count as not set.
func TestInvalidFlowSettingsLimitNothing(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for _, rate := range []string{"0", "-1", "", "many", "5/d", "5/", "/s", "1.5", "1e3", "9999999", "05", "5 /s",
			strings.Repeat("9", 400)} {
			b.do("DEL", b.k.Policy)
			b.overdue("m", 3)
			b.set("rate", rate, "burst", "1", "ready_limit", []string{"0", "-1", "none", "1.5", ""}[len(rate)%5])
			d := b.drain(10)
			redistest.Want(b, strconv.Quote(rate)+": moved", fmt.Sprint(d.Moved, d.Held), "3")
			redistest.Want(b, "a bucket", b.count("EXISTS", b.k.Rate), 0)
			wantList(b, "due at once", b.enqueue(Item{ID: "now", When: After(0)}), Ready)
			b.do("DEL", b.k.Stream)
		}
	})
}

// The lateness of a drain leaves out the delay by the rate: an alert on lateness is about the bridge.
func TestLatenessOmitsMessagesHeldByTheRate(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		at := b.now() - 60_000
		for i := range 60 {
			b.do("ZADD", b.k.Due, ms(at), fmt.Sprint("m", i))
		}
		b.set("rate", "20", "burst", "10")
		if d := b.drain(100); d.Moved != 10 || d.Late < time.Minute {
			b.Errorf("nothing was held before: %+v", d)
		}
		redistest.Eventually(b, 10*time.Second, func() (bool, string) {
			d := b.drain(100)
			return d.Moved > 0 && d.Late < 5*time.Second, fmt.Sprintf("%+v", d)
		})
	})
}

// A bridge drains a queue at its ready limit again after a while: not at once, which would be a busy loop, and not only
// when the next message is due.
func TestQueueAtItsReadyLimitIsDrainedAgainSoon(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		b.groups("g")
		b.set("ready_limit", "1")
		b.do("ZADD", b.k.Due, "1", "first", "2", "second")
		d := b.drain(10)
		redistest.Want(b, "moved, held by", fmt.Sprint(d.Moved, d.Held), "1"+HeldByReadyLimit)
		if d.Wait < time.Millisecond || d.Wait > time.Minute {
			b.Errorf("wait %s", d.Wait)
		}
	})
}
