package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// A queue has eight partitions on a cluster of three masters. Find, Peek, Consumers and Pause work on all partitions:
// they find messages in every state, wherever they are.
func TestOperatorsLookAtMessagesOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.Cluster(t, 3, 0)
	s := newStack(t, c.Server())
	s.groups("g")
	if _, err := s.operator().SetPartitions(t.Context(), s.queue, 8, nil); err != nil {
		t.Fatal(err)
	}
	s.bridge(bridge.Policy{VisibilityTimeout: time.Minute, MaxAttempts: 3, RetryMin: time.Hour, RetryMax: time.Hour})
	const n = 24
	hold := make(chan struct{})
	held := make(chan string, n)
	// n messages keep a slot to the end of the test
	s.worker("g", 2*n, func(ctx context.Context, m *bridge.Message) error {
		switch {
		case strings.HasPrefix(m.ID, "retrying"):
			return errors.New("once more")
		case strings.HasPrefix(m.ID, "dead"):
			return bridge.DeadLetter(errors.New("no good"))
		case strings.HasPrefix(m.ID, "pending"):
			held <- m.ID
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return nil
	})
	defer close(hold)
	var batch []bridge.NewMessage
	for i := range n {
		for _, state := range []string{"scheduled", "retrying", "dead", "pending"} {
			m := bridge.NewMessage{ID: fmt.Sprint(state, "-", i), Payload: []byte("p")}
			if state == "scheduled" {
				m.Delay = time.Duration(i+1) * time.Minute
			}
			batch = append(batch, m)
		}
	}
	results, err := s.client.ScheduleBatch(t.Context(), s.queue, batch)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		<-held
	}
	partitions := map[int]bool{}
	for _, m := range batch {
		state, _, _ := strings.Cut(m.ID, "-")
		redistest.Eventually(t, 30*time.Second, func() (bool, string) {
			f, err := s.operator().Find(t.Context(), m.ID, admin.FindOptions{})
			if err != nil || len(f.Places) != 1 || string(f.Places[0].State) != state || len(f.History) == 0 {
				return false, fmt.Sprintf("%s: %+v, %v", m.ID, f.Places, err)
			}
			partitions[f.Places[0].Partition] = true
			return true, ""
		})
	}
	if len(partitions) != 8 {
		t.Errorf("found in partitions %v", partitions)
	}
	if _, err := s.operator().Find(t.Context(), "nowhere", admin.FindOptions{}); !errors.Is(err,
		admin.ErrNotFound) {
		t.Error(err)
	}
	peeked, err := s.operator().Peek(t.Context(), s.queue, n/2, true)
	if err != nil || peeked.Total != 2*n || len(peeked.Next) != n/2 {
		t.Fatalf("%+v, %v", peeked, err)
	}
	for i, d := range peeked.Next {
		if d.ID != fmt.Sprint("scheduled-", i) || string(d.Payload) != "p" {
			t.Errorf("%d: %+v", i, d)
		}
	}
	members, err := s.operator().Consumers(t.Context(), s.queue, "g")
	if err != nil || len(members) != 1 || members[0].Pending != n || !members[0].Alive || len(members[0].Partitions) != 8 {
		t.Errorf("%+v, %v", members, err)
	}
	for _, want := range []bool{true, false} { // the second pause changes nothing
		changed, err := s.operator().Pause(t.Context(), s.queue, true)
		if changed != want || err != nil {
			t.Errorf("changed %v, %v", changed, err)
		}
	}
	if _, err := s.client.Schedule(t.Context(), s.queue, nil, bridge.WithID("pending-late"),
		bridge.In(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		p, err := s.operator().Peek(t.Context(), s.queue, 1, false)
		return err == nil && p.Held && p.Next[0].ID == "pending-late" && p.Next[0].Overdue, fmt.Sprint(p, err)
	})
	if changed, err := s.operator().Pause(t.Context(), s.queue, false); !changed || err != nil {
		t.Errorf("changed %v, %v", changed, err)
	}
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		f, err := s.operator().Find(t.Context(), "pending-late", admin.FindOptions{Queues: []string{s.queue}})
		return err == nil && slices.ContainsFunc(f.Places, func(p admin.Sighting) bool { return p.State != "scheduled" }),
			fmt.Sprint(f.Places, err)
	})
}

// Find opens further connections with the settings that Dial used: over TLS for a user with a password, with RESP2, and
// to the in-process server of `duestream dev`.
func TestFindConnectsAsDialDid(t *testing.T) {
	t.Parallel()
	secure := redistest.TLS(t, redistest.NewAuthority(t))
	operator := secure.Client(t)
	if err := operator.Do(t.Context(),
		operator.B().Arbitrary(strings.Fields(documentedUsers(t)["operator"].Line)...).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	shared := redistest.Shared(t)
	for name, url := range map[string]string{
		"TLS":        secure.ClientURL("operator", documentedUsers(t)["operator"].Password),
		"RESP2":      shared.URL() + "?protocol=2",
		"in-process": "redis://" + miniredis.RunT(t).Addr(),
	} {
		t.Run(name, func(t *testing.T) {
			s := &stack{t: t}
			r := s.dial(url)
			prefix := ""
			if name == "RESP2" {
				prefix = shared.Prefix(t)
			}
			client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			for i := range 50 {
				if _, err := client.Schedule(t.Context(), "emails", []byte("p"), bridge.WithID(fmt.Sprint("m-", i)),
					bridge.Header("like", "m-7")); err != nil {
					t.Fatal(err)
				}
			}
			op := redistest.Must(admin.New(r, prefix))
			for _, id := range []string{"m-0", "m-7", "m-49"} {
				f, err := op.Find(t.Context(), id, admin.FindOptions{Queues: []string{"emails"}})
				if err != nil || len(f.Places) != 1 || f.Places[0].State != "ready" || string(f.Places[0].Payload) != "p" {
					t.Errorf("%s: %+v, %v", id, f.Places, err)
				}
			}
			if _, err := op.Find(t.Context(), "nowhere", admin.FindOptions{}); !errors.Is(err, admin.ErrNotFound) {
				t.Error(err)
			}
			if _, err := client.Schedule(t.Context(), "emails", []byte("p"), bridge.WithID("later"), bridge.In(time.Hour),
				bridge.Header("like", "m-7")); err != nil {
				t.Fatal(err)
			}
			for _, f := range []admin.SearchFilter{{Text: "p"}, {Headers: map[string]string{"like": "m-7"}}} {
				f.Queues = []string{"emails"}
				progress, err := op.Search(t.Context(), f, admin.SearchOptions{}, func(admin.Hit) error { return nil })
				if err != nil || progress.Found != 51 || !progress.Complete {
					t.Errorf("search: %+v, %v", progress, err)
				}
			}
			f := admin.SearchFilter{Queues: []string{"emails"}, Text: "p"}
			result, err := op.Act(t.Context(), f, admin.Action{Kind: admin.ActCancel}, admin.ActOptions{})
			if err != nil || result.Changed != 51 {
				t.Errorf("cancel: %+v, %v", result, err)
			}
		})
	}
}
