package campaign

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/gateway"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Two messages of one key may be in flight together only if their queue was rolled back while the first one was in
// flight. In the script, the first message is in flight from 1 ms (its entry #1) to 16 ms (its retry #16).
func TestARollbackForgetsWhoHoldsAKey(t *testing.T) {
	t.Parallel()
	first := "p-1-mj2"
	second := first
	for n := 2; second == first || keyOf(second) != keyOf(first); n++ {
		second = fmt.Sprintf("p-%d-mj1", n)
	}
	script := taken + doneA + "2 B1 s #1 1 - @0\n 2.1 B1 e #1 fail\n 3 B1 x #1 retried\n" +
		"17 B1 s #16 2 b @16\n 18 B1 e #16 ok\n 19 B1 x #16 acknowledged\n" +
		"id " + second + "\n" + taken + "14 A1 s #13 1 - @0\n 15 A1 e #13 ok\n 16 A1 x #13 acknowledged\n" +
		"14 B1 s #13 1 - @0\n 15 B1 e #13 ok\n 16 B1 x #13 acknowledged\n"
	for name, c := range map[string]struct {
		faults []Fault
		want   map[string]int
	}{
		"no rollback":   {nil, map[string]int{columnOwners: 1}},
		"in between":    {[]Fault{faultAt(faultQueueRollback, 8, 12, "bridge1.0")}, map[string]int{}},
		"before both":   {[]Fault{faultAt(faultQueueRollback, -9, 0, "bridge1.0")}, map[string]int{columnOwners: 1}},
		"behind both":   {[]Fault{faultAt(faultQueueRollback, 17, 20, "bridge1.0")}, map[string]int{columnOwners: 1}},
		"bridges alone": {[]Fault{faultAt(faultRollback, 8, 12, "bridge1.0")}, map[string]int{columnOwners: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tally := play(t, first, script, c.faults, State{}); !maps.Equal(tally.Zero, c.want) {
				t.Errorf("found %v, planted %v: %+v", tally.Zero, c.want, tally.Findings)
			}
		})
	}
}

// A gateway reports that a bridge of the previous release does not support a message, and its client counts a
// refusal.
func TestAGatewayTellsOfAnOldBridge(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	client := server.Client(t)
	beat := client.B().Zadd().Key(lua.NewGlobals(prefix).Bridges).ScoreMember().
		ScoreMember(float64(time.Now().UnixMilli()), ulid.Make().String()+" host 1 v0").Build()
	if err := client.Do(t.Context(), beat).Error(); err != nil {
		t.Fatal(err)
	}
	secret, err := tokenForAll(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	store, err := access.Open(access.Config{Client: r.Client, Prefix: prefix, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Config{Redis: r, Prefix: prefix, Access: store, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Run(t.Context()) }()
	front := httptest.NewServer(gateway.NewServer(g).Handler)
	t.Cleanup(func() { front.Close(); _ = g.Close() })
	h := newHTTPClient(part{Gateways: []string{front.URL}, Secret: secret})
	for _, many := range []int{1, 6} { // the message with a key is the only one, and among others
		var all []bridge.NewMessage
		for i := range many {
			all = append(all, bridge.NewMessage{ID: fmt.Sprint("p-", many, i, "-mo")})
		}
		all[0].Key = "a"
		for i, result := range h.publish(queueMain, all, true) {
			v := verdict(all[i].ID, result.Receipt, result.Err)
			taken, refused := v.verb == verbTaken, v.verb == verbRefuse && v.args[0] == refusedOldBridge
			if keyed := all[i].Key != ""; taken == keyed || refused != keyed {
				t.Errorf("%d of %d: %v: %v", i, many, v, result.Err)
			}
		}
	}
}
