package redistest

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// A step of the clock changes TIME, TIME inside scripts, stream IDs and idle times. Otherwise tests that step the clock
// would prove nothing.
func TestAStepOfTheClockMovesTheServersTime(t *testing.T) {
	t.Parallel()
	s, clock := OwnClock(t)
	c := s.Client(t)
	do := func(args ...string) rueidis.RedisResult {
		return c.Do(context.Background(), c.B().Arbitrary(args...).Build())
	}
	do("XADD", "s", "*", "k", "v")
	do("XGROUP", "CREATE", "s", "g", "0")
	do("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
	wantNear := func(what string, ms int64) {
		t.Helper()
		if off := time.Duration(ms-time.Now().Add(clock.By()).UnixMilli()) * time.Millisecond; off.Abs() > 10*time.Second {
			t.Errorf("%s is off the stepped clock by %s", what, off)
		}
	}
	for _, by := range []time.Duration{0, time.Hour, 24 * time.Hour} {
		clock.Step(by)
		plain, _ := do("TIME").AsStrSlice()
		scripted, _ := do("EVAL", "return redis.call('TIME')", "0").AsStrSlice()
		id, err := do("XADD", "s", "*", "k", "v").ToString()
		if err != nil || len(plain) != 2 || len(scripted) != 2 {
			t.Fatal(plain, scripted, err)
		}
		for what, text := range map[string]string{
			"TIME": plain[0] + "000", "TIME in a script": scripted[0] + "000", "stream ID": id[:strings.Index(id, "-")],
		} {
			ms, _ := strconv.ParseInt(text, 10, 64)
			wantNear(what, ms)
		}
	}
	pending, err := do("XPENDING", "s", "g", "-", "+", "1").ToArray()
	if err != nil || len(pending) != 1 {
		t.Fatal(pending, err)
	}
	cells, _ := pending[0].ToArray()
	if idle, _ := cells[2].AsInt64(); idle < (25 * time.Hour).Milliseconds() {
		t.Errorf("idle for %d ms after 25 hours were skipped", idle)
	}
	clock.Step(-26 * time.Hour)
	plain, _ := do("TIME").AsStrSlice()
	ms, _ := strconv.ParseInt(plain[0]+"000", 10, 64)
	wantNear("TIME after a step back", ms)
}
