package integration

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/redistest"
)

// offline are the methods of admin.Admin, and of the handles that it returns, that send no command to Redis. They need
// no test on a cluster.
var offline = []string{"Admin.Name", "Admin.Observed", "Admin.Advise", "Admin.Adviser", "Admin.Suggesting",
	"Admin.Bulk",
	"Admin.DeadLetters", "Admin.Export", "Admin.Watcher", "Bulk.By", "Bulk.Observed", "DeadLetters.Observed",
	"Import.AllowOldBridges", "Import.GroupsMade",
	"Import.Recurrences"}

// ability is one operation of an operator: a method, and a call of it that returns an error if the result is not the
// one that a single server would give.
type ability struct {
	method string
	do     func(ctx context.Context) error
}

// clusterOperator is an operator of a cluster, with a queue of several partitions.
type clusterOperator struct {
	*stack
	a     *admin.Admin
	other string // a queue that is empty at first
	stop  func() // stops the worker

	// Some abilities leave results here for later ones.
	letters []string       // IDs of the dead letters, from DeadLetters.List
	records []admin.Record // from Export.Records
	in      *admin.Import  // from Admin.Import
	digest  string         // of a token, from Admin.Tokens
}

// want returns err, or an error that names both values if got differs from want.
func want(err error, what string, got, want any) error {
	if err == nil && !reflect.DeepEqual(got, want) {
		err = fmt.Errorf("%s: got %v, want %v", what, got, want)
	}
	return err
}

// abilities returns all abilities, in an order in which each one finds the state that it needs. At the start the queue
// has 20 scheduled messages (m-0 to m-19), 12 dead letters (d-0 to d-11) and one message that a worker holds.
func (o *clusterOperator) abilities() []ability {
	a, letters, bulk, queue := o.a, o.a.DeadLetters(), o.a.Bulk(), o.queue
	all := admin.LetterFilter{}
	listed := func(ctx context.Context) error {
		o.letters = nil
		for letter, err := range letters.List(ctx, queue, all) {
			if err != nil {
				return err
			}
			o.letters = append(o.letters, letter.Letter)
		}
		return want(nil, "letters", len(o.letters), 12)
	}
	return []ability{
		{"Admin.Queues", func(ctx context.Context) error {
			names, err := a.Queues(ctx)
			return want(err, "queues", names, []string{queue})
		}},
		{"Admin.CheckKnown", func(ctx context.Context) error { return a.CheckKnown(ctx, queue) }},
		{"Admin.Time", func(ctx context.Context) error {
			at, err := a.Time(ctx, queue)
			return want(err, "has a time", !at.IsZero(), true)
		}},
		{"Admin.CheckGroup", func(ctx context.Context) error { return a.CheckGroup(ctx, queue, "g") }},
		{"Admin.Partitions", func(ctx context.Context) error {
			counts, err := a.Partitions(ctx, queue)
			return want(err, "partitions", counts.Latest(), 5)
		}},
		{"Admin.SetPartitions", func(ctx context.Context) error {
			counts, err := a.SetPartitions(ctx, queue, 7, nil)
			return want(err, "partitions", counts.Latest(), 7)
		}},
		{"Admin.Register", func(ctx context.Context) error { return a.Register(ctx, queue) }},
		{"Admin.MakeReady", func(ctx context.Context) error { return a.MakeReady(ctx, queue) }},
		{"Admin.SetPartitionsDespiteKeys", func(ctx context.Context) error {
			counts, err := a.SetPartitionsDespiteKeys(ctx, queue, 7, nil)
			return want(err, "partitions", counts.Latest(), 7)
		}},
		{"Admin.Result", func(ctx context.Context) error {
			_, err := a.Result(ctx, queue, "held", "g")
			return want(nil, "has no result", errors.Is(err, bridge.ErrNoResult), true)
		}},
		{"Admin.LookForResult", func(ctx context.Context) error {
			_, err := a.LookForResult(ctx, queue, "held", "g")
			return want(nil, "is not done", errors.Is(err, admin.ErrNotDone), true)
		}},
		{"Admin.WaitFor", func(ctx context.Context) error {
			_, err := a.WaitFor(ctx, queue, "d-0", "g", bridge.AwaitDone)
			if !errors.Is(err, bridge.ErrDead) {
				return fmt.Errorf("a message that is dead: %w", err)
			}
			_, err = a.WaitFor(ctx, queue, "held", "g", bridge.AwaitReady)
			return err
		}},
		{"Admin.Bridges", func(ctx context.Context) error {
			all, err := a.Bridges(ctx)
			return want(err, "bridges", len(all), 1)
		}},
		{"Admin.Stats", func(ctx context.Context) error {
			stats, err := a.Stats(ctx, queue)
			return want(err, "scheduled and dead", []int64{stats.Scheduled, int64(stats.Dead)}, []int64{20, 12})
		}},
		{"Admin.Forecast", func(ctx context.Context) error {
			f, err := a.Forecast(ctx, queue, "g", 2*time.Hour)
			return want(err, "due and pending in all partitions", []int64{f.Due, f.Total}, []int64{20, 21})
		}},
		{"Watcher.Look", func(ctx context.Context) error {
			samples, err := a.Watcher().Look(ctx)
			return want(err, "queues", len(samples), 1)
		}},
		{"Watcher.LookAt", func(ctx context.Context) error {
			samples, err := a.Watcher().LookAt(ctx, func(name string) bool { return name != queue })
			return want(err, "samples of queues other than the only one", len(samples), 0)
		}},
		{"Adviser.Advise", func(ctx context.Context) error {
			samples, err := a.Watcher().Look(ctx)
			a.Adviser().Advise(ctx, admin.Seen{Samples: samples})
			return err
		}},
		{"Admin.Memory", func(ctx context.Context) error {
			memory, _, err := a.Memory(ctx, 100)
			return want(err, "has a size", len(memory) == 1 && memory[0].Bytes > 0, true)
		}},
		{"Admin.Retries", func(ctx context.Context) error {
			retries, err := a.Retries(ctx, queue, 100, 10*time.Second)
			return want(err, "all was looked at", retries.Complete, true)
		}},
		{"Admin.ServerLoad", func(ctx context.Context) error {
			load, err := a.ServerLoad(ctx)
			return want(err, "servers", load.Servers, 3)
		}},
		{"Admin.Doctor", func(ctx context.Context) error {
			_, err := a.Doctor(ctx, doctor.Config{Settle: time.Millisecond, FreeWithin: time.Millisecond})
			return err
		}},
		{"Admin.Find", func(ctx context.Context) error {
			found, err := a.Find(ctx, "m-3", admin.FindOptions{})
			return want(err, "places", len(found.Places), 1)
		}},
		{"Admin.Locate", func(ctx context.Context) error {
			places, err := a.Locate(ctx, queue, "m-3")
			return want(err, "places", len(places), 1)
		}},
		{"Admin.Search", func(ctx context.Context) error {
			n := map[admin.State]int{}
			f := admin.SearchFilter{Queues: []string{queue}, Text: "x"}
			_, err := a.Search(ctx, f, admin.SearchOptions{Load: 1}, func(h admin.Hit) error {
				n[h.State]++
				return nil
			})
			return want(err, "hits", n, map[admin.State]int{
				admin.StateScheduled: 20, admin.StateDead: 12, admin.StatePending: 1,
			})
		}},
		{"Admin.Act", func(ctx context.Context) error {
			move := admin.Action{Kind: admin.ActReschedule, Delay: 90 * time.Minute}
			f := admin.SearchFilter{Queues: []string{queue}, Text: "x", Prefix: "m-1"}
			result, err := a.Act(ctx, f, move, admin.ActOptions{Load: 1})
			return want(err, "m-1 and m-10 to m-19 are moved", result.Changed, int64(11))
		}},
		{"Admin.ActOn", func(ctx context.Context) error {
			var hits []admin.Hit
			f := admin.SearchFilter{Queues: []string{queue}, Text: "x", States: []admin.State{admin.StateScheduled}}
			_, err := a.Search(ctx, f, admin.SearchOptions{Load: 1}, func(h admin.Hit) error {
				hits = append(hits, h)
				return nil
			})
			if err != nil {
				return err
			}
			move := admin.Action{Kind: admin.ActReschedule, Delay: 2 * time.Hour}
			result, err := a.ActOn(ctx, hits, move, admin.ActOptions{})
			return want(err, "moved", result.Changed, int64(20))
		}},
		{"Admin.Story", func(ctx context.Context) error {
			_, err := a.Story(ctx, "m-3", admin.StoryOptions{Queues: []string{queue}})
			return err
		}},
		{"Admin.Latencies", func(ctx context.Context) error {
			latencies, err := a.Latencies(ctx, queue)
			return want(err, "all became ready", latencies.Late.Count >= 12, true)
		}},
		{"Admin.Remembered", func(ctx context.Context) error {
			until, err := a.Remembered(ctx, queue, "m-3")
			return want(err, "remembered", until.IsZero(), false)
		}},
		{"Admin.Peek", func(ctx context.Context) error {
			peeked, err := a.Peek(ctx, queue, 5, true)
			return want(err, "scheduled", len(peeked.Next), 5)
		}},
		{"Admin.DueBetween", func(ctx context.Context) error {
			peeked, err := a.DueBetween(ctx, queue, time.Now(), time.Time{}, 5)
			return want(err, "scheduled in all partitions", []int64{int64(len(peeked.Next)), peeked.Total}, []int64{5, 20})
		}},
		{"Admin.DueHistogram", func(ctx context.Context) error {
			histogram, err := a.DueHistogram(ctx, queue, time.Now(), time.Minute, 1)
			return want(err, "due in the bar or later", histogram.Bars[0]+histogram.Later, int64(20))
		}},
		{"Admin.Consumers", func(ctx context.Context) error {
			all, err := a.Consumers(ctx, queue, "g")
			return want(err, "there are consumers", len(all) > 0, true)
		}},
		{"Admin.PendingCount", func(ctx context.Context) error {
			n, err := a.PendingCount(ctx, queue, "g", "")
			return want(err, "pending", n, int64(1))
		}},
		{"Admin.Pending", func(ctx context.Context) error {
			all, err := a.Pending(ctx, queue, "g", admin.PendingFilter{}, 10)
			return want(err, "pending", len(all), 1)
		}},
		{"Admin.WriteDefaults", func(ctx context.Context) error { return a.WriteDefaults(ctx, patient()) }},
		{"Admin.WritePolicy", func(ctx context.Context) error {
			attempts := 3
			return a.WritePolicy(ctx, queue, "", admin.PolicyUpdate{MaxAttempts: &attempts})
		}},
		{"Admin.WritePolicyOver", func(ctx context.Context) error {
			attempts := 3
			return a.WritePolicyOver(ctx, queue, "", map[string]string{admin.SettingMaxAttempts: "3"},
				admin.PolicyUpdate{MaxAttempts: &attempts})
		}},
		{"Admin.ReadPolicy", func(ctx context.Context) error {
			policy, _, err := a.ReadPolicy(ctx, queue, "")
			return want(err, "attempts", policy.MaxAttempts, 3)
		}},
		{"Admin.Settings", func(ctx context.Context) error {
			settings, err := a.Settings(ctx, queue, "")
			return want(err, "has settings", len(settings) > 0, true)
		}},
		{"Admin.As", func(ctx context.Context) error {
			attempts := 4
			return a.As("token ana").WritePolicy(ctx, queue, "", admin.PolicyUpdate{MaxAttempts: &attempts})
		}},
		{"Admin.SettingChanges", func(ctx context.Context) error {
			changes, err := a.SettingChanges(ctx, queue)
			if err == nil && len(changes) > 0 {
				err = want(nil, "author", changes[0].By, "token ana")
			}
			return want(err, "has changes", len(changes) > 0, true)
		}},
		{"Admin.Recent", func(ctx context.Context) error {
			recent, err := a.Recent(ctx, queue, 10)
			return want(err, "has changes", len(recent.Changes) > 0, true)
		}},
		{"Admin.GroupsWithSettings", func(ctx context.Context) error {
			groups, err := a.GroupsWithSettings(ctx, queue)
			return want(err, "groups", len(groups), 0)
		}},
		{"Admin.PauseWorkers", func(ctx context.Context) error {
			changed, err := a.PauseWorkers(ctx, queue)
			return want(err, "changed", changed, true)
		}},
		{"Admin.Pause", func(ctx context.Context) error {
			changed, err := a.Pause(ctx, queue, false)
			return want(err, "changed", changed, true)
		}},
		{"DeadLetters.List", listed},
		{"DeadLetters.Count", func(ctx context.Context) error {
			n, err := letters.Count(ctx, queue, all)
			return want(err, "letters", n, 12)
		}},
		{"DeadLetters.Show", func(ctx context.Context) error {
			letter, err := letters.Show(ctx, queue, o.letters[0])
			return want(err, "letter", letter.Letter, o.letters[0])
		}},
		{"DeadLetters.Stored", func(ctx context.Context) error {
			n := 0
			for _, err := range letters.Stored(ctx, queue, all) {
				if err != nil {
					return err
				}
				n++
			}
			return want(nil, "letters", n, 12)
		}},
		{"DeadLetters.Summarize", func(ctx context.Context) error {
			groups, err := letters.Summarize(ctx, queue, all)
			return want(err, "groups", len(groups), 1)
		}},
		{"DeadLetters.Page", func(ctx context.Context) error {
			page, err := letters.Page(ctx, queue, admin.LetterFilter{Limit: 100}, time.Minute)
			return want(err, "letters", len(page.Lines), 12)
		}},
		{"DeadLetters.Survey", func(ctx context.Context) error {
			survey := letters.Survey(queue, all)
			for !survey.Summary().Complete {
				if err := survey.Read(ctx, time.Second); err != nil {
					return err
				}
			}
			return want(nil, "groups", len(survey.Summary().Groups), 1)
		}},
		{"DeadLetters.Redrive", func(ctx context.Context) error {
			result, err := letters.Redrive(ctx, queue, o.letters[:3], admin.RedriveOptions{Delay: time.Hour})
			return want(err, "redriven", result.Scheduled, 3)
		}},
		{"DeadLetters.Purge", func(ctx context.Context) error {
			n, err := letters.Purge(ctx, queue, o.letters[3:6])
			return want(err, "purged", n, 3)
		}},
		{"DeadLetters.RedriveMatching", func(ctx context.Context) error {
			result, err := letters.RedriveMatching(ctx, queue, admin.LetterFilter{Limit: 3},
				admin.RedriveOptions{Delay: time.Hour})
			return want(err, "redriven", result.Scheduled, 3)
		}},
		{"DeadLetters.PurgeProgress", func(ctx context.Context) error {
			n, err := letters.PurgeProgress(ctx, queue, admin.LetterFilter{Limit: 2}, nil)
			return want(err, "purged", n, 2)
		}},
		{"Export.Time", func(ctx context.Context) error {
			at, err := a.Export(queue).Time(ctx)
			return want(err, "has a time", !at.IsZero(), true)
		}},
		{"Export.Records", func(ctx context.Context) error {
			for record, err := range a.Export(queue, admin.RecordScheduled, admin.RecordDead).Records(ctx) {
				if err != nil {
					return err
				}
				o.records = append(o.records, record)
			}
			// 20 scheduled messages, 6 redriven, and 1 dead letter left of 12.
			return want(nil, "records", len(o.records), 27)
		}},
		{"Admin.Import", func(ctx context.Context) (err error) {
			if _, err = a.SetPartitions(ctx, o.other, 4, nil); err == nil {
				o.in, err = a.Import(ctx, o.other, "elsewhere", time.Hour)
			}
			return err
		}},
		{"Import.Groups", func(ctx context.Context) error { return o.in.Groups(ctx, []string{"g"}) }},
		{"Import.Write", func(ctx context.Context) error { return errors.Join(o.in.Write(ctx, o.records)...) }},
		{"Import.Remember", func(ctx context.Context) error { return o.in.Remember(ctx, []string{"m-1"}) }},
		{"Import.Known", func(ctx context.Context) error {
			known, err := o.in.Known(ctx, []string{"m-1", "nobody"})
			return want(err, "known", known, []bool{true, false})
		}},
		{"Bulk.Reschedule", func(ctx context.Context) error {
			result, err := bulk.Reschedule(ctx, queue, admin.BulkFilter{Prefix: "m-"}, 2*time.Hour, time.Time{},
				admin.BulkOptions{})
			return want(err, "changed", result.Changed, 20)
		}},
		{"Bulk.Expire", func(ctx context.Context) error {
			result, err := bulk.Expire(ctx, queue, admin.BulkFilter{IDs: []string{"m-1", "m-2"}}, admin.BulkOptions{})
			return want(err, "changed", result.Changed, 2)
		}},
		{"Bulk.Cancel", func(ctx context.Context) error {
			result, err := bulk.Cancel(ctx, queue, admin.BulkFilter{Prefix: "m-"}, admin.BulkOptions{})
			return want(err, "18 at least are cancelled", result.Changed >= 18, true)
		}},
		{"Admin.Recur", func(ctx context.Context) error {
			change, err := a.Recur(ctx, bridge.Recurrence{Queue: queue, Name: "r", Every: time.Hour})
			return want(err, "added", change.Added, true)
		}},
		{"Export.Recurrences", func(ctx context.Context) error {
			names, err := a.Export(queue, admin.RecordScheduled).Recurrences(ctx)
			return want(err, "recurrences", names, []string{"r"})
		}},
		{"Admin.Recurrences", func(ctx context.Context) error {
			states, err := a.Recurrences(ctx, queue)
			return want(err, "recurrences", len(states), 1)
		}},
		{"Admin.Recurrence", func(ctx context.Context) error {
			state, err := a.Recurrence(ctx, queue, "r")
			return want(err, "next", len(state.Next), 3)
		}},
		{"Admin.ReplaceRecurrence", func(ctx context.Context) error {
			state, err := a.Recurrence(ctx, queue, "r")
			if err != nil {
				return err
			}
			change, err := a.ReplaceRecurrence(ctx, bridge.Recurrence{Queue: queue, Name: "r", Every: 2 * time.Hour},
				state.Version)
			return want(err, "changed", change.Changed, true)
		}},
		{"Admin.PauseRecurrence", func(ctx context.Context) error {
			changed, err := a.PauseRecurrence(ctx, queue, "r", true)
			return want(err, "changed", changed, true)
		}},
		{"Admin.RunRecurrence", func(ctx context.Context) error {
			receipt, err := a.RunRecurrence(ctx, queue, "r")
			return want(err, "a message of r", strings.HasPrefix(receipt.ID, "r@"), true)
		}},
		{"Admin.RemoveRecurrence", func(ctx context.Context) error {
			_, err := a.RemoveRecurrence(ctx, queue, "r")
			return err
		}},
		{"Admin.ApplyRecurrences", func(ctx context.Context) error {
			applied, err := a.ApplyRecurrences(ctx, "me", []admin.WantedRecurrence{
				{Recurrence: bridge.Recurrence{Queue: queue, Name: "r", Every: time.Hour}},
				{Recurrence: bridge.Recurrence{Queue: o.other, Name: "r", Every: time.Hour}}}, false)
			return want(err, "applied", len(applied), 2)
		}},
		{"Admin.SetPushTarget", func(ctx context.Context) error {
			_, err := a.SetPushTarget(ctx, admin.PushTarget{Queue: queue, Group: "posts", URL: "https://example.com/"})
			return err
		}},
		{"Admin.PushTargets", func(ctx context.Context) error {
			targets, err := a.PushTargets(ctx, queue)
			return want(err, "targets", len(targets), 1)
		}},
		{"Admin.ReplacePushTarget", func(ctx context.Context) error {
			targets, err := a.PushTargets(ctx, queue)
			if err != nil {
				return err
			}
			change, err := a.ReplacePushTarget(ctx,
				admin.PushTarget{Queue: queue, Group: "posts", URL: "https://example.com/new"}, targets[0].Version)
			return want(err, "changed", change.Changed, true)
		}},
		{"Admin.RotatePushVersion", func(ctx context.Context) error {
			targets, err := a.PushTargets(ctx, queue)
			if err != nil {
				return err
			}
			_, err = a.RotatePushVersion(ctx, queue, "posts", targets[0].Version)
			return err
		}},
		{"Admin.RotatePushKey", func(ctx context.Context) error {
			_, err := a.RotatePushKey(ctx, queue, "posts", "")
			return err
		}},
		{"Admin.DropOldPushKey", func(ctx context.Context) error { return a.DropOldPushKey(ctx, queue, "posts") }},
		{"Admin.RemovePushTarget", func(ctx context.Context) error { return a.RemovePushTarget(ctx, queue, "posts") }},
		{"Admin.AddToken", func(ctx context.Context) error {
			_, err := a.AddToken(ctx, admin.Token{Name: "t", Verbs: admin.Verbs(), Queues: []string{"*"}})
			return err
		}},
		{"Admin.AddChosenToken", func(ctx context.Context) error {
			return a.AddChosenToken(ctx, admin.Token{Name: "c", Verbs: admin.Verbs(), Queues: []string{"*"}},
				strings.Repeat("chosen", 8))
		}},
		{"Admin.Tokens", func(ctx context.Context) error {
			all, err := a.Tokens(ctx)
			if err == nil && len(all) > 0 {
				o.digest = all[0].Digest
			}
			return want(err, "tokens", len(all), 2)
		}},
		{"Admin.LimitToken", func(ctx context.Context) error {
			return a.LimitToken(ctx, o.digest, &admin.Limits{Consume: 1, Publish: 1, Interval: 1}, true)
		}},
		{"Admin.RemoveToken", func(ctx context.Context) error { return a.RemoveToken(ctx, "t") }},
		{"Admin.LoadFunctions", func(ctx context.Context) error {
			rows, err := a.LoadFunctions(ctx, "v1.0.0", false)
			return want(err, "servers", len(rows), 3)
		}},
		{"Admin.ShowFunctions", func(ctx context.Context) error {
			return want(nil, "servers", len(a.ShowFunctions(ctx, "v1.0.0")), 3)
		}},
		{"Admin.DeleteFunctions", func(ctx context.Context) error {
			_, err := a.DeleteFunctions(ctx, "v1.0.0", false)
			return err
		}},
		{"Admin.AllowOldBridges", func(ctx context.Context) error {
			names, err := a.AllowOldBridges().Queues(ctx)
			return want(err, "has queues", len(names) > 0, true)
		}},
		{"Admin.RollBackQueue", func(ctx context.Context) error {
			if _, err := a.RollBackQueue(ctx, queue, false); !errors.Is(err, admin.ErrNewBridge) {
				return fmt.Errorf("beside a bridge of this release: %w", err)
			}
			_, err := a.RollBackQueue(ctx, queue, true)
			return err
		}},
		{"Admin.DeleteQueue", func(ctx context.Context) error {
			o.stop()
			if _, err := a.DeleteQueue(ctx, queue, false); !errors.Is(err, admin.ErrNotEmpty) {
				return fmt.Errorf("without force: %w", err)
			}
			had, err := a.DeleteQueue(ctx, queue, true)
			return want(err, "there were messages", had.Messages() > 0, true)
		}},
	}
}

// Every operation of an operator works on a cluster, on a queue whose partitions are on all servers. A method without
// an ability fails the test.
func TestEveryAbilityOfAnOperatorOnACluster(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Cluster(t, 3, 0).Server())
	o := &clusterOperator{stack: s, a: s.operator(), other: s.queue + "-other"}
	if _, err := o.a.SetPartitions(t.Context(), s.queue, 5, nil); err != nil {
		t.Fatal(err)
	}
	events := 100
	if err := o.a.WritePolicy(t.Context(), s.queue, "", admin.PolicyUpdate{History: &events}); err != nil {
		t.Fatal(err)
	}
	s.bridge(patient())
	held := make(chan struct{})
	_, stop := s.worker("g", 5, func(_ context.Context, m *bridge.Message) error {
		if m.ID == "held" {
			<-held
		}
		return bridge.DeadLetter(errors.New("refused"))
	})
	o.stop = sync.OnceFunc(func() {
		close(held)
		stop()
	})
	t.Cleanup(o.stop)
	var batch []bridge.NewMessage
	add := func(id string, in time.Duration) {
		batch = append(batch, bridge.NewMessage{ID: id, Payload: []byte("x"), Delay: in, Dedup: time.Hour})
	}
	for i := range 20 {
		add(fmt.Sprint("m-", i), time.Hour)
	}
	for i := range 12 {
		add(fmt.Sprint("d-", i), 0)
	}
	add("held", 0)
	s.send(batch)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		stats, err := o.a.Stats(t.Context(), s.queue)
		return err == nil && stats.Dead == 12, fmt.Sprintf("%d are dead: %v", stats.Dead, err)
	})
	done := map[string]bool{}
	for _, name := range offline {
		done[name] = true
	}
	for _, one := range o.abilities() {
		done[one.method] = true // tried, with or without success
		if err := attempt(t.Context(), one.do); err != nil {
			t.Errorf("%s: %v", one.method, err)
		}
	}
	for _, handle := range []any{o.a, o.a.Bulk(), o.a.DeadLetters(), o.a.Export(s.queue), o.in, o.a.Watcher(),
		o.a.Adviser()} {
		kind := reflect.TypeOf(handle)
		for i := range kind.NumMethod() {
			if name := kind.Elem().Name() + "." + kind.Method(i).Name; !done[name] {
				t.Errorf("nobody tries %s on a cluster", name)
			}
		}
	}
}

// attempt calls do, and returns a panic as an error.
func attempt(ctx context.Context, do func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return do(ctx)
}
