package looking_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/integration/redistest"
)

// peek shows the messages of all partitions in the order of their due times, overdue ones first, and says how many it
// leaves out. The queue is paused, so that the overdue message stays scheduled.
func TestPeekShowsWhatIsDueNext(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OK("queue", "partitions", "q", "--create", "3")
	if out := c.OK("peek", "q"); out != "nothing is scheduled\n" {
		t.Error(out)
	}
	c.OK("pause", "q")
	c.OK("schedule", "q", "--id", "late", "--in", "1ms", "--max-attempts", "3", "four")
	for i := range 4 {
		c.OK("schedule", "q", "--id", fmt.Sprint("m-", i), "--in", fmt.Sprint(i+1, "h"), "--header",
			"a=b", "--header", "c=d", "x")
	}
	const row = `\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  `
	redistest.Eventually(t, clitest.Patience, func() (bool, string) {
		out := c.OK("peek", "q")
		return strings.Contains(out, "overdue"), out
	})
	clitest.Matches(t, c.OK("peek", "q", "-n", "2"), `DUE +ID +ATTEMPT +FOR +BYTES +HEADERS`,
		row+`overdue \S+  late  1 of 3   -    4      -`, row+`in \S+ +m-0   1        -    1      a=b, c=d`,
		`\(and 3 more: see -n\)`, "! the queue is paused: none of these messages becomes ready until `duestream resume`")
	if out := c.OK("peek", "q", "--payload"); !strings.Contains(out, "PAYLOAD\n") ||
		!strings.Contains(out, "  -         four\n") || strings.Contains(out, "more") {
		t.Error(out)
	}
	r := c.Run("peek", "q", "-n", "3", "--json", "--payload")
	var all []admin.Due
	for line := range strings.Lines(r.Out) {
		var d admin.Due
		clitest.Decode(t, line, &d)
		all = append(all, d)
	}
	if len(all) != 3 || !all[0].Overdue || string(all[0].Payload) != "four" || all[1].ID != "m-0" ||
		r.Err != `{"note":"(and 2 more: see -n)"}`+"\n" {
		t.Errorf("%+v\n%s", all, r.Err)
	}
}
