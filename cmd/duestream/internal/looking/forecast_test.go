package looking_test

import (
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// forecast shows the work of each group, also of one that does not exist yet, and says why messages may not become
// ready in time.
func TestForecastCountsTheWorkOfEachGroup(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("schedule", "q", "--id", "a", "--in", "50s", "x")
	c.OK("schedule", "q", "--id", "b", "--in", "30m", "x")
	c.OK("schedule", "q", "--id", "c", "--in", "48h", "x")
	redistest.Want(t, "without a group", c.OK("forecast", "q"), ""+
		"GROUP       LAG  PENDING  DUE  TOTAL\n"+
		"(no group)  0    0        1    1\n")
	c.Do("XGROUP", "CREATE", c.Key("q", "stream"), "g", "0", "MKSTREAM")
	c.Do("XADD", c.Key("q", "stream"), "*", "id", "ready")
	redistest.Want(t, "two groups' work", c.OK("forecast", "q", "--within", "1h"), ""+
		"GROUP  LAG  PENDING  DUE  TOTAL\n"+
		"g      1    0        2    3\n")
	c.OK("queue", "set", "q", "rate=10/s", "ready_limit=1000")
	c.OK("pause", "q", "--workers")
	redistest.Want(t, "a new group of a paused queue", c.OK("forecast", "q", "--within", "3d", "-g", "new"), ""+
		"GROUP                 LAG  PENDING  DUE  TOTAL\n"+
		"new (does not exist)  1    0        3    4\n"+
		"(the queue is paused; its workers are paused; the rate is 10/s; the ready limit is 1000)\n")
	var f []admin.QueueForecast
	c.JSON(&f, "forecast", "q", "--within", "0s", "--group", "g")
	if len(f) != 1 || !f[0].Held || !f[0].HeldWorkers || f[0].Rate != "10/s" || f[0].ReadyLimit != 1000 ||
		f[0].Due != 0 || f[0].Total != 1 || len(f[0].Groups) != 1 || f[0].Groups[0].Name != "g" {
		t.Errorf("%+v", f)
	}
	c.Fails(exit.NotFound, []string{"no such queue"}, "forecast", "p")
	c.Fails(exit.Invalid, []string{"within"}, "forecast", "q", "--within", "20y")
	c.Fails(exit.Invalid, []string{"queue"}, "forecast")
	c.Fails(exit.Invalid, []string{"group"}, "forecast", "q", "--group", "")
}
