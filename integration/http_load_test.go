package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/integration/lmstfyserver"
	"github.com/duestream/duestream/integration/redistest"
)

// front is a gateway in a process of its own.
type front struct {
	base string // URL
	head string // header line with a token that allows everything
	pid  int
}

// front starts a gateway, and waits until it accepts connections.
func (s *stack) front(t *testing.T, program string) front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	name := "t" + strconv.FormatInt(time.Now().UnixNano(), 36)
	secret, err := access.Add(t.Context(), s.redis.Client, s.prefix, access.Token{Name: name, Verbs: access.Verbs(),
		Queues: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	f := front{base: "http://" + addr, head: "Authorization: Bearer " + secret + "\r\n"}
	f.pid = s.launch(t, program, "gateway", "--http", addr)
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false, err.Error()
		}
		return conn.Close() == nil, ""
	})
	return f
}

// launch runs the duestream command until the test ends.
func (s *stack) launch(t *testing.T, program string, args ...string) (pid int) {
	t.Helper()
	cmd := exec.Command(program, append([]string{"--redis", s.server.URL(), "--prefix", s.prefix}, args...)...)
	cmd.Env = append(os.Environ(), "DUESTREAM_LOG_LEVEL=error")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// residentMiB returns the resident memory of a process in MiB.
func residentMiB(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

// cpuTime returns the CPU time of a process, user and system.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the third field and later ones follow the name
	fields := strings.Fields(rest)
	user, errUser := strconv.Atoi(fields[11])
	system, errSystem := strconv.Atoi(fields[12])
	if err := errors.Join(errUser, errSystem); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * (time.Second / 100) // Linux counts hundredths of a second here
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// TestHTTPLoad measures the gateway on one machine: the speed of publishing, compared with the SDK and with lmstfy's
// own server; the speed of receiving and acknowledging, compared with that server; the lateness of answers to long
// polls; and the cost of idle long polls. It fails if the gateway is slower, later or larger than the limits below. It
// takes minutes, needs DUESTREAM_TEST_FULL=1, and logs the figures.
//
// Both servers are measured with the same client ([wire]), which needs little CPU time itself. The SDK is called in
// this process, as a program calls it. The log also has the CPU time of the gateway per request.
func TestHTTPLoad(t *testing.T) {
	if !lmstfyserver.Full() {
		t.Log("set DUESTREAM_TEST_FULL=1 to measure")
		return
	}
	program := build(t)
	server := redistest.Own(t, "--appendonly", "yes")
	s := newStack(t, server)
	f, other := s.front(t, program), lmstfyserver.Start(t, server)
	s.launch(t, program, "serve")
	t.Run("Throughput", func(t *testing.T) { s.throughput(t, f, other) })
	other.Stop()
	t.Run("Late", func(t *testing.T) { s.longPollsAreInTime(t, f) })
	t.Run("Idle", func(t *testing.T) { s.idlePolls(t, program) })
}

// throughput measures publishing and consuming in turns, so that all ways meet the same load of the machine, and
// compares the medians.
func (s *stack) throughput(t *testing.T, f front, other *lmstfyserver.Server) {
	const connections, turn, turns = 64, 3 * time.Second, 3
	payload := strings.Repeat("x", 256)
	var ours, theirs []*wire
	for range connections {
		ours, theirs = append(ours, newWire(t, f.base, f.head)), append(theirs, newWire(t, other.URL, ""))
	}
	rates := map[string][]float64{}
	measure := func(name string, callers int, do func(caller int) int) {
		began, cpu := time.Now(), cpuTime(t, f.pid)
		rate := rateOf(callers, turn, do)
		busy := (cpuTime(t, f.pid) - cpu).Seconds() / time.Since(began).Seconds() // CPU seconds per second
		rates[name] = append(rates[name], rate)
		t.Logf("%s: %.0f a second, with %.0f µs of CPU time in the gateway for each", name, rate, 1e6*busy/max(rate, 1))
	}
	client := s.client
	for n := range turns {
		sdk, http, theirQueue := fmt.Sprint("sdk-", n), fmt.Sprint("http-", n), fmt.Sprint("q", n)
		measure("publish, SDK, 64 callers", connections, func(int) int {
			if _, err := client.Schedule(context.Background(), sdk, []byte(payload)); err != nil {
				t.Error(err)
				return 0
			}
			return 1
		})
		toUs := ours[0].request("POST", "/v1/queues/"+http+"/messages", payload)
		measure("publish, HTTP, 64 connections", connections, func(i int) int { return min(1, len(ours[i].mustAsk(toUs))) })
		toThem := theirs[0].request("PUT", "/api/ns/"+theirQueue, payload)
		measure("publish, lmstfy, 64 connections", connections, func(i int) int { return min(1, len(theirs[i].mustAsk(toThem))) })
		measure("consume and acknowledge, HTTP", 8, func(i int) int { return takeOurs(ours[i], http) })
		measure("consume and acknowledge, lmstfy, 8 connections", 8, func(i int) int { return takeTheirs(theirs[i], theirQueue) })
		measure("consume and acknowledge, lmstfy, 64 connections", connections,
			func(i int) int { return takeTheirs(theirs[i], theirQueue) })
	}
	at := func(name string) float64 { return median(rates[name]) } // messages a second
	publish, take := at("publish, HTTP, 64 connections"), at("consume and acknowledge, HTTP")
	t.Logf("publish: %.2f of the SDK, %.2f of lmstfy", publish/at("publish, SDK, 64 callers"), publish/
		at("publish, lmstfy, 64 connections"))
	best := max(at("consume and acknowledge, lmstfy, 8 connections"), at("consume and acknowledge, lmstfy, 64 connections"))
	t.Logf("consume and acknowledge: %.2f of lmstfy", take/best)
	if publish < 0.5*at("publish, SDK, 64 callers") || publish < at("publish, lmstfy, 64 connections") || take < best {
		t.Error("slower than it should be")
	}
}

// takeOurs receives up to 100 messages from the gateway, acknowledges them, and returns their number.
func takeOurs(w *wire, queue string) int {
	var found struct {
		Deliveries []struct {
			Token string `json:"token"`
		} `json:"deliveries"`
	}
	text := w.must("POST", "/v1/queues/"+queue+"/deliveries?group=g&count=100", "")
	if err := json.Unmarshal(text, &found); err != nil || len(found.Deliveries) == 0 {
		return 0
	}
	body, _ := json.Marshal(found.Deliveries)
	w.must("POST", "/v1/settlements", string(body))
	return len(found.Deliveries)
}

// takeTheirs does the same with lmstfy's own server, which acknowledges one message at a time.
func takeTheirs(w *wire, queue string) int {
	var found []struct {
		ID string `json:"job_id"`
	}
	text := w.must("GET", "/api/ns/"+queue+"?count=100&ttr=600", "", 404)
	if json.Unmarshal(text, &found) != nil {
		return 0
	}
	for _, job := range found {
		w.must("DELETE", "/api/ns/"+queue+"/job/"+job.ID, "")
	}
	return len(found)
}

// longPollsAreInTime makes 1,000 messages a second due while 50 callers wait in long polls. At most 1 % of them may be
// answered more than 10 ms late.
func (s *stack) longPollsAreInTime(t *testing.T, f front) {
	const pollers, count, rate = 50, 10_000, 1000
	var mu sync.Mutex
	var late []time.Duration
	var all sync.WaitGroup
	got := make(chan struct{}, count)
	stop := make(chan struct{})
	for range pollers {
		w := newWire(t, f.base, f.head)
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var found struct {
					Deliveries []struct {
						Token string    `json:"token"`
						Due   time.Time `json:"due"`
					} `json:"deliveries"`
				}
				text := w.must("POST", "/v1/queues/late/deliveries?group=g&count=10&wait_ms=3000", "")
				now := time.Now()
				if json.Unmarshal(text, &found) != nil || len(found.Deliveries) == 0 {
					continue
				}
				mu.Lock()
				for _, d := range found.Deliveries {
					late = append(late, now.Sub(d.Due))
					got <- struct{}{}
				}
				mu.Unlock()
				var done []map[string]string
				for _, d := range found.Deliveries {
					done = append(done, map[string]string{"token": d.Token})
				}
				body, _ := json.Marshal(done)
				w.must("POST", "/v1/settlements", string(body))
			}
		})
	}
	begin := time.Now().Add(3 * time.Second)
	var batch []bridge.NewMessage
	for i := range count {
		batch = append(batch, bridge.NewMessage{Payload: []byte("x"), At: begin.Add(time.Duration(i) * time.Second / rate)})
	}
	if _, err := s.client.ScheduleBatch(t.Context(), "late", batch); err != nil {
		t.Fatal(err)
	}
	for range count {
		select {
		case <-got:
		case <-time.After(30 * time.Second):
			t.Fatal("some messages did not come")
		}
	}
	close(stop)
	all.Wait()
	slices.Sort(late)
	p := func(share float64) time.Duration {
		return late[int(share*float64(len(late)-1))].Round(10 * time.Microsecond)
	}
	t.Logf("1,000 due a second, %d waiting callers: late by p50 %s, p99 %s, max %s", pollers, p(0.5), p(0.99), p(1))
	if p(0.99) > 10*time.Millisecond {
		t.Error("p99 should be 10 ms at most")
	}
}

// idlePolls makes 2,000 callers wait in long polls on 10 empty queues, and compares the requests to Redis and the
// memory of the gateway with those before.
func (s *stack) idlePolls(t *testing.T, program string) {
	const callers, window = 2000, 15 * time.Second
	f := s.front(t, program)
	newWire(t, f.base, f.head).must("POST", "/v1/queues/idle-0/deliveries?group=g&wait_ms=10", "")
	requests := func() float64 {
		monitor := s.server.Monitor(t)
		<-time.After(window)
		return float64(monitor.Count()) / window.Seconds()
	}
	<-time.After(3 * time.Second) // until the start of the gateway is over
	memory, before := residentMiB(t, f.pid), requests()
	for i := range callers {
		w := newWire(t, f.base, f.head)
		if err := w.send("POST", fmt.Sprintf("/v1/queues/idle-%d/deliveries?group=g&wait_ms=60000", i%10), ""); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(8 * time.Second) // until all callers wait
	after := requests()
	memoryAfter := residentMiB(t, f.pid)
	t.Logf("%d idle long polls on 10 queues: %.2f requests a second to Redis, %.2f without; %.1f MiB, %.1f without", callers,
		after, before, memoryAfter, memory)
	if after-before > 2 || memoryAfter-memory > 60 {
		t.Error("should cost 2 requests a second and 60 MiB at most")
	}
}
