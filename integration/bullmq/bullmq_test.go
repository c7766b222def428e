// Package bullmq moves jobs that the real BullMQ has made.
package bullmq

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/languages"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const (
	activeJobs = 20 // the first jobs of jobs.js: a worker has begun them, and is gone
	kills      = 5
)

var queues = []string{"mail", "held", "flaky", "busy"}

// The jobs of the real BullMQ are moved by a command that is killed five times on the way. Each arrives once, and not
// before its due time, with its data, its name and the number of its attempt, while a bridge and a worker run. None is
// left in BullMQ. 3,000 jobs; with DUESTREAM_TEST_FULL=1, 100,000.
func TestJobsOfTheRealBullMQ(t *testing.T) {
	count, spread := 3000, 10*time.Second
	if os.Getenv("DUESTREAM_TEST_FULL") != "" {
		count, spread = 100_000, 200*time.Second
	}
	node, command := redistest.NodeWith(t, ".", "bullmq"), languages.Build(t)
	old, target := redistest.Own(t), redistest.Own(t)
	add := exec.CommandContext(t.Context(), node, "jobs.js", old.URL(), strconv.Itoa(count),
		strconv.FormatInt(spread.Milliseconds(), 10))
	var stderr strings.Builder
	add.Stderr = &stderr
	began := time.Now()
	printed, err := add.Output()
	if err != nil {
		t.Fatal(err, stderr.String())
	}
	var jobs struct {
		Due     []int64 `json:"due"`
		Attempt []int   `json:"attempt"`
	}
	if err := json.Unmarshal(printed, &jobs); err != nil || len(jobs.Due) != count || len(jobs.Attempt) != count {
		t.Fatalf("%v: %.1000s", err, printed)
	}
	t.Logf("BullMQ has added %d jobs in %s", count, time.Since(began))

	l := &ledger{t: t, due: jobs.Due, attempt: jobs.Attempt, arrived: map[int]int{}}
	l.deliver(target)
	run := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), command, "migrate", "bullmq", "--from", old.URL(), "--remove")
		cmd.Env = append(os.Environ(), "DUESTREAM_REDIS_URL="+target.URL())
		return cmd
	}
	c := old.Client(t)
	began = time.Now()
	for kill := range kills {
		// One kill in each sixth of the jobs, at a random place.
		limit := int64(count) * int64(kills-kill) / (kills + 1)
		limit += rand.Int64N(int64(count) / 20)
		cmd := run()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		redistest.Eventually(t, 5*time.Minute, func() (bool, string) {
			left, err := c.Do(t.Context(), c.B().Dbsize().Build()).AsInt64()
			return err == nil && left <= limit, fmt.Sprintf("%d keys left, %v", left, err)
		})
		if err := cmd.Process.Kill(); err != nil {
			t.Fatalf("it has ended before kill %d: %v", kill+1, err)
		}
		_ = cmd.Wait()
	}
	report, err := run().CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, report)
	}
	t.Logf("moved in %s, with %d kills; the last run says:\n%s", time.Since(began), kills, report)
	if !strings.Contains(string(report), "priority") || !strings.Contains(string(report), "completed 1, failed 1") {
		t.Errorf("the report does not name the priority, or what stays")
	}
	for _, queue := range queues {
		redistest.Want(t, "jobs left in "+queue, jobsOf(t, c, queue), 0)
	}
	redistest.Want(t, "jobs left in ended", jobsOf(t, c, "ended"), 2)

	redistest.Eventually(t, spread+2*time.Minute, func() (bool, string) { return l.all() })
	again, err := run().CombinedOutput()
	if err != nil || !strings.Contains(string(again), "moved 0,") {
		t.Errorf("another run: %v\n%s", err, again)
	}
	l.check()
}

// jobsOf returns the number of jobs of a queue in BullMQ.
func jobsOf(t *testing.T, c rueidis.Client, queue string) (jobs int) {
	t.Helper()
	keys, err := c.Do(t.Context(), c.B().Keys().Pattern("bull:"+queue+":*").Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if n, err := c.Do(t.Context(), c.B().Hexists().Key(key).Field("timestamp").Build()).AsBool(); err == nil && n {
			jobs++
		}
	}
	return jobs
}

// ledger notes what arrives.
type ledger struct {
	t       *testing.T
	due     []int64
	attempt []int

	mu      sync.Mutex
	arrived map[int]int // by the number of a job: how often it arrived
	early   int
	latest  time.Duration
}

// deliver runs a bridge and a worker until the test ends.
func (l *ledger) deliver(server *redistest.Server) {
	l.t.Helper()
	r, err := bridge.Dial(l.t.Context(), server.URL())
	if err != nil {
		l.t.Fatal(err)
	}
	b, err := bridge.NewBridge(bridge.Config{Redis: r, Defaults: bridge.DefaultPolicy()})
	if err != nil {
		l.t.Fatal(err)
	}
	served := make([]bridge.WorkerQueue, len(queues))
	for i, name := range queues {
		served[i] = bridge.WorkerQueue{Queue: name}
	}
	worker, err := bridge.NewWorker(bridge.WorkerConfig{Redis: r, Queues: served, Group: "movers", Handler: l.handle})
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(l.t.Context()))
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{b.Run, worker.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				l.t.Error(err)
			}
		})
	}
	l.t.Cleanup(func() {
		stop()
		running.Wait()
		r.Close()
	})
}

func (l *ledger) handle(_ context.Context, m *bridge.Message) error {
	now := time.Now()
	var data struct {
		N    int    `json:"n"`
		Text string `json:"text"`
	}
	err := json.Unmarshal(m.Payload, &data)
	if err != nil || data.Text != "Ünï ✓" || data.N < 0 || data.N >= len(l.due) {
		l.t.Errorf("%s: payload %.100q, %v", m.ID, m.Payload, err)
		return nil
	}
	kind := fmt.Sprint("kind-", data.N%3)
	if m.Headers[bridge.KindHeader] != kind || m.Attempt != l.attempt[data.N] {
		l.t.Errorf("%s: kind %q, attempt %d", m.ID, m.Headers[bridge.KindHeader], m.Attempt)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrived[data.N]++
	late := now.Sub(time.UnixMilli(l.due[data.N]))
	if late < -time.Millisecond { // the clocks of both servers are the clock of this process, in milliseconds
		l.early++
	}
	if l.due[data.N] > l.due[activeJobs] {
		l.latest = max(l.latest, late)
	}
	return nil
}

func (l *ledger) all() (bool, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.arrived) == len(l.due), fmt.Sprintf("%d of %d have arrived", len(l.arrived), len(l.due))
}

// check ends the ledger: sent, delivered, lost, twice, early.
func (l *ledger) check() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	twice := 0
	for _, times := range l.arrived {
		if times > 1 {
			twice++
		}
	}
	l.t.Logf("jobs %d, arrived %d, twice %d, early %d; the latest delayed job came %s late",
		len(l.due), len(l.arrived), twice, l.early, l.latest)
	redistest.Want(l.t, "lost, twice, early", fmt.Sprint(len(l.due)-len(l.arrived), twice, l.early), "0 0 0")
}
