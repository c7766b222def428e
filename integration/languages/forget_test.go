package languages

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// A producer in another language keeps its partition count if the registry loses it, and forgets it if the queue is
// deleted: when another client has registered the queue again, and when the producer does that itself. Regression: a
// producer used the partitions of the deleted queue for as long as it ran, and nobody reads them.
func TestProducersForgetThePartitionsOfADeletedQueue(t *testing.T) {
	t.Parallel()
	ReadAll(t, examples)
	plain, functions := redistest.Own(t), redistest.Own(t)
	LoadFunctions(t, functions)
	for _, l := range All(t, examples) {
		t.Run(l.Name+" plain, another", func(t *testing.T) {
			t.Parallel()
			forgets(t, l, plain, l.Name, true)
		})
		t.Run(l.Name+" functions, itself", func(t *testing.T) {
			t.Parallel()
			forgets(t, l, functions, l.Name, false)
		})
	}
}

// forgets tests the producer of one language. If another is true, another client registers the deleted queue again.
func forgets(t *testing.T, l Language, server *redistest.Server, queue string, another bool) {
	t.Helper()
	globals, client, had := lua.NewGlobals(lua.DefaultPrefix), server.Client(t), lua.Counts{1, 4}
	if _, err := lua.RegisterCounts(t.Context(), client, globals, map[string]lua.Counts{queue: had}); err != nil {
		t.Fatal(err)
	}
	registered := func() string { return queuetest.Text(t, client, "HGET", globals.Queues, queue) }
	schedule, n := startProducer(t, l, server, queue), 0
	// send schedules a message whose ID belongs to partition 1, 2 or 3 of 4. It returns the partition where the message
	// is, and the one to which its ID belongs.
	send := func() (is, of4 int) {
		t.Helper()
		id := ""
		for of4 == 0 {
			n++
			id = "m" + strconv.Itoa(n)
			of4 = had.Of(id)
		}
		schedule(id)
		for i := range had.Latest() {
			due := lua.NewKeys(lua.DefaultPrefix, lua.PartitionName(queue, i)).Due
			if queuetest.Text(t, client, "ZSCORE", due, id) != "" {
				return i, of4
			}
		}
		t.Fatalf("%s is scheduled nowhere", id)
		return 0, 0
	}
	wantInPlace := func() { // the producer still uses four partitions
		t.Helper()
		if is, of4 := send(); is != of4 {
			t.Fatalf("a message of partition %d is in %d; the registry has %q", of4, is, registered())
		}
	}
	wantInPlace()

	server.Do(t, "HDEL", globals.Queues, queue) // the registry lost it
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		wantInPlace()
		return registered() != "", "the queue is not registered again"
	})
	wantInPlace()

	if err := lua.Unregister(t.Context(), client, globals, queue, had); err != nil {
		t.Fatal(err)
	}
	if another {
		server.Do(t, "HSETNX", globals.Queues, queue, "1")
	}
	redistest.Eventually(t, 30*time.Second, func() (bool, string) {
		is, of4 := send()
		return is == 0, fmt.Sprintf("a message of partition %d of the deleted queue is there; the registry has %q", of4,
			registered())
	})
	for range 10 {
		if is, _ := send(); is != 0 {
			t.Errorf("a message is in partition %d", is)
		}
	}
	redistest.Want(t, "the registry", registered(), "1")
	deleted := queuetest.Text(t, client, "HGET", globals.Queues, lua.DeletedCounts(queue))
	redistest.Want(t, "the counts that were deleted", deleted, "4")
}

// startProducer starts the producer of a language, and returns a function by which it schedules a message for the next
// hour.
func startProducer(t *testing.T, l Language, server *redistest.Server, queue string) (schedule func(id string)) {
	t.Helper()
	producer := exec.Command(l.Command("producer")[0], l.Command("producer")[1:]...)
	producer.Env = append(withoutVariables("DUESTREAM_"), "DUESTREAM_REDIS_URL="+server.URL(),
		"DUESTREAM_PREFIX="+lua.DefaultPrefix, "QUEUE="+queue)
	producer.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	producer.Stderr = os.Stderr
	orders, err := producer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := producer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := producer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = producer.Process.Kill()
		_ = producer.Wait()
	})
	lines, due := bufio.NewReader(answers), time.Now().Add(time.Hour).UnixMilli()
	return func(id string) {
		t.Helper()
		_, err := fmt.Fprintf(orders, "{\"id\":%q,\"due_ms\":%d,\"payload\":\"\"}\n", id, due)
		if err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			ID    string
			OK    bool
			Error string
		}
		if err := json.Unmarshal(line, &answer); err != nil || answer.ID != id || !answer.OK {
			t.Fatalf("%v: %s", err, line)
		}
	}
}
