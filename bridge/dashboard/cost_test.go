package dashboard

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// fill adds queues with two groups and n scheduled messages each.
func (r *rig) fill(queues, n int) {
	r.T.Helper()
	counts := map[string]lua.Counts{}
	at := time.Now().Add(24 * time.Hour).UnixMilli()
	for i := range queues {
		q := r.On(fmt.Sprintf("queue-%03d", i))
		counts[q.Queue] = lua.Counts{1}
		q.Groups("mailer", "audit")
		for first := 0; first < n; first += 1000 {
			words := []string{"ZADD", q.Keys.Due}
			for k := first; k < min(n, first+1000); k++ {
				words = append(words, strconv.FormatInt(at+int64(1000*k), 10), fmt.Sprintf("order-%d-%d", i, k))
			}
			q.Do(words...)
		}
	}
	if _, err := lua.RegisterCounts(r.T.Context(), r.Client, lua.NewGlobals(r.Prefix), counts); err != nil {
		r.T.Fatal(err)
	}
}

// richQueue is a queue of richFill.
const richQueue = "rich"

// richFill adds a queue of some partitions with all that a queue may hold: messages that wait for their keys, retries,
// deliveries that a worker has held for long, dead letters, a history and a recurrence.
func (r *rig) richFill(partitions int) {
	r.T.Helper()
	if _, err := r.op.SetPartitions(r.T.Context(), richQueue, partitions, nil); err != nil {
		r.T.Fatal(err)
	}
	for i := range partitions {
		p := r.On(lua.PartitionName(richQueue, i))
		p.Policy(map[string]string{policy.SettingHistory: "1000", policy.SettingHistoryAge: "3600000"})
		p.Groups("mailer", "audit")
	}
	for i := range 3 * partitions {
		r.send(richQueue, fmt.Sprint("keyed-", i), "p", bridge.Key(fmt.Sprint("customer-", i%partitions)))
	}
	if err := r.op.MakeReady(r.T.Context(), richQueue); err != nil {
		r.T.Fatal(err)
	}
	for i := range partitions {
		p := r.On(lua.PartitionName(richQueue, i))
		held := p.Take("mailer", "worker-1", 10)
		p.Age("mailer", "worker-1", held...)
		p.Kill("mailer", lua.ReasonDeadLetter, "broken", fmt.Sprint("dead-", i))
	}
	r.send(richQueue, "later", "p", bridge.In(time.Hour))
	every := bridge.Recurrence{Queue: richQueue, Name: "nightly", Cron: "0 3 * * *"}
	if _, err := r.client.Recur(r.T.Context(), every); err != nil {
		r.T.Fatal(err)
	}
}

// An open page of an idle system must cost at most two requests a second, whatever the number of its viewers. The page
// of the system shares the looks of the overview, and all tabs of a queue share theirs. The first looks come faster, so
// the test measures again. It does not count PING, which only clients of tests send.
func TestAnIdlePageCostsTwoRequestsASecond(t *testing.T) {
	t.Parallel()
	for page, window := range map[string]time.Duration{
		"live-overview":                 2 * idleInterval,
		"live-dead":                     2 * idleInterval,
		"live-dead?queue=queue-000":     2 * idleInterval,
		"live-queue?queue=queue-000":    quietEvery, // so that one reading of the figures that cost more is in it
		"live-queue?queue=" + richQueue: quietEvery,
		// With more than 4 partitions, a page may ask for no updates. This message waits for its key.
		"live-message?queue=" + richQueue + "&id=keyed-11": quietEvery,
	} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			server := redistest.Own(t)
			r := newRig(t, server, nil)
			r.fill(500, 10)
			switch {
			case strings.Contains(page, "live-message"):
				r.richFill(4)
			case strings.Contains(page, richQueue):
				r.richFill(20)
			}
			for i := range 500 {
				r.On(fmt.Sprintf("queue-%03d", i)).DeadIn(0, int(time.Now().UnixMilli()), "dead")
			}
			r.dashboard.book.limit = idleInterval / 2 // so that summaries are old at each look
			v := r.viewer([]access.Verb{access.Inspect}, "*")
			for range 50 {
				v.watch(page).next()
			}
			m := server.Monitor(t)
			redistest.Eventually(t, 4*time.Minute, func() (bool, string) {
				m.Reset()
				<-time.After(window) // the time of the measurement
				commands := m.Commands()
				n := m.Count() - commands["PING"]
				t.Logf("%d requests in %s: %v", n, window, commands)
				if commands["EVALSHA"]+commands["XLEN"] == 0 {
					t.Fatal("no look: the viewers are gone")
				}
				return float64(n) <= 2*window.Seconds(), fmt.Sprintf("%d requests in %s: %v", n, window, commands)
			})
		})
	}
}

// The overview of 500 queues with 1,000,000 scheduled messages must take less than 300 ms of the server's time, and few
// requests.
func TestOverviewOfAMillionMessagesIsCheapForTheServer(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	r := newRig(t, server, nil)
	r.fill(500, 2000)
	r.Do("CONFIG", "RESETSTAT")
	v := r.viewer([]access.Verb{access.Inspect}, "*")
	if _, text := v.get(""); !strings.Contains(text, "queue-499") {
		t.Fatalf("the page lacks a queue:\n%s", text)
	}
	info, err := view.ReadInfo(t.Context(), r.Client, "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	var scripts, others time.Duration
	for name, figures := range info {
		var calls, usec int64
		if _, err := fmt.Sscanf(figures, "calls=%d,usec=%d", &calls, &usec); err != nil {
			continue
		}
		// The time of a script includes that of its commands.
		if took := time.Duration(usec) * time.Microsecond; strings.HasPrefix(name, "cmdstat_eval") {
			scripts += took
		} else {
			others += took
		}
	}
	t.Logf("scripts took %s, all other commands %s", scripts, others)
	if scripts == 0 {
		t.Error("the queues were not looked at")
	}
	if most := 300 * time.Millisecond; scripts+others > most {
		t.Errorf("the server worked for %s, more than %s", scripts+others, most)
	}
}
