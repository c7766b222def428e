package tools_test

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/tools"
	"github.com/duestream/duestream/integration/redistest"
)

// migrate bullmq moves the jobs of BullMQ, and says what it moved and what stays. A job that it cannot read is refused,
// and stays in BullMQ.
func TestMigrateMovesBullmq(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t))
	job := func(id, opts string) {
		c.Do("HSET", "bull:mails:"+id, "name", "send", "data", `{"n":1}`, "opts", opts, "timestamp", "1", "priority", "0")
	}
	job("1", `{"priority":3}`)
	c.Do("ZADD", "bull:mails:prioritized", "1", "1")
	job("2", `{}`)
	c.Do("ZADD", "bull:mails:failed", "1", "2")
	job("3", `no JSON`)
	c.Do("LPUSH", "bull:mails:wait", "3")
	c.Do("HSET", "bull:mails:repeat:often", "name", "send", "every", "60000", "ic", "1")
	c.Do("ZADD", "bull:mails:repeat", "1795778410001", "often")

	nowhere := &clitest.CLI{T: t, URL: clitest.Unreachable}
	nowhere.Fails(exit.Invalid, []string{"--from", "DUESTREAM_BULLMQ_REDIS_URL"}, "migrate", "bullmq")
	nowhere.Fails(exit.Invalid, []string{"zone"}, "migrate", "bullmq", "--from", c.URL, "--zone", "Nowhere", "--dry-run")

	r := nowhere.Fails(exit.Partly, []string{"mails 3@1: ", "opts"}, "migrate", "bullmq", "--from", c.URL, "--dry-run")
	if r.Out != "mails: prioritized 1\n  stay in bullmq: failed 1, job scheduler 1\n"+
		"  settings that duestream does not have: priority 1\n"+
		"would be moved 1, stay 2, moved before 0, refused 1, removed from bullmq 0\n" {
		t.Error(r.Out)
	}
	var all tools.JobTally
	r = c.Fails(exit.Partly, []string{"they stay in bullmq"}, "migrate", "bullmq", "--from", c.URL,
		"--rename", "mails=letters", "--failed-to", "mailer", "--schedulers", "--remove", "--json")
	clitest.Decode(t, r.Out, &all)
	if all.Moved != 3 || all.Removed != 3 || all.Refused != 1 || len(all.Queues) != 1 || all.Queues[0].Queue != "letters" {
		t.Errorf("%+v", all)
	}
	letters := c.OK("dead", "list", "letters", "--group", "mailer")
	redistest.Want(t, "the dead letter of the failed job", letters != "", true)
	if list := c.OK("recur", "list", "letters"); !strings.Contains(list, "often") {
		t.Error(list)
	}
}
