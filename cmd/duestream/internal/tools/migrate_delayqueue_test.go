package tools_test

import (
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/integration/redistest"
)

// migrate delayqueue moves messages, and deletes them only with --remove.
func TestMigrateMovesDelayqueue(t *testing.T) {
	c := clitest.NewOn(t, redistest.Own(t))
	for _, queue := range []string{"a", "b"} {
		c.Do("SET", "dp:"+queue+":msg:1", "hello")
		c.Do("LPUSH", "dp:"+queue+":ready", "1")
	}
	c.Fails(exit.Invalid, []string{"--from", "DUESTREAM_DELAYQUEUE_REDIS_URL"}, "migrate", "delayqueue")
	t.Setenv("DUESTREAM_DELAYQUEUE_REDIS_URL", c.URL)
	const rest = "stay 0, moved before 0, refused 0, removed from delayqueue "
	line := []string{"migrate", "delayqueue", "--delayqueue-queue", "a"}
	if out := c.OK(append(line, "--dry-run")...); out != "a: ready 1\nwould be moved 1, "+rest+"0\n" {
		t.Error(out)
	}
	if out := c.OK(line...); out != "a: ready 1\nmoved 1, "+rest+"0\n" {
		t.Error(out)
	}
	if out := c.OK("migrate", "delayqueue", "--remove"); out !=
		"a: nothing new\nb: ready 1\nmoved 1, stay 0, moved before 1, refused 0, removed from delayqueue 2\n" {
		t.Error(out)
	}
}
