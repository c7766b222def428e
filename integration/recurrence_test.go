package integration

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Three bridges run, one of them is killed every few seconds, and a recurrence is due every second. Each occurrence
// becomes ready exactly once, and not early. The log compares the lateness of the occurrences with that of ordinary
// messages that are due between them. With DUESTREAM_TEST_FULL the test takes 3 minutes.
func TestEachOccurrenceIsDeliveredOnceWhileBridgesAreKilled(t *testing.T) {
	t.Parallel()
	length := 8 * time.Second
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		length = 3 * time.Minute
	}
	random := seeded(t)
	s := newStack(t, redistest.Own(t))
	f := newFamily(t, s, child{part: "bridge"}, child{part: "bridge"}, child{part: "bridge"})
	redistest.Eventually(t, 30*time.Second, func() (bool, string) { return s.liveBridges() == 3, "three bridges" })

	ctx := context.Background()
	began := s.serverNow()
	last := (began + length.Milliseconds()) / 1000 * 1000
	if _, err := s.client.Recur(ctx, bridge.Recurrence{Queue: s.queue, Name: "tick", Every: time.Second,
		Payload: []byte("p"), End: time.UnixMilli(last)}); err != nil {
		t.Fatal(err)
	}
	for at := began + 2500 - began%1000; at < began+length.Milliseconds(); at += 1000 {
		id := fmt.Sprint("ordinary-", at)
		if _, err := s.client.Schedule(ctx, s.queue, nil, bridge.WithID(id), bridge.At(time.UnixMilli(at))); err != nil {
			t.Fatal(err)
		}
	}
	kills := 0
	for s.serverNow() < began+length.Milliseconds() {
		c := f.children[random.IntN(len(f.children))]
		f.kill(c)
		f.start(c)
		kills++
		<-time.After(time.Duration(1000+random.IntN(3000)) * time.Millisecond) // until the next kill
	}
	late := map[string][]int64{}
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		clear(late)
		seen := map[string]int{}
		entries, err := s.raw("XRANGE", s.keys().Stream, "-", "+").AsXRange()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			id := e.FieldValues["id"]
			due, _ := strconv.ParseInt(e.FieldValues["due_ms"], 10, 64)
			kind, _, _ := strings.Cut(strings.ReplaceAll(id, "@", "-"), "-")
			if seen[id]++; seen[id] > 1 {
				t.Fatalf("%s is there twice", id)
			}
			late[kind] = append(late[kind], lua.EntryTime(e.ID).UnixMilli()-due)
		}
		for at := began/1000*1000 + 2000; at <= last; at += 1000 {
			if id := fmt.Sprint("tick@", at); seen[id] == 0 {
				return false, id + " is missing"
			}
		}
		n := s.number("ZCARD", s.keys().Due)
		return n == 0, fmt.Sprint(n, " scheduled")
	})
	for kind, all := range late {
		slices.Sort(all)
		if all[0] < 0 {
			t.Errorf("%s: early by %d ms", kind, -all[0])
		}
		t.Logf("%s: %d, lateness p50 %d ms, p99 %d ms, most %d ms; %d kills", kind, len(all), all[len(all)/2],
			all[len(all)*99/100], all[len(all)-1], kills)
	}
}
