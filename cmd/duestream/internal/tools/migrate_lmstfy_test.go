package tools_test

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/tools"
	"github.com/duestream/duestream/integration/redistest"
)

// migrate moves the jobs of an lmstfy, and says how many it moved, knew already, refused and removed. A queue name that
// duestream does not allow (_q) is refused, and its job stays in lmstfy.
func TestMigrateMovesAnLmstfy(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t))
	const id = "01M80K6PCFJX3AQJPDV0000000"
	c.Do("SET", "j/ns/q/"+id, "hello")
	c.Do("LPUSH", "q/ns/q", "\x02\x00\x1a\x00"+id) // lmstfy puts tries and the length of the ID, 26, before it
	c.Do("SET", "j/ns/_q/"+id, "hello")
	c.Do("LPUSH", "q/ns/_q", "\x02\x00\x1a\x00"+id)

	nowhere := &clitest.CLI{T: t, URL: clitest.Unreachable}
	nowhere.Fails(exit.Invalid, []string{"--from", "DUESTREAM_LMSTFY_REDIS_URL"}, "migrate", "lmstfy")
	nowhere.Fails(exit.Invalid, nil, "migrate", "lmstfy", "--from", c.URL, "--remove", "--dry-run")
	nowhere.Fails(exit.Invalid, []string{"dedup"}, "migrate", "lmstfy", "--from", c.URL, "--dedup", "0s")
	nowhere.Fails(exit.Invalid, []string{"rename"}, "migrate", "lmstfy", "--from", c.URL, "--rename", "a=b")
	nowhere.Fails(exit.Unavailable, []string{"the Redis of lmstfy"}, "migrate", "lmstfy", "--from", clitest.Unreachable)
	nowhere.Fails(exit.Unavailable, nil, "migrate", "lmstfy", "--from", c.URL)

	queue := []string{"migrate", "lmstfy", "--from", c.URL, "--namespace", "ns", "--lmstfy-queue", "q"}
	if out := nowhere.OK(append(queue, "--dry-run")...); out != "ns:q: ready 1, delayed 0, in flight 0, dead 0\n"+
		"would be moved 1, moved before 0, refused 0, removed from lmstfy 0\n" {
		t.Error(out)
	}
	if out := c.OK(queue...); !strings.HasSuffix(out, "\nmoved 1, moved before 0, refused 0, removed from lmstfy 0\n") {
		t.Error(out)
	}
	if out := c.OK("stats", "ns:q"); !strings.Contains(out, "lmstfy") {
		t.Error(out)
	}
	var all tools.LmstfyTally
	r := c.Fails(exit.Partly, []string{"ns/_q (all jobs): ", "1 job refused", "they stay in lmstfy"},
		"migrate", "lmstfy", "--from", c.URL, "--remove", "--json")
	clitest.Decode(t, r.Out, &all)
	if all.Moved != 0 || all.Known != 1 || all.Removed != 1 || all.Refused != 1 || len(all.Queues) != 2 ||
		all.Queues[1].Queue != "ns:q" {
		t.Errorf("%+v", all)
	}
}

// Without --from, the URL comes from the environment, so that its password need not be in the list of processes.
func TestMigrateTakesTheURLFromTheEnvironment(t *testing.T) {
	c := clitest.NewOn(t, redistest.Own(t))
	t.Setenv("DUESTREAM_LMSTFY_REDIS_URL", c.URL)
	var none tools.LmstfyTally
	c.JSON(&none, "migrate", "lmstfy")
	if none.Moved != 0 || none.Queues == nil {
		t.Errorf("%+v", none)
	}
}
