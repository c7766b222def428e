package stream

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// tour takes a queue through everything but the worker.
func (r *rig) tour(t *testing.T) {
	k := r.keep(KeeperConfig{KeepMax: 100 * time.Millisecond}, r.queue)
	if err := WritePolicy(t.Context(), r.c, r.prefix, r.queue, "g", PolicyUpdate{
		VisibilityTimeout: new(100 * time.Millisecond), MaxAttempts: new(1),
	}); err != nil {
		t.Fatal(err)
	}
	if err := WriteDefaults(t.Context(), r.c, r.prefix, DefaultPolicy()); err != nil {
		t.Fatal(err)
	}
	r.groups("g")
	r.fill(20)
	k.Notice(r.queue)
	st := r.stats()
	want(t, "ready", st.Ready, int64(20))
	want(t, "lag", st.Groups[0].Lag, int64(20))
	ids := r.take("g", "c", 20)
	want(t, "taken", len(ids), 20)
	r.xack("g", ids[2:]...)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		length, letters := r.length(r.k.Stream), len(r.letters())
		return length == 0 && letters == 2, fmt.Sprintf("length %d, letters %d", length, letters)
	})
	places := r.locate("m-1")
	if len(places) != 1 || places[0].State != StateDead || string(places[0].Payload) != "payload of m-1" {
		t.Errorf("places %+v", places)
	}
	d := r.deadLetters()
	got, err := d.RedriveMatching(t.Context(), r.queue, Filter{ID: "m-1"}, RedriveOptions{Delay: time.Hour})
	want(t, "redriven", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 1}, nil))
	want(t, "retrying", at(r.locate("m-1"), StateRetrying)[0].Group, "g")
	n, err := d.PurgeMatching(t.Context(), r.queue, Filter{})
	want(t, "purged", fmt.Sprint(n, err), "1 <nil>")
	st = r.stats()
	want(t, "retrying", st.Groups[0].Retrying, int64(1))
	want(t, "dead", st.Dead, int64(0))
	want(t, "pending", st.Groups[0].Pending, int64(0))
	redistest.Eventually(t, 10*time.Second, k.idle)

	r.grow(3)
	r.alike("grown", 3, "g")
	for i := range 3 {
		p := r.part(i)
		p.ready("p-1", "p-2")
		want(t, "taken", len(p.take("g", "c", 1)), 1)
		if i > 0 {
			r.deadIn(i, 1000-i, fmt.Sprint("d-", i))
		}
	}
	st = r.stats()
	want(t, "of all partitions", fmt.Sprint(st.Partitions, st.Groups[0].Pending, st.Dead), "3 3 2")
	list, err := Pending(t.Context(), r.c, r.prefix, r.queue, "g", PendingFilter{}, 10)
	want(t, "pending in all partitions", fmt.Sprint(len(list), err), "3 <nil>")
	want(t, "oldest letter", r.letters()[0].Letter, "2/998-7")
	got, err = r.deadLetters().Redrive(t.Context(), r.queue, []string{"2/998-7"}, RedriveOptions{})
	want(t, "redriven", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 1}, nil))
	n, err = r.deadLetters().PurgeMatching(t.Context(), r.queue, Filter{})
	want(t, "purged", fmt.Sprint(n, err), "1 <nil>")
}

func TestEverythingRunsOnTheInProcessServer(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	s := redistest.At(t, "redis://"+mini.Addr(), "miniredis")
	r := &rig{t: t, s: s, prefix: "duestream", queue: redistest.Queue(t)}
	r.c = s.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
	r.k = lua.NewKeys(r.prefix, r.queue)
	r.tour(t)
}

// A cluster of one node refuses what crosses slots as one of many does.
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
	want(t, "mode", c.Mode(), rueidis.ClientModeCluster)
	r := &rig{t: t, s: s, c: c, prefix: "duestream", queue: redistest.Queue(t)}
	r.k = lua.NewKeys(r.prefix, r.queue)
	r.tour(t)
}

func TestFullServerStillReclaimsFreesAndRedrives(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	r.groups("g")
	r.fill(10)
	r.kill("g", lua.ReasonDeadLetter, "broken")
	r.do("CONFIG", "SET", "maxmemory", "1")
	ids := r.take("g", "c", 10)
	r.age("g", "c", ids[:3]...)
	r.xack("g", ids[3:]...)
	want(t, "retried", r.reclaim().Retried, 3)
	r.trim()
	want(t, "length", r.length(r.k.Stream), int64(0))
	if err := WritePolicy(t.Context(), r.c, r.prefix, r.queue, "", PolicyUpdate{MaxAttempts: new(1)}); err != nil {
		t.Error(err)
	}
	r.do("CONFIG", "SET", "maxmemory", "0")
	r.kill("g", lua.ReasonDeadLetter, "broken", "d-1", "d-2")
	r.do("CONFIG", "SET", "maxmemory", "1")
	letters := r.letters()
	got, err := r.deadLetters().Redrive(t.Context(), r.queue, []string{letters[0].Letter}, RedriveOptions{})
	want(t, "redriven", fmt.Sprint(got, err), fmt.Sprint(RedriveResult{Scheduled: 1}, nil))
	n, err := r.deadLetters().PurgeMatching(t.Context(), r.queue, Filter{})
	want(t, "purged", fmt.Sprint(n, err), "1 <nil>")
}
