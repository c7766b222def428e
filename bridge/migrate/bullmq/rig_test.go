package bullmq

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// old is a Redis in which a test writes jobs in the form of BullMQ, in the queue mail. duestream, to which the jobs are
// moved, uses the same Redis. (integration/bullmq moves jobs of the real BullMQ.)
type old struct {
	t   *testing.T
	c   rueidis.Client
	op  *admin.Admin
	now time.Time
}

func newOld(t *testing.T) *old {
	t.Helper()
	s := redistest.Own(t)
	r, err := bridge.Dial(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &old{t: t, c: s.Client(t), op: redistest.Must(admin.New(r, "")), now: time.Now().Truncate(time.Millisecond)}
}

func (o *old) do(words ...string) rueidis.RedisResult {
	o.t.Helper()
	answer := o.c.Do(o.t.Context(), o.c.B().Arbitrary(words...).Build())
	if err := answer.Error(); err != nil && !rueidis.IsRedisNil(err) {
		o.t.Fatal(words[0], " ", err)
	}
	return answer
}

func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// job writes the hash of a job that was added a minute ago. fields are further fields and values.
func (o *old) job(id, opts string, fields ...string) {
	o.t.Helper()
	o.do(append([]string{"HSET", "bull:mail:" + id, "name", "send", "data", `{"id":"` + id + `"}`, "opts", opts,
		"timestamp", millis(o.now.Add(-time.Minute)), "delay", "0", "priority", "0"}, fields...)...)
}

func (o *old) wait(id string) { o.do("LPUSH", "bull:mail:wait", id) }

func (o *old) delay(id string, due time.Time) {
	o.do("ZADD", "bull:mail:delayed", strconv.FormatInt(due.UnixMilli()*4096+7, 10), id)
}

// move moves the jobs, and returns the tally of the queue mail and the errors of refused jobs, by ID.
func (o *old) move(options Options, remove bool) (migrate.Tally, map[string]error) {
	o.t.Helper()
	from, err := New(o.t.Context(), o.c, options)
	if err != nil {
		o.t.Fatal(err)
	}
	refused := map[string]error{}
	all, err := migrate.Move(o.t.Context(), migrate.Config{From: from, To: o.op, Window: time.Hour, Remove: remove,
		Refused: func(_, id string, err error) { refused[id[:len(id)-len("@")-len(markOfTest(id))]] = err }})
	if err != nil {
		o.t.Fatal(err)
	}
	for _, tally := range all {
		if tally.Source == "mail" {
			return tally, refused
		}
	}
	return migrate.Tally{}, refused
}

func markOfTest(visited string) string {
	_, mark := idOf(visited)
	return mark
}

// holds returns what the queue mail of duestream has, by the ID of the job.
func (o *old) holds() map[string]admin.Record {
	o.t.Helper()
	found := map[string]admin.Record{}
	kinds := []admin.RecordKind{admin.RecordReady, admin.RecordScheduled, admin.RecordDead, admin.RecordRecurrence}
	for r, err := range o.op.Export("mail", kinds...).Records(o.t.Context()) {
		if err != nil {
			o.t.Fatal(err)
		}
		id, _ := idOf(r.ID)
		if r.Kind != admin.RecordRecurrence {
			id = id[len("bull:mail:"):]
		}
		if _, twice := found[id]; twice {
			o.t.Errorf("%s is there twice", id)
		}
		found[id] = r
	}
	return found
}

// left returns the keys of BullMQ that are left.
func (o *old) left() string {
	o.t.Helper()
	var keys []string
	err := migrate.Keys(context.Background(), o.c, "bull:*", func(key string) { keys = append(keys, key) })
	if err != nil {
		o.t.Fatal(err)
	}
	return fmt.Sprint(keys)
}
