package languages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/before"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// The examples work with the functions library of a release that does not support ordering keys, and refuses calls with
// the Redis key turns. A message whose handler fails is scheduled again or becomes a dead letter, and the worker goes
// on with the next message. Regression: the worker repeated the refused call for ever.
func TestExamplesWorkWithAnOlderLibrary(t *testing.T) {
	t.Parallel()
	ReadAll(t, examples)
	server := redistest.Own(t)
	load := exec.Command(before.Build(t, before.Keyless), "functions", "load", "--redis", server.URL())
	load.Env = withoutVariables("DUESTREAM_")
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, l := range All(t, examples) {
		if l.Worker != "complete" {
			continue // it calls no functions
		}
		t.Run(l.Name, func(t *testing.T) {
			t.Parallel()
			keys := lua.NewKeys(lua.DefaultPrefix, l.Name)
			server.Do(t, "XGROUP", "CREATE", keys.Stream, "g", "0", "MKSTREAM")
			last := ""
			for _, work := range []string{"retry 600000", "dead", "ok"} {
				last = server.Do(t, "XADD", keys.Stream, "*", "id", work, "payload", "", "attempt", "1", "h:work", work)
			}
			worker := exec.Command(l.Command("worker")[0], l.Command("worker")[1:]...)
			worker.Env = append(withoutVariables("DUESTREAM_"), "DUESTREAM_REDIS_URL="+server.URL(),
				"DUESTREAM_PREFIX="+lua.DefaultPrefix, "QUEUE="+l.Name, "GROUP=g", "CONSUMER=c")
			worker.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			said := filepath.Join(t.TempDir(), "stderr")
			file, err := os.Create(said)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			worker.Stderr = file
			if err := worker.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = worker.Process.Kill()
				_ = worker.Wait()
			})
			redistest.Eventually(t, 60*time.Second, func() (bool, string) {
				group := server.Do(t, "EVAL", pendingAndLast, "1", keys.Stream)
				due, dead := server.Do(t, "ZCARD", keys.Due), server.Do(t, "XLEN", keys.Dead)
				text, _ := os.ReadFile(said)
				return group == "0 "+last && due == "1" && dead == "1",
					fmt.Sprintf("group %q, last entry %s, %s retries, %s dead letters; the worker said:\n%s", group, last, due,
						dead, text)
			})
		})
	}
}

// pendingAndLast is a script that returns the number of pending entries of a stream's only group, and the ID of the
// last entry that was delivered to the group.
const pendingAndLast = `local group = redis.call('XINFO', 'GROUPS', KEYS[1])[1]; return group[6] .. ' ' .. group[8]`
