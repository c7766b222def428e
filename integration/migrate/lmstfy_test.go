package migrate

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// The jobs of lmstfy are moved once, although the command that moves them is killed on the way. Nothing is left of
// them. (bridge/migrate/lmstfy moves the jobs of a real lmstfy server.)
func TestJobsOfLmstfyAreMovedOnceThoughTheMoveIsKilled(t *testing.T) {
	t.Parallel()
	jobs, _ := scale()
	from, to := redistest.Own(t), redistest.Own(t)
	c := from.Client(t)
	inAnHour := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
	var cmds rueidis.Commands
	for i := range jobs {
		id := fmt.Sprintf("01M80K6PCFJX3AQJPDV%07d", i)
		cmds = append(cmds, c.B().Set().Key("j/ns/mail/"+id).Value("body of "+id).Build())
		if i%2 == 0 { // ready
			cmds = append(cmds, c.B().Lpush().Key("q/ns/mail").Element("\x03\x00\x1a\x00"+id).Build())
		} else { // in flight
			cmds = append(cmds, c.B().Arbitrary("ZADD", "timer_set", inAnHour,
				"\x02\x00ns\x04\x00mail\x03\x00\x1a\x00"+id).Build())
		}
	}
	for page := range slices.Chunk(cmds, 1000) {
		for _, answer := range c.DoMulti(t.Context(), page...) {
			if err := answer.Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	migrated(t, from, to, jobs, func() int64 { return left(t, c, "LLEN q/ns/mail", "ZCARD timer_set") }, "lmstfy")
	n, err := c.Do(t.Context(), c.B().Dbsize().Build()).AsInt64()
	redistest.Want(t, "keys that are left", fmt.Sprint(n, err), "0 <nil>")

	redis, err := bridge.Dial(t.Context(), to.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	found := map[string]bool{}
	all := redistest.Must(admin.New(redis, "")).Export("ns:mail", admin.RecordReady, admin.RecordScheduled,
		admin.RecordDead)
	for r, err := range all.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if found[r.ID] || string(r.Payload) != "body of "+r.ID || r.MaxAttempts != 3 {
			t.Errorf("twice, or changed: %+v", r)
		}
		found[r.ID] = true
	}
	redistest.Want(t, "messages", len(found), jobs)
}
