package keeper

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/deadletter"
	"github.com/duestream/duestream/stream/lookup"
	"github.com/duestream/duestream/stream/sizes"
)

// tour uses a queue in every way except by a worker, while a keeper frees, reclaims and deletes beside it.
func (r *rig) tour(t *testing.T) {
	stats := func() sizes.QueueStats {
		t.Helper()
		st, err := sizes.Stats(t.Context(), r.Client, r.Prefix, r.Queue)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	placesOf := func(id string) []lookup.Place {
		t.Helper()
		places, err := lookup.Locate(t.Context(), r.Client, r.Prefix, r.Queue, id)
		if err != nil {
			t.Fatal(err)
		}
		return places
	}
	keeper := r.startKeeper(Config{KeepMax: 100 * time.Millisecond}, r.Queue)
	if err := stream.WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "g", policy.Update{
		VisibilityTimeout: new(100 * time.Millisecond), MaxAttempts: new(1),
	}); err != nil {
		t.Fatal(err)
	}
	if err := policy.WriteDefaults(t.Context(), r.Client, r.Prefix, policy.Default()); err != nil {
		t.Fatal(err)
	}
	r.Groups("g")
	r.Fill(20)
	keeper.Notice(r.Queue) // there is work in the queue
	st := stats()
	redistest.Want(t, "ready", st.Ready, int64(20))
	redistest.Want(t, "lag", st.Groups[0].Lag, int64(20))
	ids := r.Take("g", "c", 20)
	redistest.Want(t, "taken", len(ids), 20)
	r.Xack("g", ids[2:]...)
	// The keeper frees the 18 acknowledged entries. The other two exceed the visibility timeout, and die, because only
	// one attempt is allowed.
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		length, letters := r.Length(r.Keys.Stream), len(r.letters())
		return length == 0 && letters == 2, fmt.Sprintf("length %d, letters %d", length, letters)
	})
	places := placesOf("m-1")
	if len(places) != 1 || places[0].State != lookup.StateDead || string(places[0].Payload) != "payload of m-1" {
		t.Errorf("places %+v", places)
	}
	d := deadletter.New(r.Client, r.Prefix)
	got, err := d.RedriveMatching(t.Context(), r.Queue, deadletter.Filter{ID: "m-1"}, deadletter.RedriveOptions{Delay: time.Hour})
	redistest.Want(t, "redriven", fmt.Sprint(got, err), fmt.Sprint(deadletter.RedriveResult{Scheduled: 1}, nil))
	redistest.Want(t, "retrying", placesOf("m-1")[0].Group, "g")
	n, err := d.PurgeProgress(t.Context(), r.Queue, deadletter.Filter{}, func(int) {})
	redistest.Want(t, "purged", fmt.Sprint(n, err), "1 <nil>")
	st = stats()
	redistest.Want(t, "retrying", st.Groups[0].Retrying, int64(1))
	redistest.Want(t, "dead", st.Dead, int64(0))
	redistest.Want(t, "pending", st.Groups[0].Pending, int64(0))
	redistest.Eventually(t, 10*time.Second, keeper.idle)

	if _, err := stream.Grow(t.Context(), r.Client, r.Prefix, r.Queue, 3, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		p := r.Part(i)
		redistest.Want(t, "groups", fmt.Sprint(p.GroupNames()), "[g]")
		p.Ready("p-1", "p-2")
		redistest.Want(t, "taken", len(p.Take("g", "c", 1)), 1)
		if i > 0 {
			r.DeadIn(i, 1000-i, fmt.Sprint("d-", i)) // with the entry ID <1000-i>-7
		}
	}
	st = stats()
	redistest.Want(t, "partitions, pending and dead", fmt.Sprint(st.Partitions, st.Groups[0].Pending, st.Dead), "3 3 2")
	list, err := sizes.Pending(t.Context(), r.Client, r.Prefix, r.Queue, "g", sizes.PendingFilter{}, 10)
	redistest.Want(t, "pending in all partitions", fmt.Sprint(len(list), err), "3 <nil>")
	const oldest = "2/998-7" // entry 998-7 of partition 2
	redistest.Want(t, "oldest letter", r.letters()[0].Letter, oldest)
	got, err = d.Redrive(t.Context(), r.Queue, []string{oldest}, deadletter.RedriveOptions{})
	redistest.Want(t, "redriven", fmt.Sprint(got, err), fmt.Sprint(deadletter.RedriveResult{Scheduled: 1}, nil))
	n, err = d.PurgeProgress(t.Context(), r.Queue, deadletter.Filter{}, func(int) {})
	redistest.Want(t, "purged", fmt.Sprint(n, err), "1 <nil>")
}

// The server that runs inside a test's process must know every command that duestream uses.
func TestEverythingRunsOnTheInProcessServer(t *testing.T) {
	t.Parallel()
	s := redistest.InProcess(t)
	r := &rig{&queuetest.Rig{T: t, Server: s, Prefix: "duestream", Queue: redistest.Queue(t)}}
	r.Client = s.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
	r.Keys = lua.NewKeys(r.Prefix, r.Queue)
	r.tour(t)
}

// A cluster of one node refuses cross-slot commands like a larger one.
func TestEverythingRunsOnACluster(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t, "--cluster-enabled", "yes")
	boot, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer boot.Close()
	reply := make([]byte, 5)
	if _, err := fmt.Fprint(boot, "CLUSTER ADDSLOTSRANGE 0 16383\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := boot.Read(reply); err != nil || string(reply[:3]) != "+OK" {
		t.Fatalf("%q, %v", reply, err)
	}
	var c rueidis.Client
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		var err error
		c, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, DisableCache: true})
		if err != nil {
			return false, err.Error()
		}
		if err := c.Do(t.Context(), c.B().Set().Key("up").Value("1").Build()).Error(); err != nil {
			c.Close()
			return false, err.Error()
		}
		return true, ""
	})
	t.Cleanup(c.Close)
	redistest.Want(t, "mode", c.Mode(), rueidis.ClientModeCluster)
	r := &rig{&queuetest.Rig{T: t, Server: s, Client: c, Prefix: "duestream", Queue: redistest.Queue(t)}}
	r.Keys = lua.NewKeys(r.Prefix, r.Queue)
	r.tour(t)
}

// At the memory limit Redis refuses each write that may need memory. Whatever frees memory, or repairs a queue, must
// still work.
func TestFullServerStillReclaimsFreesAndRedrives(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.Groups("g")
	r.Fill(10)
	r.Do("CONFIG", "SET", "maxmemory", "1")
	ids := r.Take("g", "c", 10)
	r.Age("g", "c", ids[:3]...)
	r.Xack("g", ids[3:]...)
	redistest.Want(t, "retried", r.reclaim().Retried, 3)
	r.trim()
	redistest.Want(t, "length", r.Length(r.Keys.Stream), int64(0))
	if err := stream.WritePolicy(t.Context(), r.Client, r.Prefix, r.Queue, "",
		policy.Update{MaxAttempts: new(1)}); err != nil {
		t.Error(err)
	}
	r.Do("CONFIG", "SET", "maxmemory", "0") // no limit while the letters are made
	r.Kill("g", lua.ReasonDeadLetter, "broken", "d-1", "d-2")
	r.Do("CONFIG", "SET", "maxmemory", "1")
	d := deadletter.New(r.Client, r.Prefix)
	letters := r.letters()
	got, err := d.Redrive(t.Context(), r.Queue, []string{letters[0].Letter}, deadletter.RedriveOptions{})
	redistest.Want(t, "redriven", fmt.Sprint(got, err), fmt.Sprint(deadletter.RedriveResult{Scheduled: 1}, nil))
	n, err := d.PurgeProgress(t.Context(), r.Queue, deadletter.Filter{}, func(int) {})
	redistest.Want(t, "purged", fmt.Sprint(n, err), "1 <nil>")
}
