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
func (b *rig) set(values ...string) { b.do(append([]string{"HSET", b.k.Policy}, values...)...) }

// overdue schedules due messages with plain commands.
func (b *rig) overdue(prefix string, n int) {
	for i := range n {
		b.do("ZADD", b.k.Due, strconv.Itoa(1000+i), fmt.Sprintf("%s%04d", prefix, i))
	}
}

// With a release rate, drain lets a burst pass, then one message for each token, and returns when the next token comes.
func TestDrainKeepsTheRate(t *testing.T) {
	everywhere(t, func(b *rig) {
		for _, c := range []struct {
			rate, burst string
			first       int
			next        time.Duration // at most; and more than nothing
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
	everywhere(t, func(b *rig) {
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
func TestRateSurvivesWhateverItsBucketSays(t *testing.T) {
	everywhere(t, func(b *rig) {
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
		// a rate that was very low a moment ago
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
func TestSettingsThatAreNoneLimitNothing(t *testing.T) {
	everywhere(t, func(b *rig) {
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

// Dead letters that a drain makes use no tokens.
func TestDeadLettersUseNoTokens(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.overdue("m", 6)
		for i := range 4 {
			b.do("HSET", b.k.Meta, fmt.Sprintf("m%04d", i), []string{`{"expires_ms":"1"}`, "{"}[i%2])
		}
		b.set("rate", "1/h", "burst", "1")
		d := b.drain(100)
		redistest.Want(b, "drained", fmt.Sprint(d.Moved, d.Dead, d.Held), "1 4rate")
	})
}

// Retries use tokens as other messages do, unless the policy frees them: then they also pass messages that are held
// back.
func TestRetriesUseTheRateUnlessFreed(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g")
		b.overdue("m", 40)
		retry := "r" + "\x1f" + "g" + "\x1f" + "5-1"
		b.do("ZADD", b.k.Due, "5000", retry)
		b.do("HSET", b.k.Meta, retry, `{"id":"r","for":"g","attempt":"2","error":"no"}`)
		b.set("rate", "1/h", "burst", "2")
		redistest.Want(b, "moved", b.drain(100).Moved, 2)
		redistest.Want(b, "moved", b.drain(100).Moved, 0)
		b.set("free_retries", "1")
		d := b.drain(100)
		redistest.Want(b, "moved", fmt.Sprint(d.Moved, d.Held), "1rate")
		redistest.Want(b, "the retry", b.count("ZSCORE", b.k.Due, "m0002"), 1002)
		redistest.Want(b, "entries", ids(b.entries(b.k.Stream))[2], "r")
		b.wantState("due=38 payload=0 meta=0 stream=3 dead=0")
	})
}

// A ready limit holds back messages that the slowest group could not be given yet. Entries that the groups have been
// given do not count.
func TestDrainKeepsTheReadyLimit(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.overdue("m", 30)
		b.set("ready_limit", "5")
		d := b.drain(100)
		redistest.Want(b, "without groups", fmt.Sprint(d.Moved, d.Held, d.Wait), "5ready_limit5ms")
		b.groups("g", "h")
		read := func(group string, n int) {
			b.do("XREADGROUP", "GROUP", group, "c", "COUNT", strconv.Itoa(n), "STREAMS", b.k.Stream, ">")
		}
		redistest.Want(b, "nothing was given", b.drain(100).Moved, 0)
		read("g", 5)
		redistest.Want(b, "to one group", b.drain(100).Moved, 0)
		read("h", 3)
		redistest.Want(b, "three to both", b.drain(100).Moved, 3)
		read("g", 100)
		read("h", 100)
		redistest.Want(b, "all to both", b.drain(100).Moved, 5)
		for _, group := range []string{"g", "h"} { // each holds entries that the other has acknowledged
			read(group, 100)
			for i, e := range b.entries(b.k.Stream) {
				if (i%2 == 0) == (group == "g") {
					b.do("XACK", b.k.Stream, group, e.EntryID)
				}
			}
		}
		redistest.Want(b, "nothing is left to give", b.drain(100).Moved, 5)
		for i, e := range b.entries(b.k.Stream) {
			b.do("XACK", b.k.Stream, "g", e.EntryID)
			b.do("XACK", b.k.Stream, "h", e.EntryID)
			if i == 14 {
				b.do("XDEL", b.k.Stream, e.EntryID)
			}
		}
		b.trim("", 1000, 1<<20)
		redistest.Want(b, "one that nobody was given is deleted", b.drain(100).Moved, 1)
		b.do("HDEL", b.k.Policy, "ready_limit")
		d = b.drain(100)
		redistest.Want(b, "without a limit", fmt.Sprint(b.count("ZCARD", b.k.Due), d.Held), "0")
	})
}

// A group without workers holds the queue back, but not the retries of other groups.
func TestRetriesPassTheReadyLimit(t *testing.T) {
	everywhere(t, func(b *rig) {
		b.groups("g", "nobody")
		b.overdue("m", 1500)
		b.set("ready_limit", "3")
		redistest.Want(b, "moved", b.drain(100).Moved, 3)
		b.do("XREADGROUP", "GROUP", "g", "c", "COUNT", "3", "STREAMS", b.k.Stream, ">")
		for i, e := range b.entries(b.k.Stream) {
			b.fail("g", e.EntryID, ActionRetry, "max_attempts", fmt.Sprint("no", i))
		}
		b.do("ZADD", b.k.Due, "XX", "9000", "") // nothing: they are due after all others
		for _, m := range b.texts("ZRANGE", b.k.Due, "-3", "-1") {
			b.do("ZADD", b.k.Due, "XX", "9000", m)
		}
		moved := 0
		redistest.Eventually(b, 10*time.Second, func() (bool, string) {
			moved += b.drain(100).Moved
			return moved == 3, fmt.Sprint(moved, " moved")
		})
		redistest.Want(b, "scheduled", b.count("ZCARD", b.k.Due), 1497)
	})
}

// A message that is due at once does not bypass a drain that keeps a rate or a limit.
func TestMessagesDueAtOnceKeepTheRate(t *testing.T) {
	everywhere(t, func(b *rig) {
		for _, setting := range []string{"rate", "ready_limit"} {
			b.do("DEL", b.k.Policy, b.k.Due, b.k.Stream)
			b.set(setting, "1")
			wantList(b, setting, b.enqueue(Item{ID: "a", When: After(0)}, Item{ID: "b", When: After(0)}), Scheduled, Scheduled)
			redistest.Want(b, "moved", b.drain(10).Moved, 1)
		}
	})
}

// The lateness of a drain leaves out the delay by the rate: an alert on lateness is about the bridge.
func TestLatenessLeavesOutWhatTheRateHeld(t *testing.T) {
	everywhere(t, func(b *rig) {
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
