package languages

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

const phpExamples = examples + "/php"

// The PHP example throws an exception if phpredis could not send a command: phpredis then returns false and sets no
// error. Regression: the child process that extends the worker's entries took false for a reply, and ended.
func TestPHPDoesNotTakeAFailedCommandForAReply(t *testing.T) {
	t.Parallel()
	const mute = `
		namespace Duestream;
		foreach (['connect', 'policy'] as $name) {
			require "$argv[1]/$name.php";
		}
		class Mute extends \Redis {
			#[\ReturnTypeWillChange] public function rawCommand($command, ...$arguments) { return false; }
			#[\ReturnTypeWillChange] public function hGet($key, $member) { return false; }
			#[\ReturnTypeWillChange] public function hMGet($key, array $keys) { return false; }
			#[\ReturnTypeWillChange] public function getLastError() { return null; }
			#[\ReturnTypeWillChange] public function clearLastError() { return true; }
		}
		foreach ([
			'fcall' => fn() => fcall(new Mute, 'version', [], []),
			'register' => fn() => register(new Mute, 'p', 'q', [1]),
			'setting' => fn() => (new Policy('p', 'g'))->get(new Mute, 'q', 'visibility_ms'),
		] as $name => $call) {
			try {
				$got = json_encode($call());
				echo "$name: $got is no answer\n";
			} catch (\RedisException) {
			}
		}`
	out, err := exec.Command(PHP(t), "-r", mute, phpExamples).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// The PHP example passes every reply of phpredis to checked() before it uses the reply.
func TestPHPChecksEveryReply(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(phpExamples + "/*.php")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	call := regexp.MustCompile(`(checked\([^;]*)?redis\??->(\w+)\(`)
	calls := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, m := range call.FindAllStringSubmatch(line, -1) {
				switch m[2] {
				case "setOption", "getLastError", "clearLastError": // these send nothing
					continue
				}
				calls++
				if m[1] == "" {
					t.Errorf("%s:%d: %s is not checked: %s", file, i+1, m[2], strings.TrimSpace(line))
				}
			}
		}
	}
	if calls < 15 { // fewer than the example has: the pattern does not match any more
		t.Errorf("only %d calls were found", calls)
	}
}

// The child process that extends the entries of a PHP worker is killed. The worker starts another one, which extends
// the entries. Regression: the worker ended.
func TestPHPWorkerOutlivesItsExtendingProcess(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	client := server.Client(t)
	const stream = "duestream:{q}:stream"
	server.Do(t, "HSET", "duestream:{q}:policy", "visibility_ms", "1000")
	worker := exec.Command(PHP(t), phpExamples+"/conformance.php", "worker")
	worker.Env = append(os.Environ(), "DUESTREAM_REDIS_URL="+server.URL(), "DUESTREAM_PREFIX=duestream", "QUEUE=q", "GROUP=g",
		"CONSUMER=c")
	worker.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	worker.Stderr = &said
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	var exit error
	ended := make(chan struct{})
	go func() {
		exit = worker.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = worker.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("it said: %s", said.String())
		}
	})
	eventually := func(condition func() (bool, string)) {
		t.Helper()
		redistest.Eventually(t, 30*time.Second, func() (bool, string) {
			select {
			case <-ended:
				t.Fatalf("the worker has ended: %v", exit)
			default:
			}
			return condition()
		})
	}
	eventually(func() (bool, string) { return server.Do(t, "EXISTS", stream) == "1", "no group" })
	child := ""
	eventually(func() (bool, string) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", worker.Process.Pid, worker.Process.Pid))
		child = strings.TrimSpace(string(text))
		return child != "", "no child"
	})
	pid, err := strconv.Atoi(child)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(func() (bool, string) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		return !strings.Contains(string(text), "\nState:") || strings.Contains(string(text), "\nState:\tZ"), "the child lives"
	})
	begun := time.Now()
	server.Do(t, "XADD", stream, "*", "id", "held", "payload", "", "attempt", "1", "h:work", "slow 60000")
	eventually(func() (bool, string) {
		rows, err := client.Do(context.Background(),
			client.B().Xpending().Key(stream).Group("g").Start("-").End("+").Count(1).Build()).ToArray()
		if err != nil || len(rows) == 0 {
			return false, "not delivered"
		}
		row, _ := rows[0].ToArray()
		idle, _ := row[2].AsInt64()
		// Only an extend can have made the entry's idle time begin at least 2 s after the message was added.
		return time.Since(begun) > time.Duration(idle)*time.Millisecond+2*time.Second, "held is not extended"
	})
}
