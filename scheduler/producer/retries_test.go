package producer

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// addRetry puts a retry, or a redriven letter, into the schedule like the scripts do, and returns its member.
func addRetry(t *testing.T, c rueidis.Client, k lua.Keys, m lua.Member, due int64) string {
	t.Helper()
	member := m.String()
	queuetest.Do(t, c, "HSET", k.Payload, member, "p")
	queuetest.Do(t, c, "HSET", k.Meta, member, fmt.Sprintf(`{"id":%q,"for":%q,"attempt":"2"}`, m.ID, m.Group))
	queuetest.Do(t, c, "ZADD", k.Due, fmt.Sprint(due), member)
	return member
}

// A retry must be cancelled by the ID of its message ("paid: stop the callbacks"), for one group or for all, in every
// partition. Before CancelRetries, nothing cancelled a message after its first attempt had failed.
func TestCancelRetriesTakesWhatWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
		queuetest.PublishCount(t, c, prefix, queue, 2)
		p, counts := newProducer(t, c, prefix), lua.Counts{1, 2}
		id := "order-*?[4]\\" // must be taken literally, not as a pattern
		for counts.Of(id) != 1 {
			id += "2"
		}
		k, zero := lua.NewKeys(prefix, lua.PartitionName(queue, 1)), lua.NewKeys(prefix, queue)
		far := time.Now().Add(time.Hour).UnixMilli()
		many := []string{"ZADD", k.Due}
		for i := range 2500 { // more than one step of the search
			many = append(many, "1e13", fmt.Sprint("first-", i))
		}
		queuetest.Do(t, c, many...)
		queuetest.Do(t, c, "ZADD", k.Due, "1e13", id)
		addRetry(t, c, k, lua.Member{Kind: lua.MemberRetry, ID: id, Group: "a", Of: "1-1"}, far)
		addRetry(t, c, k, lua.Member{Kind: lua.MemberRetry, ID: id, Group: "b", Of: "1-1"}, far)
		addRetry(t, c, k, lua.Member{Kind: lua.MemberRedriven, ID: id, Of: "2-1"}, far)
		addRetry(t, c, zero, lua.Member{Kind: lua.MemberImported, ID: id, Group: "a", Of: "3-1"}, far)
		other := addRetry(t, c, k, lua.Member{Kind: lua.MemberRetry, ID: id + "x", Group: "a", Of: "1-1"}, far)
		groups := func(found []Retry) (names []string) {
			for _, r := range found {
				if r.ID != id || r.Due.UnixMilli() != far {
					t.Errorf("%+v", r)
				}
				names = append(names, r.Group)
			}
			slices.Sort(names)
			return names
		}
		found, err := p.CancelRetries(t.Context(), queue, "a", id)
		if got := groups(found); err != nil || !slices.Equal(got, []string{"a", "a"}) {
			t.Errorf("of group a: %q, %v", got, err)
		}
		if found, err = p.CancelRetries(t.Context(), queue, "", "unknown", id); err != nil ||
			!slices.Equal(groups(found), []string{"", "b"}) {
			t.Errorf("of the others: %+v, %v", found, err)
		}
		if found, err = p.CancelRetries(t.Context(), queue, "", id); err != nil || len(found) != 0 {
			t.Errorf("again: %+v, %v", found, err)
		}
		for what, want := range map[string]int64{k.Due: 2502, k.Payload: 1, k.Meta: 1} {
			if n := queuetest.Integer(t, c, map[bool]string{true: "ZCARD", false: "HLEN"}[what == k.Due], what); n != want {
				t.Errorf("%s holds %d, want %d", what, n, want)
			}
		}
		if queuetest.Integer(t, c, "EXISTS", zero.Due, zero.Payload, zero.Meta) != 0 || queuetest.Integer(t, c, "ZRANK", k.Due,
			other) < 0 {
			t.Error("a body is left, or another's retry went")
		}
		if done, err := p.Cancel(t.Context(), queue, id); err != nil || !done {
			t.Errorf("the message itself: %v, %v", done, err)
		}
	})
}

// RescheduleRetries must move the waiting retries of one group, or of all, and wake the bridges.
func TestRescheduleRetriesMovesWhatWaits(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue := s.Client(t), s.Prefix(t), redistest.Queue(t)
	p, k := newProducer(t, c, prefix), lua.NewKeys(prefix, queue)
	far := time.Now().Add(time.Hour).UnixMilli()
	a := addRetry(t, c, k, lua.Member{Kind: lua.MemberRetry, ID: "m", Group: "a", Of: "1-1"}, far)
	b := addRetry(t, c, k, lua.Member{Kind: lua.MemberRetry, ID: "m", Group: "b", Of: "1-1"}, far)
	from := queuetest.Now(t, c)
	found, err := p.RescheduleRetries(t.Context(), queue, "a", 0, time.Time{}, "m")
	if err != nil || len(found) != 1 || found[0].Group != "a" || found[0].Due.Before(from.Truncate(time.Millisecond)) {
		t.Fatalf("%+v, %v", found, err)
	}
	if due := queuetest.Integer(t, c, "ZSCORE", k.Due, a); due != found[0].Due.UnixMilli() ||
		queuetest.Integer(t, c, "ZSCORE", k.Due, b) != far {
		t.Errorf("due at %d, said to be %v", due, found[0].Due)
	}
	if n := queuetest.Integer(t, c, "XLEN", k.Wake); n != 1 {
		t.Errorf("%d wake tokens", n)
	}
	at := time.UnixMilli(far).Add(time.Hour)
	if found, err = p.RescheduleRetries(t.Context(), queue, "", 0, at, "m"); err != nil || len(found) != 2 ||
		!found[1].Due.Equal(at) {
		t.Errorf("%+v, %v", found, err)
	}
	for _, call := range []func() error{
		func() error { _, err := p.CancelRetries(t.Context(), queue, "a\x1f", "m"); return err },
		func() error { _, err := p.CancelRetries(t.Context(), queue, "", ""); return err },
		func() error { _, err := p.RescheduleRetries(t.Context(), queue, "", time.Hour, at, "m"); return err },
	} {
		if err := call(); !errors.Is(err, lua.ErrInvalid) {
			t.Error(err)
		}
	}
}

// A cursor is invalid in another server process. So a walk whose connection broke must start again, and must return
// ErrUncertain, because it may not know all retries that it removed.
func TestAWalkBeginsAnewWhenItsConnectionBreaks(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	c, prefix, queue, proxy := s.Client(t), s.Prefix(t), redistest.Queue(t), s.Proxy(t)
	p, k := newProducer(t, proxy.Client(t), prefix), lua.NewKeys(prefix, queue)
	if _, err := p.CancelRetries(t.Context(), queue, "", "m"); err != nil { // loads the script
		t.Fatal(err)
	}
	for i := range 3000 {
		queuetest.Do(t, c, "ZADD", k.Due, "1e13", fmt.Sprint("first-", i))
	}
	for i := range 20 {
		addRetry(t, c, k, lua.Member{Kind: lua.MemberRetry, ID: "m", Group: "a", Of: fmt.Sprint(i, "-1")}, 1e13)
	}
	proxy.CutAfterForward(1, "EVALSHA")
	found, err := p.CancelRetries(t.Context(), queue, "", "m")
	if !errors.Is(err, ErrUncertain) {
		t.Errorf("%d found, %v", len(found), err)
	}
	if n := queuetest.Integer(t, c, "ZCARD", k.Due); n != 3000 || queuetest.Integer(t, c, "EXISTS", k.Meta, k.Payload) != 0 {
		t.Errorf("%d members are left", n)
	}
	if found, err = p.CancelRetries(t.Context(), queue, "", "m"); err != nil || len(found) != 0 {
		t.Errorf("again: %+v, %v", found, err)
	}
}
