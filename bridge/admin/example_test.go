package admin_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The state of a queue: its sizes, its groups, and the messages that are due next.
func Example() {
	ctx, r, prefix, end := begin()
	defer end()
	a, err := admin.New(r, prefix)
	check(err)

	stats, err := a.Stats(ctx, "emails")
	check(err)
	fmt.Println(stats.Scheduled, "scheduled;", len(stats.Groups), "group:", stats.Groups[0].Name)

	next, err := a.Peek(ctx, "emails", 1, true)
	check(err)
	fmt.Printf("next is %s: %s\n", next.Next[0].ID, next.Next[0].Payload)

	fmt.Println("misspelt:", errors.Is(a.CheckKnown(ctx, "emials"), admin.ErrNoQueue))
	// Output:
	// 2 scheduled; 1 group: sender
	// next is reminder-1: remind
	// misspelt: true
}

// The places of a message: scheduled, retrying, ready, pending (with its consumer), dead.
func ExampleAdmin_Locate() {
	ctx, r, prefix, end := begin()
	defer end()
	a, err := admin.New(r, prefix)
	check(err)

	places, err := a.Locate(ctx, "emails", "reminder-1")
	check(err)
	for _, place := range places {
		fmt.Printf("%s: %s\n", place.State, place.Payload)
	}
	_, err = a.Locate(ctx, "emails", "reminder-3")
	fmt.Println("nowhere:", errors.Is(err, admin.ErrNotFound))
	// Output:
	// scheduled: remind
	// nowhere: true
}

// Every message with a text in its payload, in all states and queues.
func ExampleAdmin_Search() {
	ctx, r, prefix, end := begin()
	defer end()
	a, err := admin.New(r, prefix)
	check(err)

	filter := admin.SearchFilter{Text: "mind", Prefix: "reminder-"}
	progress, err := a.Search(ctx, filter, admin.SearchOptions{Load: 0.5}, func(h admin.Hit) error {
		if h.ID == "reminder-2" {
			fmt.Println(h.Queue, h.State, h.ID, h.Bytes, "bytes")
		}
		return nil
	})
	check(err)
	fmt.Println(progress.Found, "found")
	// Output:
	// emails scheduled reminder-2 6 bytes
	// 2 found
}

// Everything that matches is cancelled. A dry run counts it first.
func ExampleAdmin_Act() {
	ctx, r, prefix, end := begin()
	defer end()
	a, err := admin.New(r, prefix)
	check(err)

	filter := admin.SearchFilter{Queues: []string{"emails"}, Text: "remind"}
	cancel := admin.Action{Kind: admin.ActCancel}
	for _, dry := range []bool{true, false, true} {
		result, err := a.Act(ctx, filter, cancel, admin.ActOptions{Rate: 1000, DryRun: dry})
		check(err)
		fmt.Println("changed", result.Changed)
	}
	// Output:
	// changed 2
	// changed 2
	// changed 0
}

// A paused queue accepts messages and delivers ready ones. Scheduled messages wait, even when they are overdue.
func ExampleAdmin_Pause() {
	ctx, r, prefix, end := begin()
	defer end()
	a, err := admin.New(r, prefix)
	check(err)

	changed, err := a.Pause(ctx, "emails", true)
	check(err)
	stats, err := a.Stats(ctx, "emails")
	check(err)
	fmt.Println(changed, stats.Held)
	// Output: true true
}

// Each queue records who changed its settings, and who paused it.
func ExampleAdmin_SettingChanges() {
	ctx, r, prefix, end := begin()
	defer end()
	a, err := admin.New(r, prefix)
	check(err)

	rate := bridge.Rate("5/s")
	check(a.As("ana").WritePolicy(ctx, "emails", "", admin.PolicyUpdate{Rate: &rate}))
	_, err = a.As("ben").Pause(ctx, "emails", true)
	check(err)
	changes, err := a.SettingChanges(ctx, "emails")
	check(err)
	for _, c := range changes {
		fmt.Printf("%s: %s from %q to %q\n", c.By, c.Setting, c.Old, c.New)
	}
	// Output:
	// ben: held from "" to "1"
	// ana: rate from "" to "5/s"
}

// The contents of a queue, as records for Import.
func ExampleAdmin_Export() {
	ctx, r, prefix, end := begin()
	defer end()

	a, err := admin.New(r, prefix)
	check(err)
	export := a.Export("emails", admin.RecordScheduled, admin.RecordReady, admin.RecordDead)
	for record, err := range export.Records(ctx) {
		check(err)
		fmt.Println(record.Kind, record.ID)
	}
	// Output:
	// scheduled reminder-1
	// scheduled reminder-2
}

// An autoscaler starts workers before a burst of messages is due.
func ExampleAdmin_Forecast() {
	ctx, r, prefix, end := begin()
	defer end()
	a, err := admin.New(r, prefix)
	check(err)
	for _, within := range []time.Duration{time.Minute, 90 * time.Minute} {
		f, err := a.Forecast(ctx, "emails", "sender", within)
		check(err)
		fmt.Println(within, "due:", f.Due, "total:", f.Total)
	}
	// Output:
	// 1m0s due: 0 total: 0
	// 1h30m0s due: 1 total: 1
}

// begin gives an example a queue "emails" with a group and two scheduled messages. end releases everything.
func begin() (ctx context.Context, r *bridge.Redis, prefix string, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	url, prefix, giveBack := redistest.Lend()
	r, err := bridge.Dial(ctx, url)
	check(err)
	_, err = bridge.CreateGroup(ctx, r, prefix, "emails", "sender")
	check(err)
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: prefix})
	check(err)
	for i := 1; i <= 2; i++ {
		name, in := bridge.WithID(fmt.Sprint("reminder-", i)), bridge.In(time.Duration(i)*time.Hour)
		_, err = client.Schedule(ctx, "emails", []byte("remind"), name, in)
		check(err)
	}
	check(client.Close())
	return ctx, r, prefix, func() {
		r.Close()
		giveBack()
		cancel()
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
