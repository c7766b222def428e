package languages

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// brokenOnce is a script that stands in for redis-cli. At the first command of the worker, it behaves as redis-cli does
// when its connection breaks: it repeats the command, and prints an empty line and "I/O error" before the reply.
const brokenOnce = `#!/bin/bash
case " $* " in *' -e '*) exec redis-cli "$@" ;; esac # a single command
if [ -e "$0.broke" ]; then exec redis-cli "$@"; fi
: >"$0.broke"
IFS= read -r command
reply=$(printf '%s\n' "$command" | redis-cli "$@")
printf '\nI/O error\n%s\n' "$reply"
exec redis-cli "$@"
`

// The worker in shell handles the message of a read that redis-cli has repeated after its connection broke. Regression:
//
//  1. The connection broke while the worker waited for messages. redis-cli printed an empty line and "I/O error",
//     connected again, and repeated the read.
//  2. The worker took the empty line for the reply, and ended redis-cli.
//  3. The server had just delivered a message to the second read. Nobody handled it until its visibility timeout was
//     over.
func TestShellWorkerWaitsForTheReplyThatFollowsABrokenConnection(t *testing.T) {
	t.Parallel()
	ReadAll(t, examples)
	s := redistest.Shared(t)
	prefix, queue := s.Prefix(t), redistest.Queue(t)
	keys := lua.NewKeys(prefix, queue)
	s.Do(t, "XGROUP", "CREATE", keys.Stream, "g", "0", "MKSTREAM")
	s.Do(t, "XADD", keys.Stream, "*", "id", "m", "payload", "p", "attempt", "1")

	cli := filepath.Join(t.TempDir(), "redis-cli")
	if err := os.WriteFile(cli, []byte(brokenOnce), 0o755); err != nil {
		t.Fatal(err)
	}
	worker := exec.Command("bash", examples+"/shell/worker.sh")
	worker.Env = append(withoutVariables("DUESTREAM_"), "QUEUE="+queue, "GROUP=g", "REDIS_CLI="+cli, "DUESTREAM_PREFIX="+prefix,
		"DUESTREAM_REDIS_URL="+s.URL())
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = worker.Process.Signal(os.Interrupt)
		_ = worker.Wait()
	})
	c := s.Client(t)
	// No bridge runs, and the visibility timeout is 30 s. So within 20 s, only the repeated read can bring the
	// message to the worker.
	redistest.Eventually(t, 20*time.Second, func() (bool, string) {
		pending, err := c.Do(t.Context(), c.B().Xpending().Key(keys.Stream).Group("g").Build()).ToArray()
		if err != nil {
			t.Fatal(err)
		}
		n, _ := pending[0].AsInt64()
		_, broke := os.Stat(cli + ".broke")
		groups, _ := c.Do(t.Context(), c.B().XinfoGroups().Key(keys.Stream).Build()).ToArray()
		group, _ := groups[0].AsMap()
		last := group["last-delivered-id"]
		given, _ := last.ToString()
		return broke == nil && given != "0-0" && n == 0, given + " was given last"
	})
}
