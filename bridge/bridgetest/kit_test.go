package bridgetest

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// everywhere runs a test in process and on a real server.
func everywhere(t *testing.T, test func(t *testing.T, cfg Config)) {
	t.Run("in process", func(t *testing.T) {
		t.Parallel()
		test(t, Config{InProcess: true})
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		test(t, Config{URL: redistest.Shared(t).URL()})
	})
}

type order struct {
	ID int `json:"id"`
}

var closeOrder = bridge.Kind[order]{Name: "close-order", Queue: "orders"}

func TestAnOrderIsClosedAfter30Minutes(t *testing.T) {
	everywhere(t, func(t *testing.T, cfg Config) {
		began := time.Now()
		k := NewWith(t, cfg)
		opened := time.Since(began)
		var closed []string
		mux := &bridge.Mux{}
		closeOrder.Handle(mux, func(_ context.Context, d *bridge.Delivery[order]) error {
			closed = append(closed, fmt.Sprint(d.Value.ID, " ", d.Lateness()))
			return nil
		})
		k.Work(mux, "shop")
		for id := 1; id <= 2; id++ {
			_, err := closeOrder.Schedule(t.Context(), k.Client(), order{id}, bridge.WithID(fmt.Sprint("close-", id)),
				bridge.In(30*time.Minute))
			ok(t, err)
		}
		found := RequireScheduled(k, closeOrder, ID("close-1"), DueIn(30*time.Minute),
			Where("of order 1", func(o order) bool { return o.ID == 1 }))
		redistest.Want(t, "value", found.Value.ID, 1)
		ok(t, k.Client().Cancel(t.Context(), "orders", "close-2"))
		k.Advance(30*time.Minute - time.Millisecond)
		redistest.Want(t, "closed", fmt.Sprint(closed), "[]")
		k.Advance(time.Millisecond)
		redistest.Want(t, "closed", fmt.Sprint(closed), "[1 0s]")
		RequireNothing(k, closeOrder)
		k.RequireNothingIn("orders")
		t.Logf("%s: New took %s, all took %s", k.Server(), opened.Round(time.Millisecond),
			time.Since(began).Round(time.Millisecond))
	})
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// scriptSHAs returns the SHA-1 of every script of duestream.
func scriptSHAs(t *testing.T) (all []string) {
	files, err := filepath.Glob("../../lua/generated/*.lua")
	ok(t, err)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".lua")
		if sha := sha1Of(lua.Source(name)); lua.ScriptName(sha) == name {
			all = append(all, sha)
		}
	}
	if len(all) < 30 {
		t.Fatalf("%d scripts", len(all))
	}
	return all
}
