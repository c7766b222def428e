package pull

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// A token is unsigned, so its contents must be checked before anything is written. With a made-up token every operation
// must report the delivery as lost, change nothing of the queue, and create no key.
func TestAForgedTokenIsLostAndChangesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g", "h")
		r.Ready("a")
		d := r.pull(1, 0)[0]
		real, err := d.Token.Read()
		if err != nil {
			t.Fatal(err)
		}
		gone := r.On(r.Queue + "-gone")
		gone.Groups("g")
		gone.Do("XADD", gone.Keys.Stream, "*", "id", "b", "payload", "x")
		gone.Do("XREADGROUP", "GROUP", "g", "c", "STREAMS", gone.Keys.Stream, ">")
		gone.Do("DEL", gone.Keys.Stream)

		forge := func(change func(*Ticket)) Token {
			made := real
			change(&made)
			return made.Token()
		}
		tokens := map[string]Token{
			"a deleted queue":              forge(func(n *Ticket) { n.Queue = gone.Queue }),
			"a queue that never was":       forge(func(n *Ticket) { n.Queue += "-never" }),
			"a partition that never was":   forge(func(n *Ticket) { n.Partition = lua.MaxPartitions - 1 }),
			"a group that never was":       forge(func(n *Ticket) { n.Group = "nobody" }),
			"an entry of another group":    forge(func(n *Ticket) { n.Group = "h" }),
			"an entry that never was":      forge(func(n *Ticket) { n.Entry = "17-0" }),
			"another message of the entry": forge(func(n *Ticket) { n.ID = "z" }),
		}
		before := r.everything()
		for what, token := range tokens {
			acked, err := r.Ack(t.Context(), []Token{token})
			redistest.Want(t, what+": ack", fmt.Sprint(acked, err), "[false] <nil>")
			for name, outcome := range map[string]error{"retry": errors.New("no"), "dead": stream.DeadLetter(nil),
				"release": stream.Release(nil), "snooze": stream.Snooze(1e9)} {
				settled, err := r.Fail(t.Context(), []Token{token}, []error{outcome})
				redistest.Want(t, what+": "+name, fmt.Sprint(settled, err), "[lost] <nil>")
			}
			held, err := r.Extend(t.Context(), []Token{token}, []time.Duration{0})
			want := lua.NotHeld
			if what == "another message of the entry" { // an extension only checks the entry, which is really held
				want = lua.StillHeld
			}
			redistest.Want(t, what+": extend", fmt.Sprint(held, err), fmt.Sprint([]lua.Extended{want}, nil))
			if after := r.everything(); after != before {
				t.Errorf("%s: changed\n%s\nto\n%s", what, before, after)
				before = after
			}
		}

		// The ordering key of a token only says whose turn may have come. Here a message with the key "other" is in
		// flight (entry 9-9), and message m waits for it: a token that names this key must not release m.
		r.Do("ZADD", r.Keys.Turns, "0", "other"+lua.Separator+"busy"+lua.Separator+"9-9",
			"0", "other"+lua.Separator+"wait"+lua.Separator+"0000000000000001"+lua.Separator+"m")
		r.Do("ZADD", r.Keys.Due, "4000000000000001", "m")
		acked, err := r.Ack(t.Context(), []Token{forge(func(n *Ticket) { n.Key = "other" })})
		redistest.Want(t, "the real delivery with another ordering key", fmt.Sprint(acked, err), "[true] <nil>")
		redistest.Want(t, "turns of that ordering key", r.Number("ZCARD", r.Keys.Turns), int64(2))
		redistest.Want(t, "messages that wait",
			r.Number("ZCOUNT", r.Keys.Due, "4000000000000001", "4000000000000001"), int64(1))
	})
}

// everything returns all keys of the rig's prefix, with the fields of hashes, and with the number of entries that each
// group holds.
func (r *rig) everything() string {
	r.T.Helper()
	c := r.Client
	keys, err := c.Do(r.T.Context(), c.B().Keys().Pattern(r.Prefix+":*").Build()).AsStrSlice()
	if err != nil {
		r.T.Fatal(err)
	}
	slices.Sort(keys)
	var all strings.Builder
	for _, key := range keys {
		kind, err := c.Do(r.T.Context(), c.B().Type().Key(key).Build()).ToString()
		if err != nil {
			r.T.Fatal(err)
		}
		fmt.Fprintf(&all, "%s %s", key, kind)
		if kind == "stream" {
			groups, _ := c.Do(r.T.Context(), c.B().XinfoGroups().Key(key).Build()).ToArray()
			for _, g := range groups {
				info, _ := g.AsMap()
				name, pending := info["name"], info["pending"]
				text, _ := name.ToString()
				n, _ := pending.AsInt64()
				fmt.Fprintf(&all, ", %s: %d", text, n)
			}
			n, _ := c.Do(r.T.Context(), c.B().Xlen().Key(key).Build()).AsInt64()
			fmt.Fprintf(&all, ", %d entries", n)
		}
		if kind == "hash" {
			fields, _ := c.Do(r.T.Context(), c.B().Hkeys().Key(key).Build()).AsStrSlice()
			slices.Sort(fields)
			fmt.Fprintf(&all, " %q", fields)
		}
		all.WriteString("\n")
	}
	return all.String()
}
