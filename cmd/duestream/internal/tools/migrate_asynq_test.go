package tools_test

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/tools"
	"github.com/duestream/duestream/integration/redistest"
)

// migrate asynq moves the tasks of asynq, and says what it moved and what stays. A task that it cannot read is refused,
// and stays in asynq.
func TestMigrateMovesAsynq(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t))
	// A task in protobuf: type (1), payload (2), ID (3), queue (4), most retries (5) and deadline (9).
	task := "\n\x04mail\x12\x05hello\x1a\x02t1\"\x01q(\x19H\x09"
	c.Do("HSET", "asynq:{q}:t:t1", "msg", task, "state", "pending", "pending_since", "1")
	c.Do("LPUSH", "asynq:{q}:pending", "t1")
	c.Do("HSET", "asynq:{q}:t:t2", "msg", "\n\x04mail\x1a\x02t2", "state", "archived")
	c.Do("ZADD", "asynq:{q}:archived", "1", "t2")
	c.Do("HSET", "asynq:{q}:t:t3", "msg", "no protobuf", "state", "pending")

	nowhere := &clitest.CLI{T: t, URL: clitest.Unreachable}
	nowhere.Fails(exit.Invalid, []string{"--from", "DUESTREAM_ASYNQ_REDIS_URL"}, "migrate", "asynq")
	nowhere.Fails(exit.Invalid, nil, "migrate", "asynq", "--from", c.URL, "--remove", "--dry-run")
	nowhere.Fails(exit.Invalid, []string{"dedup"}, "migrate", "asynq", "--from", c.URL, "--dedup", "0s")
	nowhere.Fails(exit.Invalid, []string{"rename"}, "migrate", "asynq", "--from", c.URL, "--rename", "q=a b")
	nowhere.Fails(exit.Unavailable, []string{"the Redis of asynq"}, "migrate", "asynq", "--from", clitest.Unreachable)
	nowhere.Fails(exit.Unavailable, nil, "migrate", "asynq", "--from", c.URL)

	r := nowhere.Fails(exit.Partly, []string{"q t3: ", "no protobuf"}, "migrate", "asynq", "--from", c.URL, "--dry-run")
	if r.Out != "q: pending 1\n  stay in asynq: archived 1\n  settings that duestream does not have: deadline 1\n"+
		"would be moved 1, stay 1, moved before 0, refused 1, removed from asynq 0\n" {
		t.Error(r.Out)
	}
	var all tools.JobTally
	r = c.Fails(exit.Partly, []string{"they stay in asynq"},
		"migrate", "asynq", "--from", c.URL, "--rename", "q=letters", "--archived-to", "mailer", "--remove", "--json")
	clitest.Decode(t, r.Out, &all)
	if all.Moved != 2 || all.Removed != 2 || all.Refused != 1 || len(all.Queues) != 1 || all.Queues[0].Queue != "letters" {
		t.Errorf("%+v", all)
	}
	if out := c.OK("dead", "list", "letters", "--group", "mailer"); !strings.Contains(out, "t2") {
		t.Error(out)
	}
}

// A Redis Cluster is refused, because a scan reads one of its servers alone.
func TestMigrateRefusesAClusterOfAsynq(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t)
	c := clitest.NewOn(t, server)
	cluster := redistest.Cluster(t, 3, 0).Server()
	c.Fails(exit.Invalid, []string{"must be a single Redis"}, "migrate", "asynq", "--from", cluster.URL(), "--dry-run")
}
