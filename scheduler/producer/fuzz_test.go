package producer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// FuzzDoor checks the validation of messages. An accepted message must be delivered bit for bit: straight into the
// stream, through the schedule, and again after a failure. A refusal must name field and limit, and leave nothing
// behind.
func FuzzDoor(f *testing.F) {
	f.Add("order-42", []byte("p"), "trace", "abc", 0, int64(0))
	f.Add("", []byte{0, 255}, "ü", "<&>\u2028\x00\n\"\\", 3, int64(9_999_999_999_999))
	f.Add("世界", []byte(nil), "", "v", 1_000_001, int64(-1))
	f.Add("a\x1fb", []byte("x"), "h", "\xff", -1, int64(1))
	f.Add("\x7f", []byte("x"), "\xff", "v", 1, int64(1_000_000_000_000))
	f.Add("id", []byte("x"), "b64:x", "\ufffd", 1_000_000, int64(10_000_000_000_001))
	f.Add(strings.Repeat("é", 128), []byte("x"), strings.Repeat("n", 128), strings.Repeat("\x01", 8<<10), 1, int64(0))
	f.Add(strings.Repeat("é", 129), []byte("x"), strings.Repeat("n", 129), strings.Repeat("v", 8<<10+1), 1, int64(0))
	s := redistest.Shared(f)
	c, prefix, queue := s.Client(f), s.Prefix(f), redistest.Queue(f)
	p, err := New(Config{Client: c, Prefix: prefix})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { p.Close() })
	k := lua.NewKeys(prefix, queue)
	f.Fuzz(func(t *testing.T, id string, payload []byte, name, value string, attempts int, expires int64) {
		ctx := context.WithoutCancel(t.Context())
		do := func(words ...string) rueidis.RedisResult { return c.Do(ctx, c.B().Arbitrary(words...).Build()) }
		empty := func() {
			if err := do("DEL", k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Wake, k.Seen).Error(); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(empty)
		m := Message{ID: id, Payload: payload, MaxAttempts: attempts}
		if name != "" || value != "" {
			m.Headers = map[string]string{name: value}
		}
		if expires != 0 {
			m.Expires = time.UnixMilli(expires)
		}
		for _, delay := range []time.Duration{0, time.Hour} {
			empty()
			if _, err := lua.EnsureGroup(ctx, c, k, "g"); err != nil {
				t.Fatal(err)
			}
			m.Delay = delay
			receipt, err := p.Schedule(ctx, queue, m)
			if err != nil {
				var invalid *lua.InvalidError
				if !errors.As(err, &invalid) || invalid.Field == "" || !strings.Contains(invalid.Rule, "must ") {
					t.Fatalf("%+v is refused with %v", m, err)
				}
				if n, err := do("EXISTS", k.Due, k.Payload, k.Meta, k.Seen).AsInt64(); err != nil || n != 0 {
					t.Fatalf("what was refused left %d keys, %v", n, err)
				}
				return
			}
			if m.ID != "" && receipt.ID != m.ID {
				t.Fatalf("id %q became %q", m.ID, receipt.ID)
			}
			for attempt := 1; attempt <= 2; attempt++ {
				for _, member := range texts(t, do("ZRANGE", k.Due, "0", "-1")) {
					do("ZADD", k.Due, "XX", "1", member)
				}
				d, err := lua.Drain(ctx, c, k, 10, 1<<20)
				if err != nil || d.Refusal != "" {
					t.Fatalf("drain: %+v, %v", d, err)
				}
				found, err := do("XREADGROUP", "GROUP", "g", "c", "STREAMS", k.Stream, ">").AsXReadSlices()
				if rueidis.IsRedisNil(err) && d.Dead == 1 && !m.Expires.IsZero() &&
					m.Expires.Before(time.Now().Add(time.Minute)) {
					break // the message has expired
				}
				if err != nil || len(found[k.Stream]) != 1 {
					t.Fatalf("%d entries, %v, drained %+v", len(found[k.Stream]), err, d)
				}
				e := lua.ParseEntry(found[k.Stream][0].ID, found[k.Stream][0].FieldValues)
				got := fmt.Sprintf("%q %q %q %d %d", e.ID, e.Payload, e.Headers, e.MaxAttempts, e.Attempt)
				if wanted := fmt.Sprintf("%q %q %q %d %d", receipt.ID, m.Payload, m.Headers, m.MaxAttempts,
					attempt); got != wanted {
					t.Fatalf("delivered %.300s, want %.300s", got, wanted)
				}
				if !m.Expires.IsZero() && !e.Expires.Equal(m.Expires) || len(e.Extra) > 0 {
					t.Fatalf("delivered with expiry %v and %q, want %v", e.Expires, e.Extra, m.Expires)
				}
				out, err := lua.Retry(ctx, c, k, "g", lua.Attempts{Max: 10, Delays: []time.Duration{0}},
					[]lua.Failure{{Held: lua.Held{Entry: e.EntryID, ID: e.ID}, Action: lua.ActionRetry, Delay: -1,
						Error: "boom"}})
				if err != nil || out[0] != lua.Retried && !(out[0] == lua.Dead && m.MaxAttempts == attempt) {
					t.Fatalf("retry: %v, %v", out, err)
				}
				if out[0] == lua.Dead {
					break
				}
			}
		}
	})
}

func texts(t *testing.T, reply rueidis.RedisResult) []string {
	t.Helper()
	list, err := reply.AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	return list
}
