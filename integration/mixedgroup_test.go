package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/languages"
	"github.com/duestream/duestream/integration/redistest"
)

// member is a worker of a group, in some language: a child process that is killed and replaced. The process prints a
// line before it works on a message.
type member struct {
	s       *stack
	name    string // of the language
	command []string
	env     []string
	cmd     *exec.Cmd
	lives   int            // number of starts; part of the consumer's name, so that each process is a new consumer
	readers sync.WaitGroup // goroutines that read the output of the processes
	mu      sync.Mutex
	handled int // number of lines printed by all processes of this member
}

// start starts a process. Its output goes through a pipe of its own, so that lines printed before a kill are not lost.
func (m *member) start() {
	t := m.s.t
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	m.lives++
	m.cmd = exec.Command(m.command[0], m.command[1:]...)
	m.cmd.Env = append(append(os.Environ(), m.env...), fmt.Sprintf("CONSUMER=%s-%d", m.name, m.lives))
	m.cmd.Stdout = write
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	m.readers.Go(func() {
		defer read.Close()
		unparsed := "" // the previous line, if it does not parse
		for lines := bufio.NewScanner(read); lines.Scan(); {
			if unparsed != "" { // only the last line may be cut short by a kill; its message was not acknowledged
				t.Errorf("%s printed %q", m.name, unparsed)
			}
			line := lines.Text()
			ok := m.enter(line)
			unparsed = ""
			if !ok {
				unparsed = line
			}
		}
	})
}

// enter records the delivery that a line reports, and returns false if the line does not parse. The examples print JSON
// with the field id, as the conformance kit demands. The worker in Go prints "group ID entry-ms due-ms".
func (m *member) enter(line string) bool {
	var said struct {
		ID string `json:"id"`
	}
	var group string
	at, due := time.Now().UnixMilli(), int64(0) // for JSON, which has no times
	if json.Unmarshal([]byte(line), &said) != nil || said.ID == "" {
		if n, _ := fmt.Sscan(line, &group, &said.ID, &at, &due); n != 4 {
			return false
		}
	}
	m.s.ledger.Delivered("mixed", said.ID, at, due)
	m.mu.Lock()
	m.handled++
	m.mu.Unlock()
	return true
}

func (m *member) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.handled
}

func (m *member) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// stop stops a worker with SIGTERM. It must exit with 0 by itself.
func (m *member) stop() {
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- m.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			m.s.t.Errorf("%s: %v", m.name, err)
		}
	case <-time.After(10 * time.Second):
		m.s.t.Errorf("%s did not end on SIGTERM", m.name)
		_ = m.cmd.Process.Kill()
		<-done
	}
	m.readers.Wait()
}

// No accepted message is lost (guarantee G1) in a group with workers in Go and in all languages of the examples, on a
// queue with two partitions. Workers die by kill -9 at random times and are replaced, and the server dies once. Some
// messages fail at first, some take long. No message is delivered early, and none is left. This holds with plain
// commands and with the functions library. DUESTREAM_TEST_SEED repeats a run.
func TestOneGroupInSixLanguages(t *testing.T) {
	t.Parallel()
	for name, functions := range map[string]bool{"plain": false, "functions": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			oneGroup(t, functions)
		})
	}
}

func oneGroup(t *testing.T, functions bool) {
	const n, partitions, spread = 2400, 2, 12 * time.Second
	random := seeded(t)
	server := redistest.Own(t, "--appendonly", "yes", "--appendfsync", "always")
	if functions {
		languages.LoadFunctions(t, server)
	}
	s := newStack(t, server)
	policy := quick()
	policy.MaxAttempts = 1000 // because a kill counts as an attempt
	s.bridge(policy)
	s.groups("mixed")
	if _, err := s.operator().SetPartitions(t.Context(), s.queue, partitions, nil); err != nil {
		t.Fatal(err)
	}

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"DUESTREAM_REDIS_URL=" + server.URL(), "DUESTREAM_PREFIX=" + s.prefix, "QUEUE=" + s.queue, "GROUP=mixed"}
	members := []*member{{s: s, name: "go", command: []string{self}, env: []string{childPart + "=worker", childURL + "=" +
		server.URL(),
		childPrefix + "=" + s.prefix, childQueue + "=" + s.queue, childGroup + "=mixed", childLedger + "=/dev/stdout"}}}
	for _, l := range languages.All(t, "../examples") {
		members = append(members, &member{s: s, name: l.Name, command: l.Command("worker"), env: env})
	}
	for _, m := range members {
		m.start()
		t.Cleanup(m.stop)
	}

	begin := time.Now()
	produced := make(chan struct{})
	go func() {
		defer close(produced)
		for i := range n {
			id := fmt.Sprint("m", i)
			options := []bridge.Option{bridge.WithID(id), bridge.At(begin.Add(spread * time.Duration(i) / n))}
			switch {
			case i%40 == 0:
				options = append(options, bridge.Header("work", "fail 1"))
			case i%100 == 50:
				options = append(options, bridge.Header("work", "slow 1500"))
			}
			receipt, err := s.client.Schedule(context.Background(), s.queue, []byte(id), options...)
			s.record(id, receipt, err)
		}
	}()
	kills := map[string]int{}
	restart := 5 + random.IntN(10) // the turn in which the server is killed
	for turn := 0; turn < 20 || time.Since(begin) < spread; turn++ {
		<-time.After(time.Duration(200+random.IntN(800)) * time.Millisecond) // until the next kill
		if turn == restart {
			server.Kill()
			server.Start()
			kills["server"]++
			continue
		}
		m := members[random.IntN(len(members))]
		m.kill()
		m.start()
		kills[m.name]++
	}
	<-produced
	handled := map[string]int{}
	redistest.Eventually(t, 90*time.Second, func() (bool, string) {
		if r := s.ledger.Summary("mixed"); r.Lost > 0 {
			return false, fmt.Sprintf("%+v, missing: %v", r, s.ledger.Missing("mixed", 5))
		}
		if ok, left := s.partsEmpty(partitions, "mixed"); !ok {
			return false, left
		}
		for _, m := range members {
			handled[m.name] = m.count()
		}
		return true, ""
	})
	took := time.Since(begin)
	for name, count := range handled {
		if count == 0 {
			t.Errorf("the %s worker got nothing", name)
		}
	}
	for i := range partitions {
		if dead := s.part(i).number("XLEN", s.part(i).keys().Dead); dead != 0 {
			t.Errorf("partition %d: %d dead letters", i, dead)
		}
	}
	if r := s.ledger.Check(t, "mixed"); r.Sent < 2000 {
		t.Errorf("only %d messages were sent", r.Sent)
	}
	t.Logf("%d messages over %s, all done after %s; kills: %v; deliveries by language: %v", n, spread,
		took.Round(time.Millisecond), kills, handled)
}
