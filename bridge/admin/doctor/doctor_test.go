package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// patient is a queue for the doctor to examine, under a prefix of its own. The queue is in order: it is registered, has
// a group g with a consumer c, and holds a scheduled message. A bridge seems to be alive, because heart sends
// heartbeats.
type patient struct {
	t      *testing.T
	redis  *bridge.Redis
	config doctor.Config
	keys   lua.Keys
	shared lua.Globals
	alive  chan struct{} // closed = no more heartbeats
}

const queue = "emails"

// sound are the arguments of a server without findings.
var sound = []string{"--appendonly", "yes", "--maxmemory", "1gb"}

func newPatient(t *testing.T, server *redistest.Server) *patient {
	t.Helper()
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	prefix := server.Prefix(t)
	p := &patient{t: t, redis: r, keys: lua.NewKeys(prefix, queue), shared: lua.NewGlobals(prefix),
		alive: make(chan struct{})}
	p.config = doctor.Config{Client: r.Client, Prefix: prefix, Settle: 200 * time.Millisecond,
		FreeWithin: 400 * time.Millisecond, OrphanAge: 500 * time.Millisecond}
	p.heart()
	p.do("HSETNX", p.shared.Queues, queue, "1")
	p.queue(queue)
	return p
}

// heart starts to send heartbeats as a bridge does. No bridge runs that would mend the defects of a test.
func (p *patient) heart() {
	beat := func() {
		_ = p.redis.Client.Do(context.Background(),
			p.redis.Client.B().Zadd().Key(p.shared.Bridges).ScoreMember().
				ScoreMember(float64(p.now(0)), beating).Build()).Error()
	}
	beat()
	ended, done := p.t.Context(), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-ended.Done():
				return
			case <-p.alive:
				return
			case <-tick.C:
				beat()
			}
		}
	}()
	p.t.Cleanup(func() { <-done })
}

// stopHeart ends the heartbeats and removes the last one, so that no bridge seems to be alive.
func (p *patient) stopHeart() {
	close(p.alive)
	redistest.Eventually(p.t, 5*time.Second, func() (bool, string) { // a heartbeat may be in flight
		return p.do("DEL", p.shared.Bridges).Error() == nil && p.number("EXISTS", p.shared.Bridges) == 0, "there is a bridge"
	})
}

// queue creates a queue, or a partition of one, that is in order. It does not register the queue.
func (p *patient) queue(name string) lua.Keys {
	k := lua.NewKeys(p.config.Prefix, name)
	p.do("XGROUP", "CREATE", k.Stream, "g", "0", "MKSTREAM")
	p.do("XGROUP", "CREATECONSUMER", k.Stream, "g", "c")
	p.do("HSET", k.Payload, "order", "x")
	p.do("HSET", k.Meta, "order", `{"h:a":"b","max_attempts":"5"}`)
	p.do("ZADD", k.Due, p.in(time.Hour), "order")
	p.do("XADD", k.Wake, "MAXLEN", "1", "*", "due_ms", "1")
	return k
}

func (p *patient) do(args ...string) rueidis.RedisResult {
	p.t.Helper()
	r := p.redis.Client.Do(context.Background(), p.redis.Client.B().Arbitrary(args...).Build())
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		p.t.Fatalf("%q: %v", args, err)
	}
	return r
}

func (p *patient) number(args ...string) int64 {
	n, _ := p.do(args...).AsInt64()
	return n
}

// now returns the server's time plus d, in Unix milliseconds.
func (p *patient) now(d time.Duration) int64 {
	clock, err := p.redis.Client.Do(context.Background(), p.redis.Client.B().Time().Build()).AsIntSlice()
	if err != nil {
		return 0
	}
	return clock[0]*1000 + clock[1]/1000 + d.Milliseconds()
}

// in returns the score of a message that is due after d.
func (p *patient) in(d time.Duration) string { return strconv.FormatInt(p.now(d), 10) }

// entry adds an entry of the given age to the stream, and returns its ID.
func (p *patient) entry(k lua.Keys, age time.Duration) string {
	id, err := p.do("XADD", k.Stream, p.in(-age)+"-0", "id", "old", "payload", "x", "attempt", "1").ToString()
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

// read delivers all new entries to a consumer of group g, which makes them pending.
func (p *patient) read(k lua.Keys, consumer string) {
	p.do("XREADGROUP", "GROUP", "g", consumer, "STREAMS", k.Stream, ">")
}

func (p *patient) examine() doctor.Report {
	p.t.Helper()
	report, err := doctor.Examine(context.Background(), p.config)
	if err != nil {
		p.t.Fatal(err)
	}
	return report
}

// codes returns the codes of a report's findings, sorted, each once.
func codes(r doctor.Report) (list []string) {
	for _, f := range r.Findings {
		list = append(list, f.Code)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// retry returns the member of the schedule for a retry of message "id" in a group.
func retry(group string) string { return "id" + lua.Separator + group + lua.Separator + "1-1" }

// Each defect is found by its own check, and by no other. A repair mends what it says, and changes nothing else.
func TestDoctorNamesEachDefect(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t, sound...)
	t.Run("planted", func(t *testing.T) {
		for _, d := range defects {
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				p := newPatient(t, server)
				d.do(p)
				p.check(d.codes)
			})
		}
	})
}

// check examines the queue, which must have exactly the wanted codes. Then it repairs the findings, and examines the
// queue again: exactly the findings that have no repair must be left.
func (p *patient) check(want string) {
	p.t.Helper()
	report := p.examine()
	if got := strings.Join(codes(report), " "); got != want {
		p.t.Fatalf("found %q, want %q: %+v", got, want, report.Findings)
	}
	for _, f := range report.Findings {
		// D201 (no bridge) counts nothing. A { in the advice may stand only in a key name, as in
		// duestream:{emails}:due; any other { would be a placeholder that nobody has filled in.
		if f.Found == "" || f.Why == "" || f.Do == "" || f.Count == 0 && f.Code != "D201" || strings.Contains(f.Do, "{") &&
			!strings.Contains(f.Do, ":{") {
			p.t.Errorf("%+v", f)
		}
	}
	var mended []string
	err := report.Mend(context.Background(), func(r doctor.Repair) {
		if r.Did == "" {
			p.t.Errorf("%+v", r)
		}
		mended = append(mended, r.Code)
	})
	if err != nil {
		p.t.Fatal(err)
	}
	var left []string
	for _, c := range doctor.Checks() {
		switch found := slices.Contains(codes(report), c.Code); {
		case found && (c.Mends != "") != slices.Contains(mended, c.Code):
			p.t.Errorf("%s: repaired %v, and says %q", c.Code, mended, c.Mends)
		case found && c.Mends == "":
			left = append(left, c.Code)
		}
	}
	if len(mended) > 0 {
		if report = p.examine(); !slices.Equal(codes(report), left) {
			p.t.Errorf("after the repair: %+v, want %v", report.Findings, left)
		}
	}
}

// D403, a group whose consumers have not read for minutes, needs a consumer with a long idle time. A test gets one only
// by stepping the server's clock, and the doctor reports that clock as well (D112).
func TestDoctorNamesWhatTheClockShows(t *testing.T) {
	t.Parallel()
	server, clock := redistest.OwnClock(t, sound...)
	t.Run("stepped", func(t *testing.T) {
		p := newPatient(t, server)
		p.entry(p.keys, 0)
		clock.Step(10 * time.Minute)
		p.heartbeatNow()
		p.check("D112 D403")
	})
}

// heart is the heartbeat of a live bridge of an old release.
const heart = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

// beating is the heartbeat of a live bridge of this release.
var beating = heart + " web-1 7 v1 p" + strconv.Itoa(lua.Level)

func (p *patient) heartbeatNow() { p.do("ZADD", p.shared.Bridges, p.in(0), beating) }

// The doctor finds unsafe settings of the server.
func TestDoctorNamesSettingsOfTheServer(t *testing.T) {
	t.Parallel()
	for _, s := range []struct{ code, setting, value string }{
		{"D102", "maxmemory-policy", "allkeys-lru"}, {"D103", "maxmemory", "0"}, {"D105", "appendonly", "no"}, {"D106",
			"appendfsync", "no"},
		{"D109", "min-replicas-to-write", "1"},
	} {
		t.Run(s.setting, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, redistest.Own(t, sound...))
			p.do("CONFIG", "SET", s.setting, s.value)
			if got := codes(p.examine()); !slices.Equal(got, []string{s.code}) {
				t.Errorf("found %v, want %s", got, s.code)
			}
		})
	}
	t.Run("functions of another release", func(t *testing.T) {
		t.Parallel()
		p := newPatient(t, redistest.Own(t, sound...))
		other := strings.Replace(admin.FunctionsLibrary("v0.0.1"), admin.FunctionsSource(), "000000000000", -1)
		p.do("FUNCTION", "LOAD", other)
		p.check("D601")
		if _, err := redistest.Must(admin.New(p.redis, "")).LoadFunctions(t.Context(), "", false); err != nil {
			t.Fatal(err)
		}
		p.check("")
	})
	t.Run("nearly full", func(t *testing.T) {
		t.Parallel()
		p := newPatient(t, redistest.Own(t, sound...))
		p.do("SETRANGE", "filler", "50000000", "x") // much more than the connections take, which come and go
		used := p.examine().Servers[0].Used
		p.do("CONFIG", "SET", "maxmemory", strconv.FormatInt(used*105/100, 10))
		if got := codes(p.examine()); !slices.Equal(got, []string{"D104"}) {
			t.Errorf("found %v", got)
		}
		p.do("CONFIG", "SET", "maxmemory", strconv.FormatInt(used/2, 10))
		if got := codes(p.examine()); !slices.Equal(got, []string{"D115"}) {
			t.Errorf("full: found %v", got)
		}
	})
	t.Run("a replica", func(t *testing.T) {
		t.Parallel()
		master := redistest.Own(t, sound...)
		p := newPatient(t, master)
		host, port, _ := strings.Cut(master.Addr(), ":")
		replica := redistest.Own(t, append(sound, "--replicaof", host+" "+port)...)
		r, err := bridge.Dial(t.Context(), replica.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		redistest.Eventually(t, 20*time.Second, func() (bool, string) {
			n, err := r.Client.Do(t.Context(), r.Client.B().Exists().Key(p.keys.Due).Build()).AsInt64()
			return n == 1, fmt.Sprint("not replicated: ", err)
		})
		p.config.Client = r.Client
		if got := codes(p.examine()); !slices.Equal(got, []string{"D111"}) {
			t.Errorf("found %v", got)
		}
	})
}

// The doctor examines the queues of its configuration, and no others. A queue that does not exist is an error. A queue
// that has only settings exists: its settings are examined, and the report says that there are no messages to examine.
func TestDoctorLooksAtTheQueuesItIsGiven(t *testing.T) {
	t.Parallel()
	server := redistest.Own(t, sound...)
	p := newPatient(t, server)
	p.do("ZADD", lua.NewKeys(p.config.Prefix, "other").Due, p.in(-time.Hour), "a")
	p.config.Queues = []string{queue}
	if report := p.examine(); len(report.Findings) > 0 || report.Queues != 1 || report.Partitions != 1 {
		t.Errorf("%+v", report)
	}
	p.do("ZADD", lua.NewKeys(p.config.Prefix, queue+"/255").Due, p.in(time.Hour), "a")
	if got := codes(p.examine()); !slices.Equal(got, []string{"D206"}) {
		t.Errorf("found %v", got)
	}
	p.config.Queues = []string{"none"}
	if _, err := doctor.Examine(t.Context(), p.config); !errors.Is(err, doctor.ErrNoQueue) {
		t.Error(err)
	}
	p.do("HSET", lua.NewKeys(p.config.Prefix, "none").Policy, "visibility_ms", "20000")
	if report := p.examine(); len(report.Findings) > 0 || report.Queues != 1 || report.Partitions != 0 ||
		!strings.Contains(strings.Join(report.LeftOut, ""), "messages of none: it has settings, and nothing else") {
		t.Errorf("%+v", report)
	}
	p.do("HSET", lua.NewKeys(p.config.Prefix, "none").Policy, "max_attempts", "many")
	if got := codes(p.examine()); len(got) != 1 {
		t.Errorf("found %v in invalid settings, want one finding", got)
	}
	p.config.Queues, p.config.Prefix = []string{"{}"}, "{}"
	if err := p.config.Validate(); !errors.Is(err, bridge.ErrInvalid) {
		t.Error(err)
	}
}

// The repair must register as many partitions as a bridge would. Regression: after one ZADD by hand to partition 255 of
// an unregistered queue, the repair registered 256 partitions, which stayed for ever.
func TestDoctorRegistersNoPartitionThatSomebodyMadeUp(t *testing.T) {
	t.Parallel()
	p := newPatient(t, redistest.Own(t, sound...))
	wantRegistered := func(name, want string) {
		t.Helper()
		if got, err := p.do("HGET", p.shared.Queues, name).ToString(); err != nil || got != want {
			t.Errorf("%s is registered as %q, want %q: %v", name, got, want, err)
		}
	}
	p.queue("other")
	p.do("ZADD", lua.NewKeys(p.config.Prefix, "other/255").Due, p.in(time.Hour), "stray")
	p.check("D204 D206")
	wantRegistered("other", "1")
	if n := p.number("ZCARD", lua.NewKeys(p.config.Prefix, "other").Due); n != 2 {
		t.Errorf("%d messages in partition 0", n)
	}
	// Partition 1 was in use, because it has a group and an entry. That partition 0 alone got a second group later must
	// not make it look unused.
	p.queue("lost")
	p.entry(p.queue("lost/1"), 0)
	p.do("XGROUP", "CREATE", lua.NewKeys(p.config.Prefix, "lost").Stream, "later", "0")
	p.check("D204 D207")
	wantRegistered("lost", "1,2")
}

// Regression: the repair let a queue grow that held messages with a key. New messages of the key went to another
// partition, and were delivered beside the old ones. `queue partitions` refuses such a growth.
func TestDoctorGrowsNoQueueWithKeys(t *testing.T) {
	t.Parallel()
	p := newPatient(t, redistest.Own(t, sound...))
	p.entry(lua.NewKeys(p.config.Prefix, queue+"/3"), 0)
	p.do("HSET", p.keys.Meta, "order", `{"key":"customer"}`)
	mend := func() error {
		t.Helper()
		report := p.examine()
		if got := codes(report); !slices.Contains(got, "D206") {
			t.Fatalf("found %v", got)
		}
		return report.Mend(t.Context(), func(doctor.Repair) {})
	}
	registered := func() string {
		t.Helper()
		counts, err := p.do("HGET", p.shared.Queues, queue).ToString()
		if err != nil {
			t.Fatal(err)
		}
		return counts
	}
	if err := mend(); !errors.Is(err, admin.ErrKeyed) {
		t.Error("the repair: ", err)
	}
	redistest.Want(t, "registered", registered(), "1")
	p.do("HDEL", p.keys.Meta, "order")
	if err := mend(); err != nil {
		t.Error("the repair without keys: ", err)
	}
	redistest.Want(t, "registered without keys", registered(), "1,4")
}

// A quick examination does not read every message. It reports what it leaves out, and still finds the defects that
// Redis can count, such as a message that is never due.
func TestDoctorSaysWhatAQuickLookLeavesOut(t *testing.T) {
	t.Parallel()
	p := newPatient(t, redistest.Own(t, sound...))
	for i := range 3000 { // more than a quick examination reads
		id := fmt.Sprint("m", i)
		p.do("ZADD", p.keys.Due, p.in(time.Hour), id)
		p.do("HSET", p.keys.Payload, id, "x")
	}
	if report := p.examine(); len(report.Findings)+len(report.LeftOut) > 0 {
		t.Errorf("%+v", report)
	}
	p.config.Quick = true
	p.do("ZADD", p.keys.Due, "1e15", "never")
	report := p.examine()
	if !slices.Equal(codes(report), []string{"D307"}) || !report.Quick || len(report.LeftOut) != 2 {
		t.Errorf("%+v", report)
	}
}

// Regression: the finding told the age of the oldest letter of the last five minutes.
func TestDoctorTellsTheAgeOfTheNewestLetter(t *testing.T) {
	t.Parallel()
	p := newPatient(t, redistest.Own(t, sound...))
	for _, age := range []time.Duration{4 * time.Minute, 3 * time.Minute, 0} {
		p.do("XADD", p.keys.Dead, p.in(-age), "id", "a", "payload", "", "reason", "expired", "dead_ms", "1")
	}
	report := p.examine()
	for _, f := range report.Findings {
		age, isThis := strings.CutPrefix(f.Found, "3 dead letters, one came ")
		if f.Code == "D524" && isThis && !strings.Contains(age, "m") { // not in minutes
			return
		}
	}
	t.Errorf("the age of the newest letter is missing: %+v", report.Findings)
}
