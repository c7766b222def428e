package bulk

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A text of the payload, and of the error, must select messages in all partitions, however they are looked up. Signs of
// patterns have no meaning.
func TestTextsSelectMessages(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r, counts := newRig(t, s), lua.Counts{1, 3}
		queuetest.PublishCount(t, r.Client, r.Prefix, r.Queue, 3)
		for i := range 600 {
			id := fmt.Sprintf("m-%03d", i)
			p := r.Part(counts.Of(id))
			payload := []byte(fmt.Sprintf(`{"n":"%%d+ %d","of":"%s"}`, i, []string{"acme", "other"}[i%2]))
			p.Enqueue(lua.Item{ID: id, When: lua.At(at(i)), Payload: payload})
		}
		r.addRetries("m-001", "g")
		member := lua.Member{Kind: lua.MemberRetry, ID: "m-001", Group: "g", Of: "1-1"}.String()
		r.Do("HSET", r.Keys.Meta, member, `{"id":"m-001","for":"g","attempt":"2","error":"timeout of [a-z]"}`)
		r.Do("HSET", r.Keys.Payload, member, "retried")
		for _, c := range []struct {
			filter     Filter
			want, gone int
		}{
			{Filter{Text: `"acme"`}, 300, 0},
			{Filter{Text: `"acme"`, Retries: true}, 300, 0},
			{Filter{Text: "%d+ 17\""}, 1, 0},
			{Filter{Text: "%d+ 5"}, 111, 0},
			{Filter{Text: "nothing"}, 0, 0},
			{Filter{Text: "retried", Retries: true}, 1, 0},
			{Filter{Error: "of [a-z]", Retries: true}, 1, 0},
			{Filter{Error: "of [a-z]", Text: "other", Retries: true}, 0, 0},
			{Filter{Error: "of [a-z]"}, 0, 0},
			{Filter{Text: `"acme"`, IDs: []string{"m-000", "m-001", "nobody"}}, 1, 1},
			{Filter{Text: `"acme"`, From: at(100), Until: at(200)}, 50, 0},
		} {
			res, err := r.Cancel(t.Context(), r.Queue, c.filter, Options{DryRun: true})
			if got, want := counted(res, err), counted(Result{Changed: c.want, Gone: c.gone}, nil); got != want {
				t.Errorf("%+v: %s; want %s", c.filter, got, want)
			}
		}
		redistest.Want(t, "cancel", counted(r.Cancel(t.Context(), r.Queue, Filter{Text: `"acme"`}, Options{})),
			counted(Result{Changed: 300}, nil))
		redistest.Want(t, "cancel again", counted(r.Cancel(t.Context(), r.Queue, Filter{Text: `"acme"`}, Options{})),
			counted(Result{}, nil))
		redistest.Want(t, "the others", counted(r.Cancel(t.Context(), r.Queue, Filter{Retries: true}, Options{DryRun: true})),
			counted(Result{Changed: 301}, nil))
	})
}

// Chosen messages must be changed if they still match, and be counted as gone if not.
func TestChosenMessagesMustStillMatch(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		for i := range 10 {
			r.schedule(lua.Counts{1}, fmt.Sprint("m-", i), at(i), map[string]string{"tier": "gold"})
		}
		r.addRetries("m-0", "g")
		retry := lua.Member{Kind: lua.MemberRetry, ID: "m-0", Group: "g", Of: "1-1"}.String()
		chosen := []Message{
			MessageOf(0, "m-1"), MessageOf(0, "m-2"), MessageOf(1, "m-3"), MessageOf(0, "nobody"), MessageOf(0, retry),
		}
		try := func(name string, f Filter, want Result) {
			t.Helper()
			f.Messages = chosen
			redistest.Want(t, name, counted(r.Cancel(t.Context(), r.Queue, f, Options{DryRun: true})), counted(want, nil))
		}
		try("all", Filter{Retries: true}, Result{Changed: 3, Gone: 2}) // m-3 is in another partition
		try("without retries", Filter{}, Result{Changed: 2, Gone: 3})
		try("with a header", Filter{Headers: map[string]string{"tier": "tin"}, Retries: true}, Result{Gone: 5})
		try("with a text", Filter{Text: "p"}, Result{Changed: 2, Gone: 3})
		try("with a time", Filter{Until: at(2)}, Result{Changed: 1, Gone: 4})
		all := Filter{Messages: chosen, Retries: true}
		redistest.Want(t, "a run", counted(r.Cancel(t.Context(), r.Queue, all, Options{})),
			counted(Result{Changed: 3, Gone: 2}, nil))
		redistest.Want(t, "left", r.Number("ZCARD", r.Keys.Due), int64(8))

		for want, f := range map[string]Filter{
			`ids "1": must be none when messages are given`: {Messages: chosen, IDs: []string{"m-1"}},
			"(257 bytes): must be at most 256 bytes":        {Text: strings.Repeat("x", 257)},
			"(1025 bytes): must be at most 1024 bytes":      {Error: strings.Repeat("x", 1025)},
		} {
			_, err := r.Cancel(t.Context(), r.Queue, f, Options{})
			if !errors.Is(err, lua.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", want, err)
			}
		}
	})
}

// A dry run of an expiry must not count messages that have expired already.
func TestDryRunOfAnExpiryKnowsWhatHasExpired(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		for i := range 10 {
			r.schedule(lua.Counts{1}, fmt.Sprint("m-", i), at(i), nil)
		}
		expire := func(f Filter, o Options) string { return counted(r.Expire(t.Context(), r.Queue, f, o)) }
		redistest.Want(t, "some", expire(Filter{Until: at(4)}, Options{}), counted(Result{Changed: 4}, nil))
		want := counted(Result{Changed: 6, Unchanged: 4}, nil)
		redistest.Want(t, "a dry run", expire(Filter{}, Options{DryRun: true}), want)
		redistest.Want(t, "a run", expire(Filter{}, Options{}), want)
	})
}
