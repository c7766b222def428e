package sizes

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Groups and consumers of other programs may have any names. They must be listed by their names, and their abandoned
// entries must come back. An entry ID that somebody types must be refused by the check, or be understood by the server.
func FuzzForeignNames(f *testing.F) {
	f.Add("g", "c", "1-1")
	f.Add("", "", "")
	f.Add("a:due", "x}y", "1795216995123-0")
	f.Add("\n\x00", "\xff", "007-01")
	f.Add("a"+lua.Separator+"b", "%41 +", "18446744073709551615-18446744073709551615")
	f.Add("\xff", "duestream-reclaim", "-")
	f.Add("(", "[", "+5")
	s := redistest.Shared(f)
	shared := queuetest.Rig{Server: s, Prefix: s.Prefix(f), Queue: redistest.Queue(f)}
	shared.Client = s.Client(f)
	shared.Keys = lua.NewKeys(shared.Prefix, shared.Queue)
	f.Fuzz(func(t *testing.T, group, consumer, typed string) {
		one := shared
		r := &rig{&one}
		r.T = t
		ctx := context.WithoutCancel(t.Context())
		t.Cleanup(func() { r.Do("DEL", r.Keys.Stream, r.Keys.Due, r.Keys.Payload, r.Keys.Meta, r.Keys.Dead, r.Keys.Wake) })
		r.Do("XADD", r.Keys.Stream, "*", "id", "m", "payload", "p")
		r.Do("XGROUP", "CREATE", r.Keys.Stream, group, "0")
		r.Do("XREADGROUP", "GROUP", group, consumer, "STREAMS", r.Keys.Stream, ">")

		stats, err := Stats(ctx, r.Client, r.Prefix, r.Queue)
		if err != nil || len(stats.Groups) != 1 || stats.Groups[0].Name != group || stats.Groups[0].Pending != 1 {
			t.Fatalf("stats of %q: %+v, %v", group, stats.Groups, err)
		}
		if text, err := json.Marshal(stats); err != nil || !json.Valid(text) {
			t.Errorf("stats of %q as JSON: %s, %v", group, text, err)
		}
		held, err := Pending(ctx, r.Client, r.Prefix, r.Queue, group, PendingFilter{}, 10)
		if err != nil || len(held) != 1 || held[0].Consumer != consumer || held[0].ID != "m" {
			t.Fatalf("pending of %q/%q: %+v, %v", group, consumer, held, err)
		}
		if lua.CheckGroup(group) != nil { // no retry can carry the name, so the group keeps its abandoned entries
			_, err := lua.Reclaim(ctx, r.Client, r.Keys,
				lua.ReclaimArgs{Group: group, Attempts: policy.Default().Attempts(), Limit: 10, MaxBytes: 1 << 20})
			if err == nil || r.Pending(group) != 1 || r.Number("ZCARD", r.Keys.Due)+r.Number("XLEN", r.Keys.Dead) != 0 {
				t.Fatalf("reclaim of %q: %v", group, err)
			}
			return
		}
		got, err := lua.Reclaim(ctx, r.Client, r.Keys, lua.ReclaimArgs{
			Group:    group,
			Attempts: policy.Default().Attempts(),
			Limit:    10,
			MaxBytes: 1 << 20,
		})
		if err != nil || got.Retried != 1 {
			t.Fatalf("reclaim of %q/%q: %+v, %v", group, consumer, got, err)
		}
		member := r.Texts("ZRANGE", r.Keys.Due, "0", "-1")[0]
		r.Do("ZADD", r.Keys.Due, "XX", "1", member)
		d, err := lua.Drain(ctx, r.Client, r.Keys, 10, 1<<20)
		if err != nil || d.Moved != 1 {
			t.Fatalf("drain: %+v, %v", d, err)
		}
		found, err := r.Client.Do(ctx, r.Client.B().Xrange().Key(r.Keys.Stream).Start("-").End("+").Build()).AsXRange()
		if err != nil || len(found) != 1 || found[0].FieldValues[lua.FieldFor] != group ||
			found[0].FieldValues["payload"] != "p" {
			t.Errorf("what %q abandoned came back as %q, %v", group, found, err)
		}

		if id, err := view.ParseEntryID(typed); err == nil {
			if err := r.Client.Do(ctx, r.Client.B().Xrange().Key(r.Keys.Dead).Start(typed).End(typed).Build()).
				Error(); err != nil {
				t.Errorf("%q is an entry ID, %s, and refused by the server: %v", typed, id, err)
			}
		} else if !strings.Contains(err.Error(), "entry ID") || !strings.Contains(err.Error(), "must be") {
			t.Errorf("%q is refused with %q", typed, err)
		}
	})
}
