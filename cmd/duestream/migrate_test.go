package main

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

func TestMigrateMovesAnLmstfy(t *testing.T) {
	t.Parallel()
	c := newCLIOn(t, redistest.Own(t))
	const id = "01M80K6PCFJX3AQJPDV0000000"
	c.do("SET", "j/ns/q/"+id, "hello")
	c.do("LPUSH", "q/ns/q", "\x02\x00\x1a\x00"+id)
	c.do("SET", "j/ns/_q/"+id, "hello")
	c.do("LPUSH", "q/ns/_q", "\x02\x00\x1a\x00"+id)

	nowhere := &cli{t: t, url: unreachable}
	nowhere.fails(exitInvalid, []string{"--from", "DUESTREAM_LMSTFY_REDIS_URL"}, "migrate", "lmstfy")
	nowhere.fails(exitInvalid, nil, "migrate", "lmstfy", "--from", c.url, "--remove", "--dry-run")
	nowhere.fails(exitInvalid, []string{"dedup"}, "migrate", "lmstfy", "--from", c.url, "--dedup", "0s")
	nowhere.fails(exitUnavailable, []string{"lmstfy's Redis"}, "migrate", "lmstfy", "--from", unreachable)
	nowhere.fails(exitUnavailable, nil, "migrate", "lmstfy", "--from", c.url)

	queue := []string{"migrate", "lmstfy", "--from", c.url, "--namespace", "ns", "--lmstfy-queue", "q"}
	if out := nowhere.ok(append(queue, "--dry-run")...); out != "ns:q: ready 1, delayed 0, in flight 0, dead 0\n"+
		"would be moved 1, moved before 0, refused 0, removed from lmstfy 0\n" {
		t.Error(out)
	}
	if out := c.ok(queue...); !strings.HasSuffix(out, "\nmoved 1, moved before 0, refused 0, removed from lmstfy 0\n") {
		t.Error(out)
	}
	if out := c.ok("stats", "ns:q"); !strings.Contains(out, "lmstfy") {
		t.Error(out)
	}
	var all migrateTally
	r := c.fails(exitPartly, []string{"ns/_q (all jobs): ", "1 job refused", "they stay in lmstfy"},
		"migrate", "lmstfy", "--from", c.url, "--remove", "--json")
	decode(t, r.out, &all)
	if all.Moved != 0 || all.Known != 1 || all.Removed != 1 || all.Refused != 1 || len(all.Queues) != 2 ||
		all.Queues[1].Queue != "ns:q" {
		t.Errorf("%+v", all)
	}
}

func TestMigrateTakesTheURLFromTheEnvironment(t *testing.T) {
	c := newCLIOn(t, redistest.Own(t))
	t.Setenv("DUESTREAM_LMSTFY_REDIS_URL", c.url)
	var none migrateTally
	c.json(&none, "migrate", "lmstfy")
	if none.Moved != 0 || none.Queues == nil {
		t.Errorf("%+v", none)
	}
}
