package integration

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/integration/redistest"
)

// A queue whose partitions are on several masters of a cluster is exported, and imported into one of another name with fewer
// partitions on the same cluster: what had been scheduled and what had died is delivered from the copy, once, and on time.
func TestExportAndImportOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	from := newStack(t, cluster.Server())
	to := newStack(t, cluster.Server())
	duestream := build(t)
	command := func(s *stack, stdin string, args ...string) string {
		t.Helper()
		cmd := exec.Command(duestream, append([]string{"--redis", cluster.URL(), "--prefix", s.prefix}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		var errOut strings.Builder
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v\n%s%s", args, err, out, &errOut)
		}
		return string(out)
	}
	command(from, "", "queue", "partitions", from.queue, "5")
	command(to, "", "queue", "partitions", to.queue, "3")
	from.groups("g")
	const n = 300
	from.schedule(n, "m", func(int) time.Duration { return 15 * time.Second })
	to.ledger = from.ledger
	for i := range 20 {
		id := fmt.Sprint("dead-", i)
		key := fmt.Sprintf("%s:{%s/%d}:dead", from.prefix, from.queue, 1+i%4)
		if err := from.raw("XADD", key, "*", "id", id, "payload", "payload of "+id, "group", "g", "reason",
			"max_attempts").Error(); err != nil {
			t.Fatal(err)
		}
		to.ledger.Sent(id, 0)
	}
	export := command(from, "", "export", from.queue)
	if !strings.Contains(export, `{"kind":"end","count":320,"ready":0,"scheduled":300,"dead":20,"left_out":0}`) {
		t.Fatal(export)
	}
	if out := command(to, export, "import", to.queue); !strings.HasPrefix(out, "imported 320,") ||
		!strings.Contains(out, "created 1 group: g\n") {
		t.Fatal(out)
	}
	command(to, "", "dead", "redrive", to.queue, "--all")
	to.bridge(quick())
	to.worker("g", 32, func(_ context.Context, m *bridge.Message) error {
		if string(m.Payload) != "payload of "+m.ID || m.Attempt != 1 {
			t.Errorf("%s, attempt %d: %q", m.ID, m.Attempt, m.Payload)
		}
		return nil
	})
	redistest.Eventually(t, time.Minute, func() (bool, string) {
		sum := to.ledger.Summary("g")
		return sum.Delivered == n+20, sum.String()
	})
	if sum := to.ledger.Check(t, "g"); sum.Duplicated > 0 {
		t.Error(sum)
	}
}
