package live

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// golden compares a frame with a golden file in testdata. DUESTREAM_TEST_UPDATE=1 writes the files anew.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if os.Getenv("DUESTREAM_TEST_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not as expected:\n%s\nbut\n%s", name, want, got)
	}
}

// busyTop returns a state with many kinds of queues and groups: large figures, long names, a held queue, a queue that
// cannot be read, and groups that are left out.
func busyTop() *State {
	ms := func(d time.Duration) *admin.Millis { return new(admin.Millis(d)) }
	return &State{
		Now: time.Date(2026, 11, 21, 12, 30, 5, 0, time.UTC), host: "redis://127.0.0.1:6379", prefix: "duestream",
		interval: time.Second, sort: "name", hasKeys: true,
		server: admin.ServerLoad{Product: "redis", Version: "7.0.15", Servers: 1, UsedMemory: 12_345_678, MaxMemory: 100 << 20,
			Clients: 12, OpsPerSecond: 12_345},
		bridges: []admin.Heartbeat{
			{Bridge: "01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v1.2.3", Identity: bridge.Identity{ID: "01M7ZMPW4AFDJS68SPX5258FR1", Host: "web-1", PID: 7, Version: "v1.2.3"}, Age: 312 * time.Millisecond},
			{Bridge: "01M7ZMPW5BFDJS68SPX5258FR2", Identity: bridge.Identity{ID: "01M7ZMPW5BFDJS68SPX5258FR2"},
				Age: 12 * time.Second},
		},
		queues: []admin.QueueSample{
			{
				Queue: "emails", Partitions: 1,
				Sizes: admin.Sizes{Scheduled: 12_345_678, Overdue: 42, Behind: admin.Millis(90 * time.Second),
					Late: ms(1200 * time.Millisecond), Ready: 15_500, ReadyApprox: true, Entries: 16_000, Dead: 7},
				PerSecond: &admin.QueueRates{In: new(1234.5), Out: new(0.04), Done: new(99.7)},
				Groups: []admin.GroupSample{
					{GroupSizes: admin.GroupSizes{Name: "audit", Lag: 15_500, LagApprox: true, Consumers: 2}},
					{GroupSizes: admin.GroupSizes{Name: "a mailer with a name that is far too long for this", Lag: 3, Pending: 10,
						Consumers: 4, Retrying: 5}, Oldest: ms(4 * time.Second), OldestHeld: ms(25 * time.Second), Holder: "web-1",
						Alive: 3, RetryingMore: true, Done: new(1200.0)},
				},
			},
			{Queue: "held-one", Partitions: 8, Sizes: admin.Sizes{Held: true, Scheduled: 5, Entries: 3, Ready: 3}, MoreGroups: 0,
				Groups: []admin.GroupSample{}},
			{Queue: "odd", Partitions: 1, Err: errors.New("key duestream:{odd}:due holds a string where a zset belongs"),
				Groups: []admin.GroupSample{}},
			{
				Queue: "quiet", Partitions: 1, MoreGroups: 36,
				PerSecond: &admin.QueueRates{In: new(0.0), Out: new(0.0), Done: new(0.0)},
				Groups: []admin.GroupSample{{
					GroupSizes: admin.GroupSizes{Name: "old", Consumers: 2}, Alive: 2, AliveApprox: true, Done: new(0.0),
				}},
			},
		},
	}
}

// manyTop returns a state with n queues of two groups each.
func manyTop(n int) *State {
	s := busyTop()
	s.queues = nil
	for i := range n {
		q := admin.QueueSample{Queue: fmt.Sprintf("queue-%02d", i), Partitions: 1, Sizes: admin.Sizes{Overdue: int64(i % 3),
			Behind: admin.Millis(time.Duration(i%3) * time.Second), Ready: int64(100 - i)}}
		q.Groups = []admin.GroupSample{{GroupSizes: admin.GroupSizes{Name: "a", Lag: int64(i)}},
			{GroupSizes: admin.GroupSizes{Name: "b", Lag: int64(100 - i)}}}
		q.PerSecond = &admin.QueueRates{In: new(float64(i * 7 % 10)), Out: new(0.0), Done: nil}
		s.queues = append(s.queues, q)
	}
	return s
}

// Each case draws a frame of a state, and compares it with the golden file of the same name. A width of 0 is an output
// without a window.
func TestTopFrames(t *testing.T) {
	t.Parallel()
	lost := busyTop()
	lost.Lost(lost.Now.Add(-75*time.Second), errors.New("TIME: redis is unavailable: dial tcp 127.0.0.1:6379: connect: connection refused"))
	paused := manyTop(10)
	paused.paused, paused.sort, paused.interval, paused.offset = true, "lag", 250*time.Millisecond, 4
	empty := busyTop()
	empty.bridges, empty.queues, empty.server = nil, nil, admin.ServerLoad{}
	cluster := busyTop()
	cluster.server.Servers, cluster.bridgesFailed, cluster.bridges, cluster.queues, cluster.server.UsedMemory = 3, true, nil,
		cluster.queues[3:], 99<<20
	printed := busyTop()
	printed.hasKeys = false
	for name, test := range map[string]struct {
		state         *State
		width, height int
		paint         term.Paint
	}{
		"busy":         {busyTop(), 80, 24, false},
		"colours":      {busyTop(), 80, 24, true},
		"wide":         {busyTop(), 132, 40, false},
		"many":         {manyTop(40), 80, 24, false},
		"scrolled":     {paused, 80, 16, false},
		"disconnected": {lost, 80, 24, false},
		"nothing":      {empty, 80, 24, false},
		"cluster":      {cluster, 80, 24, false},
		"tiny":         {manyTop(5), 40, 8, false},
		"printed":      {printed, 0, 0, false},
	} {
		lines, _ := test.state.Frame(test.width, test.height, test.paint)
		golden(t, name, strings.Join(lines, "\n")+"\n")
	}
}

// A frame fits into a window of any size, and says how much it leaves out.
func TestTopFramesFitIntoEveryWindow(t *testing.T) {
	t.Parallel()
	for height := 1; height <= 60; height++ {
		for width := 1 + height%9; width <= 140; width += 9 { // every width occurs, with different heights
			s := manyTop(17)
			_, most := s.Frame(width, height, false)
			for _, offset := range []int{0, 1, 5, most, most + 100} {
				s.offset = offset
				lines, _ := s.Frame(width, height, false)
				if len(lines) > height {
					t.Fatalf("%d lines in a window of %d", len(lines), height)
				}
				for _, l := range lines {
					if n := utf8.RuneCountInString(l); n > width {
						t.Fatalf("%d columns in a window of %d: %s", n, width, l)
					}
				}
				if text := strings.Join(lines, "\n"); width >= 80 && height > 8 && most > 0 && !strings.Contains(text, "… and ") {
					t.Fatalf("what is left out is not said, at offset %d:\n%s", offset, text)
				}
			}
		}
	}
}

// At each offset, the queues above the window, in the window and below it add up to all queues. The last line but one
// of the frame counts those left out, as "… and 2 more queues above, 2 more groups of queue-04, 5 more queues".
func TestTopCountsWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	s := manyTop(20) // a line for each queue and for each of its two groups: 60 lines
	for _, offset := range []int{0, 1, 2, 3, 10, 30, 59} {
		s.offset = offset
		lines, _ := s.Frame(80, 20, false)
		text := strings.Join(lines, "\n")
		shown := strings.Count(text, "queue-") - strings.Count(text, "of queue-")
		above, below := 0, 0
		for part := range strings.SplitSeq(strings.TrimPrefix(lines[len(lines)-2], "… and "), ", ") {
			var n int
			if _, err := fmt.Sscan(part, &n); err != nil {
				t.Fatal(lines)
			}
			switch {
			case strings.HasSuffix(part, " above"):
				above = n
			case !strings.Contains(part, "group"):
				below = n
			}
		}
		if above+shown+below != 20 {
			t.Errorf("at offset %d: %d above, %d shown, %d below\n%s", offset, above, shown, below, text)
		}
	}
}

// Each order puts the queue with the largest figure first; the order by name is alphabetical.
func TestTopSorts(t *testing.T) {
	t.Parallel()
	s := busyTop()
	for order, first := range map[string]string{"name": "emails", "lag": "emails", "rate": "emails", "lateness": "emails"} {
		s.sort = order
		if got := s.sorted()[0].Queue; got != first {
			t.Errorf("by %s: %s is first", order, got)
		}
	}
	s = manyTop(9)
	for order, want := range map[string]string{"name": "queue-00", "lag": "queue-00", "rate": "queue-07",
		"lateness": "queue-02"} {
		s.sort = order
		if got := s.sorted()[0].Queue; got != want {
			t.Errorf("by %s: %s is first, not %s", order, got, want)
		}
	}
}

// A number takes at most five characters. It is rounded before its unit is chosen, so that no number shows as 1000k.
func TestTopNumbersAreShortAndRounded(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]string{
		0: "0", 9999: "9,999", 9999.4: "9,999", 9999.6: "10.0k", 10_000: "10.0k", 99_940: "99.9k", 99_960: "100k",
		999_400: "999k", 999_600: "1.0M", 12_345_678: "12.3M", 5e15: "many",
	} {
		if got := compact(n); got != want {
			t.Errorf("%v: %s, not %s", n, got, want)
		}
	}
	if got := perSecond(new(0.04)); got != "0.1" { // more than 0 is never shown as 0
		t.Error(got)
	}
}

// Keys, also those that terminals send as escape sequences, change the order, the interval, the offset and the pause.
// Each step continues from the state of the step before, and its want is: order, interval, offset, paused.
func TestTopKeys(t *testing.T) {
	t.Parallel()
	got := fmt.Sprint(term.ParseKeys([]byte("s\x1b[Ap\x1b[6~\x1b[99;5Hxj\x1bOB\x1b\x03")))
	if got != "[sort up pause page down down down quit]" {
		t.Error(got)
	}
	s := &State{sort: "name", interval: time.Second}
	for _, step := range []struct{ keys, want string }{
		{"s", "lag 1s 0 false"}, {"sss", "name 1s 0 false"}, {"++", "name 5s 0 false"}, {"----", "name 250ms 0 false"}, {"---", "name 100ms 0 false"},
		{"jjj", "name 100ms 3 false"}, {"k", "name 100ms 2 false"}, {"G", "name 100ms 10 false"}, {" ", "name 100ms 10 false"}, {"b", "name 100ms 6 false"},
		{"gk", "name 100ms 0 false"}, {"p", "name 100ms 0 true"}, {"p++++++++++++", "name 1m0s 0 false"},
	} {
		for _, k := range term.ParseKeys([]byte(step.keys)) {
			if !s.press(k, 4, 10) { // a page has 4 lines, and the largest offset is 10
				t.Errorf("%q ends it", step.keys)
			}
		}
		if got := fmt.Sprintf("%s %s %d %t", s.sort, s.interval, s.offset, s.paused); got != step.want {
			t.Errorf("after %q: %s, not %s", step.keys, got, step.want)
		}
	}
	if s.press("quit", 1, 1) {
		t.Error("q does not end it")
	}
}

// Regression: on a terminal as wide as the title, top cut the last digit of the clock.
func TestTopNeverCutsTheClock(t *testing.T) {
	t.Parallel()
	for width := 30; width < 200; width++ {
		state := busyTop()
		lines, _ := state.Frame(width, 24, false)
		if clock := state.Now.Format(time.TimeOnly); !strings.HasSuffix(lines[0], "  "+clock) ||
			utf8.RuneCountInString(lines[0]) != width {
			t.Errorf("width %d: %q", width, lines[0])
		}
	}
}

// Regression: in a window of 80 columns, the advice was cut before its next step. The part before the next step is now
// cut instead, and the advice takes no line that the window does not have.
func TestTopShowsWhatToDoNextInEveryWindow(t *testing.T) {
	t.Parallel()
	state := busyTop()
	state.advice = []doctor.Finding{{Severity: doctor.Error, Queue: "emails",
		Found: "group mailer holds 10 entries, the oldest for 25 s, and no worker reads", Do: "duestream consumers emails"}}
	for width := 40; width < 200; width++ {
		lines, _ := state.Frame(width, 24, false)
		if text := strings.Join(lines, "\n"); !strings.Contains(text, "Next: duestream consumers emails") {
			t.Errorf("width %d:\n%s", width, text)
		}
	}
	for height := 1; height < 24; height++ {
		if lines, _ := state.Frame(80, height, false); len(lines) > height {
			t.Errorf("%d lines in a window of %d", len(lines), height)
		}
	}
}
