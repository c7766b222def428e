package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/acl"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Three bridges run, one of them is killed every few seconds, and a recurrence is due every second. Each occurrence
// is scheduled once, and is as late as the ordinary messages that are due between them. With DUESTREAM_TEST_FULL it
// takes 3 minutes.
func TestEachOccurrenceIsDeliveredOnceWhileBridgesAreKilled(t *testing.T) {
	t.Parallel()
	length := 8 * time.Second
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		length = 3 * time.Minute
	}
	seed, _ := strconv.ParseUint(os.Getenv("DUESTREAM_TEST_SEED"), 10, 64)
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := newStack(t, redistest.Own(t))
	f := newFamily(t, s, child{part: "bridge"}, child{part: "bridge"}, child{part: "bridge"})
	redistest.Eventually(t, 30*time.Second, func() (bool, string) { return s.alive() == 3, "three bridges" })

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
		<-time.After(time.Duration(1000+random.IntN(3000)) * time.Millisecond) // when the next one is killed
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

// The permissions that docs/operations/users.md gives a producer for recurrences are enough for everything that a
// Client does with them. Without them, no call does a part of its work.
func TestADocumentedProducerMayWriteRecurrences(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, false)
		client, err := bridge.NewClient(bridge.ClientConfig{Redis: g.dial("producer"), Prefix: g.prefix})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		queue, ctx := redistest.Queue(t), t.Context()
		r := bridge.Recurrence{Queue: queue, Name: "r", Every: time.Hour, Overlap: bridge.OverlapSkip, Payload: []byte("p"),
			Headers: map[string]string{"a": "b"}}
		if _, err := client.Recur(ctx, r); !errors.Is(err, bridge.ErrDenied) {
			t.Fatal(err)
		}
		text, err := os.ReadFile("../docs/operations/users.md")
		if err != nil {
			t.Fatal(err)
		}
		rules := acl.Also(string(text), "a `Client` that writes, runs or lists recurrences")
		words := append([]string{"ACL", "SETUSER", "producer" + g.suffix},
			strings.Fields(strings.ReplaceAll(strings.Join(rules, " "), "~duestream:", "~"+g.prefix+":"))...)
		if err := g.do(words...).Error(); err != nil || len(rules) == 0 {
			t.Fatal(rules, err)
		}
		must := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		change, err := client.Recur(ctx, r)
		must("add", err)
		redistest.Want(t, "added", change.Added, true)
		r.Every = 2 * time.Hour
		change, err = client.Recur(ctx, r)
		must("change", err)
		redistest.Want(t, "taken back", change.TakenBack, 1)
		must("pause", client.PauseRecurrence(ctx, queue, "r"))
		must("resume", client.ResumeRecurrence(ctx, queue, "r"))
		_, err = client.RunRecurrence(ctx, queue, "r")
		must("run", err)
		states, err := client.Recurrences(ctx, queue)
		must("list", err)
		if len(states) != 1 || len(states[0].Next) != 3 || states[0].LastID == "" {
			t.Errorf("%+v", states)
		}
		must("remove", client.RemoveRecurrence(ctx, queue, "r"))
		if err := client.RemoveRecurrence(ctx, queue, "r"); !errors.Is(err, bridge.ErrNoRecurrence) {
			t.Error(err)
		}
	})
}

// A bridge of the documented user plans what a plain client wrote, and finds what is left of the previous spec.
func TestADocumentedBridgePlansRecurrences(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		t.Parallel()
		g := newGuests(t, server, false)
		b, err := bridge.NewBridge(bridge.Config{Redis: g.dial("bridge"), Prefix: g.prefix, AnyServer: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		t.Cleanup(func() { stop(); <-ended })
		queue := redistest.Queue(t)
		k := lua.NewKeys(g.prefix, queue)
		g.do("HSETNX", g.prefix+":queues", queue, "1")
		g.do("HSET", k.Recurring, "r", `{"every_ms":1000,"overlap":"skip"}`)
		g.do("XADD", g.prefix+":wake", "MAXLEN", "1", "*", "queues", "1")
		g.do("XGROUP", "CREATE", k.Stream, "g", "0", "MKSTREAM")
		redistest.Eventually(t, 60*time.Second, func() (bool, string) {
			reply, err := g.do("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", k.Stream, ">").AsXRead()
			for _, e := range reply[k.Stream] {
				g.do("XACK", k.Stream, "g", e.ID)
			}
			n, _ := g.do("XINFO", "STREAM", k.Stream).AsMap()
			added := n["entries-added"]
			count, _ := added.AsInt64()
			return count >= 2, fmt.Sprintf("%d occurrences, %v", count, err)
		})
	})
}
