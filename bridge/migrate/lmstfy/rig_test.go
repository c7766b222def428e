package lmstfy

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/migrate"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// old is a Redis in which a test writes jobs in the form of an lmstfy server. duestream, to which the jobs are moved,
// uses the same Redis with its default prefix. (TestARealServerIsMoved reads the jobs of a real server.)
type old struct {
	t  *testing.T
	c  rueidis.Client
	op *admin.Admin // of duestream
}

func newOld(t *testing.T) *old {
	t.Helper()
	s := redistest.Own(t)
	r, err := bridge.Dial(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &old{t: t, c: s.Client(t), op: redistest.Must(admin.New(r, ""))}
}

func (o *old) do(words ...string) rueidis.RedisResult {
	o.t.Helper()
	answer := o.c.Do(o.t.Context(), o.c.B().Arbitrary(words...).Build())
	if err := answer.Error(); err != nil && !rueidis.IsRedisNil(err) {
		o.t.Fatal(words[0], " ", err)
	}
	return answer
}

func (o *old) int(words ...string) int64 {
	o.t.Helper()
	n, err := o.do(words...).AsInt64()
	if err != nil {
		o.t.Fatal(err)
	}
	return n
}

// job is a job that a test writes.
type job struct {
	queue      queueID
	id         string
	body       string
	attributes map[string]string // if not nil, the ID has the version mark
	ttl        time.Duration
}

// jobID returns an ID as lmstfy's server makes it. version is "1", or "" for a job without attributes.
func jobID(published time.Time, delay time.Duration, version string) string {
	id := ulid.MustNew(ulid.Timestamp(published), rand.Reader)
	binary.LittleEndian.PutUint32(id[12:], uint32(delay/time.Second))
	return version + id.String()
}

// pool stores the key with the body of a job. In lmstfy's server, the other structures hold only the IDs of jobs.
func (o *old) pool(j job) {
	o.t.Helper()
	value := j.body
	if j.attributes != nil {
		text, _ := json.Marshal(map[string]any{"body": []byte(j.body), "attributes": j.attributes})
		value = string(text)
	}
	words := []string{"SET", j.queue.key("j") + "/" + j.id, value}
	if j.ttl > 0 {
		words = append(words, "EX", strconv.Itoa(int(j.ttl/time.Second)))
	}
	o.do(words...)
}

// u16 returns a number in two bytes, as lmstfy packs it.
func u16(n int) string { return string(binary.LittleEndian.AppendUint16(nil, uint16(n))) }

// timerMember returns the member of a job in the sorted set timer_set.
func timerMember(queue queueID, id string, tries int) string {
	return u16(len(queue.namespace)) + queue.namespace + u16(len(queue.name)) + queue.name + u16(tries) + u16(len(id)) + id
}

// listElement returns the element of a job in a list of ready or of dead jobs.
func listElement(id string, tries int) string { return u16(tries) + u16(len(id)) + id }

// ready adds a job to the list of ready jobs of its queue.
func (o *old) ready(j job, tries int) {
	o.t.Helper()
	o.do("LPUSH", j.queue.key("q"), listElement(j.id, tries))
}

// timed adds a job to timer_set, which holds delayed jobs and jobs that a consumer has.
func (o *old) timed(j job, tries int, at time.Time) {
	o.t.Helper()
	o.do("ZADD", "timer_set", strconv.FormatInt(at.Unix(), 10), timerMember(j.queue, j.id, tries))
}

// dead adds a job to the list of dead jobs of its queue.
func (o *old) dead(j job) {
	o.t.Helper()
	o.do("LPUSH", j.queue.key("d"), listElement(j.id, 1))
}

// tally is the sum of the tallies of all queues.
type tally struct{ Ready, Delayed, InFlight, Dead, Stray, Known, Refused, Removed int64 }

func (t tally) moved() int64 { return t.Ready + t.Delayed + t.InFlight + t.Dead + t.Stray }

// move runs Move. Each function of with changes the configuration.
func (o *old) move(with ...func(*migrate.Config)) (sum tally) {
	o.t.Helper()
	cfg := migrate.Config{From: redistest.Must(New(o.t.Context(), o.c, Options{})), To: o.op, Window: time.Hour}
	for _, set := range with {
		set(&cfg)
	}
	all, err := migrate.Move(o.t.Context(), cfg)
	if err != nil {
		o.t.Fatal(err)
	}
	moved := int64(0)
	for _, q := range all {
		moved += q.Moved
		sum.Ready, sum.Delayed = sum.Ready+q.States[Ready], sum.Delayed+q.States[Delayed]
		sum.InFlight, sum.Dead = sum.InFlight+q.States[InFlight], sum.Dead+q.States[Dead]
		sum.Stray, sum.Known = sum.Stray+q.States[Stray], sum.Known+q.Known
		sum.Refused, sum.Removed = sum.Refused+q.Refused, sum.Removed+q.Removed
	}
	redistest.Want(o.t, "moved in all states", sum.moved(), moved)
	return sum
}

// removing makes Move remove the jobs that are in duestream from lmstfy.
func removing(cfg *migrate.Config) { cfg.Remove = true }

// dry makes Move count alone.
func dry(cfg *migrate.Config) { cfg.To = nil }

// only makes Move take the jobs of one namespace, or of one queue; "" = of all.
func only(namespace, queue string) func(*migrate.Config) {
	return func(cfg *migrate.Config) {
		var o Options
		if namespace != "" {
			o.Namespaces = []string{namespace}
		}
		if queue != "" {
			o.Queues = []string{queue}
		}
		cfg.From.(*Source).options = o
	}
}

// holds returns all messages and dead letters of a queue of duestream, by ID.
func (o *old) holds(queue string) map[string]admin.Record {
	o.t.Helper()
	found := map[string]admin.Record{}
	all := o.op.Export(queue, admin.RecordReady, admin.RecordScheduled, admin.RecordDead)
	for r, err := range all.Records(o.t.Context()) {
		if err != nil {
			o.t.Fatal(err)
		}
		if _, twice := found[r.ID]; twice {
			o.t.Errorf("%s is there twice", r.ID)
		}
		found[r.ID] = r
	}
	return found
}
