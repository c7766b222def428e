package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// fated returns a handler whose result follows from the ID of the message, "fate-number". It writes each call to the
// file book, which outlives the process. Fates: "fails" fails two attempts, "waits" fails always, "buried" becomes a
// dead letter at its first call, "dies" kills the process at its first call. All others succeed.
func fated(book string) bridge.Handler {
	return func(_ context.Context, m *bridge.Message) error {
		before := calls(book, m.ID)
		file, err := os.OpenFile(book, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		fmt.Fprintln(file, m.ID)
		if err := file.Close(); err != nil {
			return err
		}
		fate, _, _ := strings.Cut(m.ID, "-")
		switch {
		case fate == "fails" && m.Attempt < 3, fate == "waits":
			return errors.New("not yet")
		case fate == "buried" && before == 0:
			return bridge.DeadLetter(errors.New("never"))
		case fate == "dies" && before == 0:
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}
}

// calls returns how many calls for a message are written in a book of fated.
func calls(book, id string) (n int) {
	text, _ := os.ReadFile(book)
	for line := range strings.Lines(string(text)) {
		if strings.TrimSpace(line) == id {
			n++
		}
	}
	return n
}

// produceForever schedules batches of messages that are due in an hour, until it is killed.
func produceForever(ctx context.Context, r *bridge.Redis) error {
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Prefix: os.Getenv(childPrefix)})
	if err != nil {
		return err
	}
	defer client.Close()
	for i := 0; ctx.Err() == nil; i++ {
		batch := make([]bridge.NewMessage, 10)
		for n := range batch {
			batch[n] = bridge.NewMessage{ID: fmt.Sprintf("produced-%d-%d", i, n), Payload: []byte("p"), Delay: time.Hour}
		}
		if _, err := client.ScheduleBatch(ctx, os.Getenv(childQueue), batch); err != nil {
			return err
		}
	}
	return nil
}

// The history of a message tells exactly what was done to it and who did it, whatever its outcome, although bridges,
// workers and producers are killed while they work.
func TestStoriesTellWhatWasDone(t *testing.T) {
	t.Parallel()
	s := newStack(t, redistest.Own(t, "--appendonly", "yes"))
	s.groups("g")
	op, ctx := s.operator(), t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(op.WritePolicy(ctx, s.queue, "", admin.PolicyUpdate{History: new(10_000)}))
	f := &family{t: t, s: s, dir: t.TempDir()}
	theBridge, worker := &child{part: "bridge"}, &child{part: "fated", group: "g"}
	f.start(theBridge)
	f.start(worker)
	t.Cleanup(func() {
		f.kill(theBridge)
		f.kill(worker)
	})
	// story returns the history of a message, also as one text for each change: "event by part attempt reason".
	story := func(id string) (words []string, told admin.Story) {
		told, err := op.Story(ctx, id, admin.StoryOptions{Queues: []string{s.queue}})
		if err != nil && !errors.Is(err, admin.ErrUntold) && !errors.Is(err, admin.ErrNoHistory) {
			t.Fatal(err)
		}
		for _, c := range told.Changes {
			by, _, _ := strings.Cut(c.By, " ")
			word := c.Event + " by " + by
			if c.Attempt > 0 && c.Event != admin.EventDead {
				word += fmt.Sprint(" ", c.Attempt)
			}
			if c.Reason != "" {
				word += " " + c.Reason
			}
			words = append(words, word)
		}
		return words, told
	}
	// want waits until the history of a message consists of these texts.
	want := func(id string, words ...string) {
		t.Helper()
		redistest.Eventually(t, 30*time.Second, func() (bool, string) {
			got, _ := story(id)
			return slices.Equal(got, words), fmt.Sprintf("the story of %s is\n%q, want\n%q", id, got, words)
		})
	}
	send := func(id string, d time.Duration, options ...bridge.Option) {
		t.Helper()
		_, err := s.client.Schedule(ctx, s.queue, []byte("p"), append(options, bridge.WithID(id), bridge.In(d))...)
		must(err)
	}
	const scheduled, ready, done = "scheduled by client", "ready by bridge 1", "acknowledged by worker"
	const soon = 100 * time.Millisecond
	for i := range 3 {
		send(fmt.Sprint("done-", i), soon)
		send(fmt.Sprint("fails-", i), soon)
	}
	f.kill(theBridge)
	expiry := time.Now().Add(2 * soon)
	for i := range 2 {
		send(fmt.Sprint("expired-", i), soon, bridge.ExpiresAt(expiry))
		send(fmt.Sprint("cancelled-", i), time.Hour)
		must(s.client.Cancel(ctx, s.queue, fmt.Sprint("cancelled-", i)))
		send(fmt.Sprint("moved-", i), time.Hour)
		_, err := s.client.Reschedule(ctx, s.queue, fmt.Sprint("moved-", i), bridge.In(soon))
		must(err)
		send(fmt.Sprint("buried-", i), soon)
	}
	send("waits-0", soon, bridge.MaxAttempts(10_000))
	redistest.Eventually(t, 30*time.Second, func() (bool, string) { return time.Now().After(expiry.Add(soon)), "not expired" })
	f.start(theBridge)
	for i := range 3 {
		want(fmt.Sprint("done-", i), scheduled, ready, done)
		want(fmt.Sprint("fails-", i), scheduled, ready, "retried by worker 1", "ready by bridge 2", "retried by worker 2",
			"ready by bridge 3", done)
	}
	for i := range 2 {
		want(fmt.Sprint("cancelled-", i), scheduled, "cancelled by client")
		want(fmt.Sprint("moved-", i), scheduled, "rescheduled by client", ready, done)
		want(fmt.Sprint("expired-", i), scheduled, "dead by bridge expired")
		want(fmt.Sprint("buried-", i), scheduled, ready, "dead by worker dead_letter")
		for letter, err := range op.DeadLetters().List(ctx, s.queue, admin.LetterFilter{ID: fmt.Sprint("buried-", i)}) {
			must(err)
			_, err = op.DeadLetters().Redrive(ctx, s.queue, []string{letter.Letter}, admin.RedriveOptions{})
			must(err)
		}
		want(fmt.Sprint("buried-", i), scheduled, ready, "dead by worker dead_letter", "redriven by operator", ready, done)
	}
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		err := s.client.Cancel(ctx, s.queue, "waits-0", bridge.Retries())
		return err == nil, fmt.Sprint(err)
	})
	for i := range 2 { // the worker holds no other message when it dies, so no other history changes
		id := fmt.Sprint("dies-", i)
		send(id, soon)
		redistest.Eventually(t, 30*time.Second, func() (bool, string) {
			return calls(filepath.Join(f.dir, "ledger-g"), id) == 1, "it was not delivered"
		})
		_ = worker.cmd.Wait()
		f.start(worker)
		want(id, scheduled, ready, "retried by bridge 1 visibility_timeout", "ready by bridge 2", done)
	}
	words, _ := story("waits-0")
	if n := len(words); n < 4 || slices.Index(words, "cancelled by client") != n-1 {
		t.Errorf("the story of waits-0 is %q", words)
	}

	producer := &child{part: "producer"}
	f.start(producer)
	redistest.Eventually(t, 30*time.Second, func() (bool, string) { return s.number("ZCARD", s.keys().Due) > 500, "too few" })
	f.kill(producer)
	members, err := s.raw("ZRANGE", s.keys().Due, "-100", "-1").AsStrSlice()
	must(err)
	for _, id := range members { // the last messages that the producer scheduled before it was killed
		words, _ := story(id)
		if !slices.Equal(words, []string{scheduled}) {
			t.Errorf("the story of %s is %q", id, words)
		}
	}
}
