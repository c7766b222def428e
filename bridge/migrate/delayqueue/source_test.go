package delayqueue

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// do runs a command, given as words.
func do(t *testing.T, c rueidis.Client, line string, more ...string) {
	t.Helper()
	words := append(strings.Fields(line), more...)
	if err := c.Do(t.Context(), c.B().Arbitrary(words...).Build()).Error(); err != nil {
		t.Fatal(line, " ", err)
	}
}

// write stores one message in each structure, under the keys of a queue. (integration/migrate uses the library itself.)
func write(t *testing.T, c rueidis.Client, queue string, now time.Time) {
	t.Helper()
	for _, id := range []string{"pending", "ready", "unack", "unack-last", "retry", "garbage", "nowhere"} {
		do(t, c, "SET "+queue+":msg:"+id+" payload-of-"+id)
	}
	do(t, c, "PEXPIRE "+queue+":msg:pending 3600000")
	do(t, c, "HSET "+queue+":retry:cnt pending 3 ready 3 unack 2 unack-last 0 retry 1")
	do(t, c, fmt.Sprint("ZADD "+queue+":pending ", now.Unix()+60, " pending"))
	do(t, c, fmt.Sprint("ZADD "+queue+":unack ", now.Unix()+5, " unack ", now.Unix()+6, " unack-last"))
	do(t, c, "LPUSH "+queue+":ready ready acknowledged")
	do(t, c, "LPUSH "+queue+":retry retry")
	do(t, c, "SADD "+queue+":garbage garbage")
	do(t, c, "LPUSH "+queue+":msg:foreign x")
}

// read returns the jobs of a queue by ID, and the IDs in the order of Scan.
func read(t *testing.T, s *Source, queue string) (map[string]migrate.Job, []string) {
	t.Helper()
	var ids []string
	err := s.Scan(t.Context(), func(found, id string) {
		if found == queue && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := s.Read(t.Context(), queue, ids)
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]migrate.Job{}
	for _, job := range jobs {
		byID[job.ID] = job
	}
	return byID, ids
}

// A message of each structure becomes a message with its payload, its due time, its remaining retries and its time to
// live, also if the keys have hash tags.
func TestWhatAMessageBecomes(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{"dp:a:msg:b", "{dp:a:msg:b}"} {
		c, now := redistest.Own(t).Client(t), time.Now()
		write(t, c, queue, now)
		do(t, c, "SET dp:other:msg:x y")
		s := redistest.Must(New(t.Context(), c, "a:msg:b"))
		redistest.Want(t, "target", redistest.Must(s.Target(queue)), "a:msg:b")
		jobs, ids := read(t, s, queue)
		redistest.Want(t, "first are those of lists, the oldest first", fmt.Sprint(ids[:3]), "[ready acknowledged retry]")
		for id, want := range map[string]string{
			"pending":      "fate 0 pending attempts 4 due +60s expires",
			"ready":        "fate 0 ready attempts 4 due now",
			"retry":        "fate 0 retry attempts 2 due now",
			"unack":        "fate 0 unack attempts 2 due +5s",
			"unack-last":   "fate 0 unack attempts 1 due +6s",
			"nowhere":      "fate 3  attempts 1 due now",
			"garbage":      "fate 2 garbage",
			"acknowledged": "fate 1 ",
			"foreign":      "fate 4 ",
		} {
			job := jobs[id]
			got := fmt.Sprintf("fate %d %s", job.Fate, job.State)
			if r := job.Entry; r.ID != "" {
				due := "now"
				if seconds := time.UnixMilli(r.Due).Unix() - now.Unix(); seconds > 1 {
					due = fmt.Sprintf("+%ds", seconds)
				}
				got += fmt.Sprintf(" attempts %d due %s", r.MaxAttempts, due)
				if r.Expires > 0 {
					got += " expires"
				}
				redistest.Want(t, id+": payload", string(r.Payload), "payload-of-"+id)
			}
			redistest.Want(t, id, got, want)
		}
	}
}

// Remove deletes a message from every structure, its payload and its retries, and no other message.
func TestRemovedMessagesLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const queue = "dp:q"
	c := redistest.Own(t).Client(t)
	write(t, c, queue, time.Now())
	s := redistest.Must(New(t.Context(), c))
	jobs, _ := read(t, s, queue)
	var all []migrate.Job
	for _, job := range jobs {
		if job.Fate == migrate.Moves || job.Fate == migrate.Unsettled {
			all = append(all, job)
		}
	}
	removed, err := s.Remove(t.Context(), queue, all)
	redistest.Want(t, "removed", fmt.Sprint(removed, err), "[true true true true true true] <nil>")
	keys, err := c.Do(t.Context(), c.B().Keys().Pattern("*").Build()).AsStrSlice()
	slices.Sort(keys)
	redistest.Want(t, "keys that are left", fmt.Sprint(keys, err),
		"[dp:q:garbage dp:q:msg:foreign dp:q:msg:garbage dp:q:ready] <nil>")
}

// A Redis Cluster is refused, because a scan reads one of its servers alone.
func TestAClusterIsRefused(t *testing.T) {
	t.Parallel()
	_, err := New(t.Context(), redistest.Cluster(t, 3, 0).Server().Client(t))
	redistest.Want(t, "error", strings.Contains(fmt.Sprint(err), "must be a single Redis"), true)
}
