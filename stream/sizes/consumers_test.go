package sizes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// A consumer that reads several partitions must be listed once, with its partitions and the sums of its figures.
func TestMembersAreThoseOfAllPartitions(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		t.Parallel()
		r := newRig(t, s)
		r.Groups("g", "h")
		r.grow(2)
		list, err := Consumers(t.Context(), r.Client, r.Prefix, r.Queue, "")
		redistest.Want(t, "before anybody has read", fmt.Sprint(list, err), "[] <nil>")
		if _, err := Consumers(t.Context(), r.Client, r.Prefix, r.Queue, "other"); !errors.Is(err, lua.ErrNoGroup) {
			t.Error(err)
		}
		r.Ready("a", "b", "c")
		r.Part(1).Ready("d")
		held := r.Take("g", "one", 2)
		r.Take("g", "two", 1)
		r.Part(1).Take("g", "one", 1)
		r.Part(1).Take("h", "three", 1)
		r.Age("g", "one", held[1])
		list, err = Consumers(t.Context(), r.Client, r.Prefix, r.Queue, "")
		if err != nil || len(list) != 3 {
			t.Fatalf("%+v, %v", list, err)
		}
		var lines []string
		for _, m := range list {
			lines = append(lines, fmt.Sprint(m.Group, " ", m.Consumer, m.Partitions, m.Pending, m.Alive,
				time.Duration(m.OldestIdle) >= time.Hour, m.OldestApprox))
		}
		// Group, consumer, partitions, pending, alive, an entry is idle for an hour, that is approximate.
		redistest.Want(t, "members", strings.Join(lines, "; "),
			"g one[0 1] 3 true true false; g two[0] 1 true false false; h three[1] 1 true false false")
		for _, m := range list {
			if (m.Inactive == nil) != strings.Contains(s.Name(), "7.0") { // Redis 7.0 does not give this time
				t.Errorf("%s: inactive %v", m.Consumer, m.Inactive)
			}
		}
		r.Policy(map[string]string{policy.SettingVisibility: "100"})
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			list, err := Consumers(t.Context(), r.Client, r.Prefix, r.Queue, "h")
			return err == nil && len(list) == 1 && !list[0].Alive, fmt.Sprint(list, err)
		})
		n, err := PendingCount(t.Context(), r.Client, r.Prefix, r.Queue, "g", "")
		redistest.Want(t, "pending", fmt.Sprint(n, err), "4 <nil>")
		n, err = PendingCount(t.Context(), r.Client, r.Prefix, r.Queue, "g", "one")
		redistest.Want(t, "pending of one", fmt.Sprint(n, err), "3 <nil>")
		n, err = PendingCount(t.Context(), r.Client, r.Prefix, r.Queue, "h", "one")
		redistest.Want(t, "pending of a consumer that is not in the group", fmt.Sprint(n, err), "0 <nil>")
		if _, err := PendingCount(t.Context(), r.Client, r.Prefix, r.Queue, "other", ""); !errors.Is(err, lua.ErrNoGroup) {
			t.Error(err)
		}
	})
}

// Only consumerEntries pending entries are examined. If there are more, the oldest idle time must be marked
// approximate.
func TestMembersSayHowFarTheyLooked(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.Shared(t))
	r.Groups("g")
	r.Fill(consumerEntries + 500)
	r.Take("g", "many", consumerEntries)
	r.Take("g", "few", 500)
	list, err := Consumers(t.Context(), r.Client, r.Prefix, r.Queue, "g")
	if err != nil || len(list) != 2 || !list[0].OldestApprox || !list[1].OldestApprox || list[1].Pending != consumerEntries {
		t.Errorf("%+v, %v", list, err)
	}
}
