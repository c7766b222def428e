package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

func (r *rig) grow(n int) lua.Counts {
	r.T.Helper()
	counts, err := Grow(r.T.Context(), r.Client, r.Prefix, r.Queue, n, nil)
	if err != nil {
		r.T.Fatal(err)
	}
	return counts
}

// wantAlike checks that all partitions have the policy of partition 0, and these groups.
func (r *rig) wantAlike(what string, partitions int, groups ...string) {
	r.T.Helper()
	s := partitionSync{c: r.Client, prefix: r.Prefix, queue: r.Queue}
	names, err := s.names(r.T.Context())
	if err != nil || len(names) != partitions {
		r.T.Fatalf("%s: partitions %v, %v, want %d", what, names, err, partitions)
	}
	own, err := s.readPolicy(r.T.Context(), r.Queue)
	if err != nil {
		r.T.Fatal(err)
	}
	for i, name := range names {
		if got, err := s.readPolicy(r.T.Context(), name); err != nil || !maps.Equal(got, own) {
			r.T.Errorf("%s: policy of partition %d: %v, %v; of partition 0: %v", what, i, got, err, own)
		}
		if got := r.Part(i).GroupNames(); !slices.Equal(got, groups) {
			r.T.Errorf("%s: groups of partition %d: %v, want %v", what, i, got, groups)
		}
	}
}

// stepClient calls before with the number of each call. If before returns an error, the client sends the commands with
// a cancelled context, so that the call fails.
type stepClient struct {
	rueidis.Client
	n      atomic.Int64
	before func(n int) error
}

func (c *stepClient) step(ctx context.Context) context.Context {
	if c.before(int(c.n.Add(1))) != nil {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx
	}
	return ctx
}

func (c *stepClient) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	return c.Client.Do(c.step(ctx), cmd)
}

func (c *stepClient) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	return c.Client.DoMulti(c.step(ctx), cmds...)
}

// Each partition that a growth adds must get the groups and the policy of the queue. Otherwise its messages would miss
// their consumers or their settings.
func TestGrowGivesEveryPartitionThePolicyAndTheGroups(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.Groups("a", "b")
		r.Policy(map[string]string{"max_attempts": "3", "group:a:visibility_ms": "700"})
		r.Part(1).Policy(map[string]string{"held": "1"}) // as an earlier growth left it that failed
		var steps []string
		counts, err := Grow(t.Context(), r.Client, r.Prefix, r.Queue, 4,
			func(done, total int) { steps = append(steps, fmt.Sprint(done, "/", total)) })
		redistest.Want(t, "counts", fmt.Sprint(counts, err), "1,4 <nil>")
		redistest.Want(t, "last step", steps[len(steps)-1], "16/16")
		r.wantAlike("grown", 4, "a", "b")
		for i := range 4 {
			p := r.Part(i)
			p.Ready(fmt.Sprint("m-", i))
			redistest.Want(t, "given to a", len(p.Take("a", "c", 5)), 1)
			redistest.Want(t, "given to b", len(p.Take("b", "c", 5)), 1)
		}
		redistest.Want(t, "counts", r.grow(4).String(), "1,4")
		redistest.Want(t, "counts", r.grow(6).String(), "1,4,6")
		r.wantAlike("grown again", 6, "a", "b")
	})
}

// Partitions are never removed, because they may hold messages. A count outside 1 to 256 is an error.
func TestGrowRefusesToShrink(t *testing.T) {
	t.Parallel()
	for _, n := range []int{-1, 0, 257} {
		if _, err := Grow(t.Context(), nil, "p", "q", n, nil); !errors.Is(err, lua.ErrInvalid) {
			t.Errorf("%d: %v", n, err)
		}
	}
	if _, err := Grow(t.Context(), nil, "p", "q/1", 2, nil); !errors.Is(err, lua.ErrInvalid) {
		t.Errorf("a partition's name: %v", err)
	}
	r := newRig(t, redistest.Shared(t))
	r.grow(3)
	counts, err := Grow(t.Context(), r.Client, r.Prefix, r.Queue, 2, nil)
	if !errors.Is(err, ErrShrink) {
		t.Error(err)
	}
	redistest.Want(t, "counts", counts.String(), "1,3")
	r.wantAlike("afterwards", 3)
}

// Whichever call of a growth fails, all partitions that producers know must be prepared, and a second growth must
// prepare the others. Call `at` and all later ones fail; the loop ends when a growth has fewer calls.
func TestGrowThatFailsAnywhereIsMendedByARepeat(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	for at, failed := 1, true; failed; at++ {
		r := newRig(t, s)
		r.Groups("a", "b")
		r.Policy(map[string]string{"max_attempts": "3"})
		c := &stepClient{Client: r.Client, before: func(n int) error {
			if n >= at {
				return errors.New("gone")
			}
			return nil
		}}
		_, err := Grow(t.Context(), c, r.Prefix, r.Queue, 3, nil)
		failed = err != nil
		counts, err := Partitions(t.Context(), r.Client, r.Prefix, r.Queue)
		if err != nil {
			t.Fatal(err)
		}
		r.wantAlike(fmt.Sprint("after failing at ", at), counts.Latest(), "a", "b")
		r.grow(3)
		r.wantAlike(fmt.Sprint("mended after ", at), 3, "a", "b")
		if !failed && at < 20 { // a growth by two partitions needs at least 19 calls
			t.Errorf("Grow succeeded with only %d calls: does it use this client?", at-1)
		}
	}
}

// Regression: a growth that was repeated after an operator had destroyed a group brought that group back, from the
// partitions that the first try had prepared but not published.
func TestARepeatedGrowthBringsNoDestroyedGroupBack(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	for at, failed := 1, true; failed; at++ {
		r := newRig(t, s)
		r.Groups("a", "b")
		c := &stepClient{Client: r.Client, before: func(n int) error {
			if n >= at {
				return errors.New("gone")
			}
			return nil
		}}
		_, err := Grow(t.Context(), c, r.Prefix, r.Queue, 4, nil)
		failed = err != nil
		counts, err := Partitions(t.Context(), r.Client, r.Prefix, r.Queue)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range counts.Names(r.Queue) { // the operator knows only these
			r.Do("XGROUP", "DESTROY", lua.NewKeys(r.Prefix, name).Stream, "b")
		}
		if counts.Latest() == 1 {
			r.grow(2)
			r.wantAlike(fmt.Sprint("smaller after ", at), 2, "a")
		}
		r.grow(4)
		r.wantAlike(fmt.Sprint("repeated after ", at), 4, "a")
	}
}

// If the registry has lost the count of partitions in use, a growth must keep a group there that has unread entries
// (b), and removes a group that has none (c).
func TestGrowKeepsGroupsThatAreOwedEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("a")
	used := r.Part(1)
	used.Groups("b")
	used.Ready("m")
	r.Part(2).Groups("c")
	r.grow(3)
	r.wantAlike("grown", 3, "a", "b")
	redistest.Want(t, "given to b", len(used.Take("b", "c", 5)), 1)
}

// If a growth and another change of the queue overlap, one of them sees the work of the other, whichever begins within
// the other.
func TestGrowMissesNothingThatHappensBesideIt(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	growth := func(ctx context.Context, c rueidis.Client, r *rig) error {
		_, err := Grow(ctx, c, r.Prefix, r.Queue, 3, nil)
		return err
	}
	others := map[string]func(context.Context, rueidis.Client, *rig) error{
		"group": func(ctx context.Context, c rueidis.Client, r *rig) error {
			_, err := EnsureGroup(ctx, c, r.Prefix, r.Queue, "b")
			return err
		},
		// Partition 1 already has the group b: see below.
		"group that was left behind": func(ctx context.Context, c rueidis.Client, r *rig) error {
			_, err := EnsureGroup(ctx, c, r.Prefix, r.Queue, "b")
			return err
		},
		"policy": func(ctx context.Context, c rueidis.Client, r *rig) error {
			change := policy.Update{Held: new(true), Clear: []string{policy.SettingMaxAttempts}}
			return WritePolicy(ctx, c, r.Prefix, r.Queue, "", change)
		},
		"growth": func(ctx context.Context, c rueidis.Client, r *rig) error {
			_, err := Grow(ctx, c, r.Prefix, r.Queue, 5, nil)
			return err
		},
	}
	for name, other := range others {
		for _, growthIsInner := range []bool{false, true} {
			outer, inner, title := growth, other, name+" within the growth to 3"
			if growthIsInner {
				outer, inner, title = other, growth, "the growth to 3 within "+name
			}
			t.Run(title, func(t *testing.T) {
				t.Parallel()
				for at, begun := 1, true; begun; at++ {
					r := newRig(t, s)
					r.Groups("a")
					r.Policy(map[string]string{"max_attempts": "3"})
					if name == "group that was left behind" {
						r.Part(1).Groups("b")
					}
					begun = false
					var failed error
					c := &stepClient{Client: r.Client}
					c.before = func(n int) error {
						if n == at {
							begun, failed = true, inner(t.Context(), r.Client, r)
						}
						return nil
					}
					err := outer(t.Context(), c, r)
					if errors.Is(failed, ErrShrink) || errors.Is(err, ErrShrink) { // the other growth has made more partitions
						failed, err = nil, nil
					}
					if err := errors.Join(err, failed); err != nil {
						t.Fatal(err)
					}
					if !begun { // the outer change has fewer than `at` calls, so the inner one follows it
						if err := inner(t.Context(), r.Client, r); err != nil && !errors.Is(err, ErrShrink) {
							t.Fatal(err)
						}
					}
					groups, partitions := []string{"a"}, 3
					switch name {
					case "group", "group that was left behind":
						groups = append(groups, "b")
					case "growth":
						partitions = 5
					}
					r.wantAlike(fmt.Sprint("begun at call ", at), partitions, groups...)
				}
			})
		}
	}
}

// If two processes write different policies at once, all partitions must end up with the same one of the two.
func TestPoliciesWrittenAtOnceEndUpTheSameEverywhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.grow(3)
	for at, begun := 1, true; begun; at++ {
		begun = false
		c := &stepClient{Client: r.Client}
		c.before = func(n int) error {
			if n == at {
				begun = true
				other := policy.Update{MaxAttempts: new(1000 + at)}
				return WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "", other)
			}
			return nil
		}
		if err := WritePolicy(t.Context(), c, r.Prefix, r.Queue, "", policy.Update{MaxAttempts: new(at)}); err != nil {
			t.Fatal(err)
		}
		r.wantAlike(fmt.Sprint("begun at call ", at), 3)
	}
}

// Growths (to 4 up to 9 partitions), new groups and policies run at once. In the end all partitions must be alike.
func TestManyMayGrowAndChangeAQueueAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("a")
	var all sync.WaitGroup
	groups := []string{"a"}
	for i := range 6 {
		groups = append(groups, fmt.Sprint("b", i))
		all.Go(func() {
			if _, err := Grow(t.Context(), r.Client, r.Prefix, r.Queue, 4+i, nil); err != nil && !errors.Is(err, ErrShrink) {
				t.Error(err)
			}
		})
		all.Go(func() {
			if _, err := EnsureGroup(t.Context(), r.Client, r.Prefix, r.Queue, fmt.Sprint("b", i)); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "",
				policy.Update{MaxAttempts: new(i + 1)}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	r.wantAlike("all done", 9, groups...)
}

// An operator may need more partitions on a server that has reached its memory limit.
func TestGrowPassesOnAFullServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Own(t))
	r.Groups("a")
	r.Policy(map[string]string{"max_attempts": "3"})
	r.Do("CONFIG", "SET", "maxmemory", "1")
	r.grow(3)
	r.wantAlike("full", 3, "a")
}
