package sizes

import (
	"fmt"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A queue with more settings, groups or consumers than a glance reads in its script must still have its settings, and
// all of its groups must be counted. Consumers that were not read count as alive.
func TestGlanceAtAQueueWithManySettingsGroupsAndConsumers(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	r := newRig(t, s)
	settings := []string{"HSET", r.Keys.Policy, "held", "1"}
	for i := range 5001 {
		settings = append(settings, fmt.Sprint("group:none:", i), "x")
	}
	r.Do(settings...)
	for i := range 70 {
		r.Do("XGROUP", "CREATE", r.Keys.Stream, fmt.Sprintf("g-%02d", i), "0", "MKSTREAM")
	}
	for i := range 501 {
		r.Do("XGROUP", "CREATECONSUMER", r.Keys.Stream, "g-03", fmt.Sprint("c-", i))
	}
	sample := r.sample(r.newWatcher(r.Queue))
	redistest.Want(t, "sample", fmt.Sprint(sample.Held, len(sample.Groups), sample.MoreGroups), "true 64 6")
	redistest.Want(t, "consumers of a small group", fmt.Sprint(sample.Groups[2].Consumers, sample.Groups[2].Alive), "0 0")
	redistest.Want(t, "consumers of a large group", fmt.Sprint(sample.Groups[3].Consumers, sample.Groups[3].Alive,
		sample.Groups[3].AliveApprox), "501 501 true")
}

// An idle system must cost few requests, however many queues there are: after the first look, one for the registry and
// one for every 64 partitions.
func TestALookAtManyQueuesSendsFewRequests(t *testing.T) {
	t.Parallel()
	s := redistest.Own(t)
	r := newRig(t, s)
	const queues = 500
	counts := map[string]lua.Counts{}
	for i := range queues {
		q := r.On(fmt.Sprintf("q-%03d", i))
		counts[q.Queue] = lua.Counts{1}
		q.Groups("a", "b")
		q.Do("ZADD", q.Keys.Due, "4000000000000", "later")
	}
	if _, err := lua.RegisterCounts(t.Context(), r.Client, lua.NewGlobals(r.Prefix), counts); err != nil {
		t.Fatal(err)
	}
	w, m := r.newWatcher(), s.Monitor(t)
	for range 3 {
		m.Reset()
		all, err := w.Look(t.Context())
		if err != nil || len(all) != queues {
			t.Fatal(len(all), err)
		}
		for _, one := range all {
			redistest.Want(t, one.Queue, fmt.Sprint(one.Err, one.Scheduled, len(one.Groups)), "<nil> 1 2")
		}
	}
	redistest.Want(t, "requests of a look", fmt.Sprint(m.Asked()), "map[EVALSHA:8 HGETALL:1]")
}
