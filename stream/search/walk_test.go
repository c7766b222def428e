package search

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/lookup"
)

// A part of the payload must be found in each partition, and in partitions that are added during the search.
func TestSearchFollowsGrowth(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.grow(3)
		var want []string
		for i := range 30 {
			id, payload := fmt.Sprintf("m-%02d", i), fmt.Sprintf(`{"customer":"acme","n":%d}`, i)
			if i%3 == 0 {
				payload = `{"customer":"other"}`
			} else {
				want = append(want, id)
			}
			p := rig{r.Part(i % 3)}
			switch i % 5 {
			case 0:
				p.entry(id, payload, at(i))
			case 1:
				p.letter(id, payload, "g", "expired", "", at(i))
			default:
				p.schedule(id, payload, at(i), nil)
			}
		}
		var found []string
		f := Filter{Queues: []string{r.Queue}, Text: `"acme"`}
		_, err := Run(t.Context(), r.Client, r.Prefix, f, Options{Load: 1}, func(h Hit) error {
			if len(found) == 0 {
				r.grow(5)
				p := rig{r.Part(4)}
				p.schedule("added", `{"customer":"acme"}`, at(1), nil)
				p.entry("added-entry", `{"customer":"acme"}`, at(1))
			}
			found = append(found, h.ID)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(found)
		want = append([]string{"added", "added-entry"}, want...)
		redistest.Want(t, "found", fmt.Sprint(found), fmt.Sprint(want))
	})
}

// Texts must be compared byte for byte: the signs of patterns, NUL and bytes that are not UTF-8 have no meaning.
func TestTextsAreLiteral(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		texts := []string{
			"*", "?", "[a]", `\`, "%d+", "%a", ".", "^begin", "end$", "a-b", "(x)", "%", "%%", "nul\x00byte", "\xff\xfe",
			"3:abc", "zoë", "'\"", "\r\n", "%b()", "[[x]]", "h:tier", "\x1f",
		}
		r.Groups("g")
		for i, text := range texts {
			id := fmt.Sprintf("m-%02d", i)
			failure := strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "0"), "?")
			r.schedule(id, "before"+text+"after", at(i), nil)
			r.entry(id, "before"+text+"after", at(i), "error", failure)
			r.letter(id, "before"+text+"after", "g", "expired", failure, at(i))
		}
		r.schedule("plain", "before123after", at(1), nil)
		for i, text := range texts {
			var want []string
			for k, other := range texts {
				if strings.Contains("before"+other+"after", text) {
					want = append(want, fmt.Sprintf("dead m-%02d g, ready m-%02d, scheduled m-%02d", k, k, k))
				}
			}
			want = strings.Split(strings.Join(want, ", "), ", ")
			slices.Sort(want)
			hits, _ := r.search(Filter{Text: text})
			if got := names(hits); got != strings.Join(want, ", ") {
				t.Errorf("text %q (m-%02d): %s; want %s", text, i, got, want)
			}
		}
		hits, _ := r.search(Filter{Error: "%d+", States: []lookup.State{lookup.StateDead}})
		redistest.Want(t, "error", names(hits), "dead m-04 g")
		for _, prefix := range []string{"*", "m-0?", "m-[0]", "m%-"} {
			hits, _ := r.search(Filter{Prefix: prefix})
			redistest.Want(t, "prefix "+prefix, names(hits), "")
		}
	})
}

// A payload of 5 MiB must be found, and must not be sent to the client.
func TestSearchReadsNoPayload(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	large := strings.Repeat("x", 5<<20-6) + "needle"
	r.Groups("g")
	for i := range 3 {
		r.schedule(fmt.Sprint("large-", i), large, at(i), nil)
		r.schedule(fmt.Sprint("small-", i), "needle", at(i), nil)
	}
	r.entry("large", large, at(1))
	r.entry("small", "none", at(1))
	r.letter("large", large, "g", "expired", "", at(1))
	sent := func() int64 {
		var n int64
		text := queuetest.Text(t, r.Client, "INFO", "stats")
		_, rest, _ := strings.Cut(text, "total_net_output_bytes:")
		fmt.Sscan(rest, &n)
		return n
	}
	before := sent()
	hits, _ := r.search(Filter{Text: "needle"})
	redistest.Want(t, "found", names(hits), "dead large g, ready large, scheduled large-0, scheduled large-1, "+
		"scheduled large-2, scheduled small-0, scheduled small-1, scheduled small-2")
	for _, h := range hits {
		if want := int64(6); strings.HasPrefix(h.ID, "small") && h.Bytes != want {
			t.Errorf("%s: payload of %d bytes", h.ID, h.Bytes)
		} else if strings.HasPrefix(h.ID, "large") && h.Bytes != 5<<20 {
			t.Errorf("%s: payload of %d bytes", h.ID, h.Bytes)
		}
	}
	if n := sent() - before; n > 100_000 {
		t.Errorf("the server sent %d bytes", n)
	}
}

// A message that stays in the schedule must be found exactly once, while other messages come and go.
func TestSearchMeetsWhatStaysOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		const n = 20_000
		for first := 0; first < n; first += 500 {
			var items []lua.Item
			for i := first; i < first+500; i++ {
				items = append(items, lua.Item{ID: fmt.Sprint("stays-", i), When: lua.At(at(i)), Payload: []byte("needle")})
			}
			r.Enqueue(items...)
		}
		ctx, stop := context.WithCancel(t.Context())
		var others sync.WaitGroup
		others.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				var ids []string
				var items []lua.Item
				for k := range 300 * (1 + i%5) {
					ids = append(ids, fmt.Sprint("goes-", i, "-", k))
					items = append(items, lua.Item{ID: ids[k], When: lua.At(at(k)), Payload: []byte("needle")})
				}
				if _, err := lua.Enqueue(ctx, r.Client, r.Keys, lua.Token{}, items, lua.Durability{}); err == nil {
					lua.Cancel(ctx, r.Client, r.Keys, ids, lua.Durability{})
				}
			}
		})
		found := map[string]int{}
		f := Filter{Queues: []string{r.Queue}, Text: "needle", Prefix: "stays-"}
		_, err := Run(t.Context(), r.Client, r.Prefix, f, Options{Load: 1}, func(h Hit) error {
			found[h.ID]++
			return nil
		})
		stop()
		others.Wait()
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "found", len(found), n)
		for id, times := range found {
			if times != 1 {
				t.Fatalf("%s was found %d times", id, times)
			}
		}
	})
}

// A search must end at its limit, at the error of its caller, and at the end of its context, and tell what it did.
func TestSearchEndsWhenItIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	for i := range 2000 {
		r.schedule(fmt.Sprint("m-", i), "p", at(i), nil)
	}
	f := Filter{Queues: []string{r.Queue}}
	run := func(ctx context.Context, o Options, found func(Hit) error) (Progress, error) {
		return Run(ctx, r.Client, r.Prefix, f, o, found)
	}
	var told []Progress
	p, err := run(t.Context(), Options{Limit: 7, Load: 1, Progress: func(p Progress) { told = append(told, p) }},
		func(Hit) error { return nil })
	if err != nil || p.Found != 7 || p.Complete || p.Total != 2000 || len(told) < 2 {
		t.Errorf("limit: %+v, %v, told %d times", p, err, len(told))
	}
	redistest.Want(t, "first progress", told[0], Progress{Total: 2000})
	redistest.Want(t, "last progress", told[len(told)-1], p)

	refused := errors.New("refused")
	p, err = run(t.Context(), Options{Load: 1}, func(Hit) error { return refused })
	if !errors.Is(err, refused) || p.Found != 1 || p.Complete {
		t.Errorf("error of the caller: %+v, %v", p, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	p, err = run(ctx, Options{Load: 0.001}, func(Hit) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || p.Found == 0 || p.Found == 2000 || p.Complete {
		t.Errorf("end of the context: %+v, %v", p, err)
	}
}

// A search must go on after its connections broke, and find each message once.
func TestSearchOutlivesItsConnections(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	r, proxy := newRig(t, s), s.Proxy(t)
	const n = 3000
	r.Groups("g")
	for first := 0; first < n; first += 500 {
		var items []lua.Item
		for i := first; i < first+500; i++ {
			items = append(items, lua.Item{ID: fmt.Sprint("s-", i), When: lua.At(at(i)), Payload: []byte("needle")},
				lua.Item{ID: fmt.Sprint("r-", i), When: lua.After(0), Payload: []byte("needle")})
		}
		r.Enqueue(items...)
	}
	found := map[string]int{}
	f := Filter{Queues: []string{r.Queue}, Text: "needle"}
	p, err := Run(t.Context(), proxy.Client(t), r.Prefix, f, Options{Load: 1}, func(h Hit) error {
		if found[h.ID]++; len(found)%1500 == 700 { // twice in the schedule, and twice in the stream
			proxy.CutAll()
			proxy.CutAfterForward(1, "EVALSHA", "EVALSHA_RO")
		}
		return nil
	})
	if err != nil || p.Found != 2*n {
		t.Fatalf("%+v, %v", p, err)
	}
	redistest.Want(t, "found", len(found), 2*n)
	if proxy.Cuts() == 0 {
		t.Error("no call lost its reply")
	}

	refused := fmt.Errorf("the caller's own trouble: %w", lua.ErrUnavailable)
	calls := 0
	_, err = Run(t.Context(), r.Client, r.Prefix, f, Options{}, func(Hit) error {
		calls++
		return refused
	})
	if !errors.Is(err, refused) || calls != 1 {
		t.Errorf("after an error of the caller: %d calls, %v", calls, err)
	}
}

// A server that is away for some seconds must not end a search when it reads the number of partitions.
func TestSearchWaitsForTheNumberOfPartitions(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	r.schedule("wanted", "p", at(1), nil)
	found := 0
	f := Filter{Queues: []string{r.Queue}}
	p, err := Run(t.Context(), r.Client, r.Prefix, f, Options{Load: 1}, func(Hit) error {
		found++
		r.Do("CLIENT", "PAUSE", fmt.Sprint(loop.CallTimeout.Milliseconds()+500), "ALL")
		return nil
	})
	redistest.Want(t, "found", fmt.Sprint(found, p.Complete, err), "1 true <nil>")
}

// A dead letter in a partition that was added after the beginning must not be found, because a purge would delete it.
func TestSearchFindsNoLetterOfANewPartition(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.schedule("waits", "p", at(1), nil)
		r.letter("old", "p", "g", "expired", "", at(1))
		var found []string
		f := Filter{Queues: []string{r.Queue}}
		p, err := Run(t.Context(), r.Client, r.Prefix, f, Options{Load: 1}, func(h Hit) error {
			if h.ID == "waits" {
				r.grow(2)
				added := rig{r.Part(1)}
				added.letter("new", "p", "g", "expired", "", at(1))
			}
			found = append(found, h.ID)
			return nil
		})
		redistest.Want(t, "found", fmt.Sprint(found, err), "[waits old] <nil>")
		redistest.Want(t, "looked at", fmt.Sprint(p.Looked, p.Total, p.Complete), "2 2 true")
	})
}

// A dead letter that was added after the beginning must not be found.
func TestSearchFindsNoLetterThatCameLater(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.grow(3)
		for i := range 3 {
			p := rig{r.Part(i)}
			p.letter(fmt.Sprint("old-", i), "p", "g", "expired", "", at(1))
		}
		var found []string
		f := Filter{Queues: []string{r.Queue}}
		_, err := Run(t.Context(), r.Client, r.Prefix, f, Options{Load: 1}, func(h Hit) error {
			found = append(found, h.ID)
			for i := range 3 {
				p := rig{r.Part(i)}
				p.letter("new", "p", "g", "expired", "", at(1))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, "found", fmt.Sprint(found), "[old-0 old-1 old-2]")
	})
}

// A search must use no more than its share of the server's time.
func TestSearchUsesItsShareOfTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	for first := 0; first < 30_000; first += 500 {
		var items []lua.Item
		for i := first; i < first+500; i++ {
			payload := []byte(strings.Repeat("p", 200))
			items = append(items, lua.Item{ID: fmt.Sprint("m-", i), When: lua.At(at(i)), Payload: payload})
		}
		r.Enqueue(items...)
	}
	took := func(load float64) (wall time.Duration, calls, used int64) {
		r.Do("CONFIG", "RESETSTAT")
		began := time.Now()
		f := Filter{Queues: []string{r.Queue}, Text: "nothing"}
		if _, err := Run(t.Context(), r.Client, r.Prefix, f, Options{Load: load}, nil); err != nil {
			t.Fatal(err)
		}
		wall = time.Since(began)
		for line := range strings.Lines(queuetest.Text(t, r.Client, "INFO", "commandstats")) {
			if name, rest, _ := strings.Cut(line, ":"); strings.HasPrefix(name, "cmdstat_eval") {
				var c, u int64
				fmt.Sscanf(rest, "calls=%d,usec=%d", &c, &u)
				calls, used = calls+c, used+u
			}
		}
		return wall, calls, used
	}
	took(1) // the server learns the script
	wall, calls, used := took(0.1)
	// On a busy machine the server counts time in which it did not run.
	if share := float64(used) / float64(wall.Microseconds()); share > 0.3 {
		t.Errorf("%d calls used %d µs in %s, a share of %.2f", calls, used, wall, share)
	}
}

// As many IDs as a filter may have, each as long as it may be, must be found, also with as many headers as it may have.
func TestSearchByAsManyIDsAsAllowed(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g")
		f := Filter{Headers: map[string]string{}}
		for i := range lua.MaxHeaders {
			f.Headers[fmt.Sprint("header-", i)] = strings.Repeat("v", 400)
		}
		for i := range MaxIDs {
			f.IDs = append(f.IDs, fmt.Sprintf("%0*d", lua.MaxIDBytes, i))
		}
		for i := range 1500 {
			id := fmt.Sprintf("%0*d", lua.MaxIDBytes, i)
			switch {
			case i%500 == 7:
				r.schedule(id, "p", at(i), f.Headers)
			case i%500 == 8:
				r.schedule(id, "p", at(i), nil)
			case i%100 == 9:
				r.entry(id, "p", at(i))
			}
		}
		hits, _ := r.search(f)
		redistest.Want(t, "with the headers", len(hits), 2)
		f.Headers = nil
		hits, _ = r.search(f)
		redistest.Want(t, "with and without headers, and entries", len(hits), 14)
	})
}

// A fault must be refused before Redis is touched, with its field, value and rule.
func TestFaultsAreRefused(t *testing.T) {
	ids := make([]string, MaxIDs+1)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	for _, c := range []struct {
		filter  Filter
		options Options
		want    string
	}{
		{Filter{Queues: []string{"a b"}}, Options{}, `queue "a b": must be 1 to 128`},
		{Filter{States: []lookup.State{"lost"}}, Options{}, `state "lost": must be one of [scheduled retrying`},
		{Filter{IDs: ids}, Options{}, `ids "1001": must be at most 1000`},
		{Filter{IDs: []string{""}}, Options{}, `id "": must not be empty`},
		{Filter{Prefix: "a\x1f"}, Options{}, `prefix "a\x1f": must be the beginning of an ID`},
		{Filter{Headers: map[string]string{"": "x"}}, Options{}, `header name "": must not be empty`},
		{Filter{Error: strings.Repeat("x", 1025)}, Options{}, `(1025 bytes): must be at most 1024 bytes`},
		{Filter{Text: strings.Repeat("x", 257)}, Options{}, `(257 bytes): must be at most 256 bytes`},
		{Filter{Reason: strings.Repeat("x", 257)}, Options{}, `(257 bytes): must be at most 256 bytes`},
		{Filter{Group: "\n"}, Options{}, `group "\n": must not hold control characters`},
		{Filter{From: at(2).UTC(), Until: at(2).UTC()}, Options{},
			`until "2096-10-02T07:06:42Z": must be after 2096-10-02T07:06:42Z`},
		{Filter{}, Options{Limit: -1}, `limit "-1": must not be negative`},
		{Filter{}, Options{Load: 1.5}, `load "1.5": must be a share between 0 and 1`},
	} {
		var untouched rueidis.Client // a call of it would panic
		_, err := Run(t.Context(), untouched, "p", c.filter, c.options, nil)
		if !errors.Is(err, lua.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: %v", c.want, err)
		}
	}
}
