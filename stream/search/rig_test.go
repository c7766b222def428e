package search

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

func TestMain(m *testing.M) {
	redistest.SideBySide(4)
	redistest.Main(m)
}

// rig is a queue on a server, driven by hand.
type rig struct{ *queuetest.Rig }

func newRig(t *testing.T, s *redistest.Server) *rig { return &rig{queuetest.New(t, s)} }

func (r *rig) grow(n int) {
	r.T.Helper()
	if _, err := stream.Grow(r.T.Context(), r.Client, r.Prefix, r.Queue, n, nil); err != nil {
		r.T.Fatal(err)
	}
}

// at returns a due time far in the future; n orders them.
func at(n int) time.Time { return time.UnixMilli(4e12).Add(time.Duration(n) * time.Second) }

// schedule adds a message to the schedule.
func (r *rig) schedule(id, payload string, due time.Time, headers map[string]string) {
	r.T.Helper()
	meta := lua.EncodeMeta(headers, 0, time.Time{})
	r.Enqueue(lua.Item{ID: id, When: lua.At(due), Payload: []byte(payload), Meta: meta})
}

// retry adds a waiting retry of a message for a group.
func (r *rig) retry(id, group, payload, failure string, due time.Time) {
	r.T.Helper()
	member := lua.Member{Kind: lua.MemberRetry, ID: id, Group: group, Of: "1-1"}.String()
	r.Do("HSET", r.Keys.Payload, member, payload)
	r.Do("HSET", r.Keys.Meta, member, fmt.Sprintf(`{"for":%q,"attempt":"2","error":%q,"h:tier":"gold"}`, group, failure))
	r.Do("ZADD", r.Keys.Due, fmt.Sprint(due.UnixMilli()), member)
}

// entry adds an entry to the stream.
func (r *rig) entry(id, payload string, due time.Time, more ...string) (entry string) {
	r.T.Helper()
	return r.add(r.Keys.Stream, id, payload, due, more...)
}

// letter adds a dead letter.
func (r *rig) letter(id, payload, group, reason, failure string, due time.Time, more ...string) (entry string) {
	r.T.Helper()
	more = append(more, "group", group, "reason", reason, "error", failure, "dead_ms", "1700000000000", "entry", "5-1")
	return r.add(r.Keys.Dead, id, payload, due, more...)
}

func (r *rig) add(key, id, payload string, due time.Time, more ...string) (entry string) {
	r.T.Helper()
	args := append([]string{"XADD", key, "*", "id", id, "payload", payload, "attempt", "1", "due_ms",
		fmt.Sprint(due.UnixMilli())}, more...)
	reply := r.Do(args...)
	entry, err := reply.ToString()
	if err != nil {
		r.T.Fatal(err)
	}
	return entry
}

// search returns the hits of a search in the queue.
func (r *rig) search(f Filter) (hits []Hit, p Progress) {
	r.T.Helper()
	if f.Queues == nil {
		f.Queues = []string{r.Queue}
	}
	p, err := Run(r.T.Context(), r.Client, r.Prefix, f, Options{Load: 1}, func(h Hit) error {
		hits = append(hits, h)
		return nil
	})
	if err != nil {
		r.T.Fatalf("%+v: %v", f, err)
	}
	redistest.Want(r.T, "hits that the progress counts", int(p.Found), len(hits))
	redistest.Want(r.T, "looked at", p.Looked, p.Total)
	redistest.Want(r.T, "complete", p.Complete, true)
	return hits, p
}

// names returns "state id group" of hits, sorted, with commas between.
func names(hits []Hit) string {
	var all []string
	for _, h := range hits {
		all = append(all, strings.TrimSpace(fmt.Sprint(h.State, " ", h.ID, " ", h.Group)))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
