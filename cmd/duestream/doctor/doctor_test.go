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
	"github.com/duestream/duestream/cmd/duestream/doctor"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// patient is a queue that is in order, under a prefix of its own: registered, with a group that has a consumer, and a message scheduled.
type patient struct {
	t      *testing.T
	redis  *bridge.Redis
	config doctor.Config
	keys   lua.Keys
	shared lua.Globals
	alive  chan struct{} // closed: no more heartbeats
}

const queue = "emails"

// sound are the arguments of a server that there is nothing to say of.
var sound = []string{"--appendonly", "yes", "--maxmemory", "1gb"}

func newPatient(t *testing.T, server *redistest.Server) *patient {
	t.Helper()
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	prefix := server.Prefix(t)
	p := &patient{t: t, redis: r, keys: lua.NewKeys(prefix, queue), shared: lua.NewGlobals(prefix), alive: make(chan struct{})}
	p.config = doctor.Config{Redis: r, Prefix: prefix, Settle: 200 * time.Millisecond, FreeWithin: 400 * time.Millisecond, OrphanAge: 500 * time.Millisecond}
	p.heart()
	p.do("HSETNX", p.shared.Queues, queue, "1")
	p.queue(queue)
	return p
}

// heart sends heartbeats as a bridge does, but does no work: what is planted stays.
func (p *patient) heart() {
	beat := func() {
		_ = p.redis.Client.Do(context.Background(), p.redis.Client.B().Zadd().Key(p.shared.Bridges).ScoreMember().ScoreMember(float64(p.now(0)), "bridge").Build()).Error()
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

func (p *patient) stopHeart() {
	close(p.alive)
	redistest.Eventually(p.t, 5*time.Second, func() (bool, string) { // a beat may be under way
		return p.do("DEL", p.shared.Bridges).Error() == nil && p.number("EXISTS", p.shared.Bridges) == 0, "there is a bridge"
	})
}

// queue makes a queue, or a partition, that is in order.
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

// now is the server's clock, and something, in milliseconds.
func (p *patient) now(d time.Duration) int64 {
	clock, err := p.redis.Client.Do(context.Background(), p.redis.Client.B().Time().Build()).AsIntSlice()
	if err != nil {
		return 0
	}
	return clock[0]*1000 + clock[1]/1000 + d.Milliseconds()
}

func (p *patient) in(d time.Duration) string { return strconv.FormatInt(p.now(d), 10) }

// entry adds an entry as old as that.
func (p *patient) entry(k lua.Keys, age time.Duration) string {
	id, err := p.do("XADD", k.Stream, p.in(-age)+"-0", "id", "old", "payload", "x", "attempt", "1").ToString()
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

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

func codes(r doctor.Report) (list []string) {
	for _, f := range r.Findings {
		list = append(list, f.Code)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func retry(group string) string { return "id" + lua.Separator + group + lua.Separator + "1-1" }

type plant struct {
	codes string
	name  string
	do    func(p *patient)
}

// defects are planted one by one, in a queue that is in order.
var defects = []plant{
	{"", "nothing", func(*patient) {}},
	{"", "a queue with partitions", func(p *patient) { p.queue(queue + "/1"); p.do("HSET", p.shared.Queues, queue, "1,2") }},
	{"", "a retry", func(p *patient) {
		p.do("HSET", p.keys.Meta, retry("g"), `{"id":"id","for":"g","attempt":"2"}`)
		p.do("ZADD", p.keys.Due, p.in(time.Hour), retry("g"))
	}},
	{"D201", "no bridge", func(p *patient) { p.stopHeart() }},
	{"D201", "a heartbeat ahead of the clock", func(p *patient) { p.stopHeart(); p.do("ZADD", p.shared.Bridges, p.in(time.Hour), "b") }},
	{"D202", "no token", func(p *patient) { p.do("DEL", p.keys.Wake) }},
	{"D203", "tokens", func(p *patient) { p.do("XADD", p.keys.Wake, "*", "a", "b") }},
	{"D203", "tokens of all queues", func(p *patient) {
		p.do("XADD", p.shared.Wake, "*", "a", "b")
		p.do("XADD", p.shared.Wake, "*", "a", "b")
	}},
	{"D204", "unregistered", func(p *patient) { p.queue("other") }},
	{"D204", "unregistered, with partitions", func(p *patient) { p.queue("other"); p.queue("other/1") }},
	{"D205", "odd counts", func(p *patient) { p.do("HSET", p.shared.Queues, queue, "1,x") }},
	{"D206", "partition beyond", func(p *patient) {
		k := lua.NewKeys(p.config.Prefix, queue+"/3")
		p.do("ZADD", k.Due, p.in(time.Hour), "a")
		p.do("XADD", k.Wake, "*", "due_ms", "1")
	}},
	{"D207", "partition without a group", func(p *patient) {
		p.do("XGROUP", "DESTROY", p.queue(queue+"/1").Stream, "g")
		p.do("HSET", p.shared.Queues, queue, "1,2")
	}},
	{"D208", "partition with other settings", func(p *patient) {
		p.queue(queue + "/1")
		p.do("HSET", p.shared.Queues, queue, "1,2")
		p.do("HSET", p.keys.Policy, "max_attempts", "3")
	}},
	{"D209", "foreign keys", func(p *patient) {
		p.do("SET", p.config.Prefix+":foo", "x")
		p.do("SET", p.config.Prefix+":{emails}:foo", "x")
	}},
	{"D301", "wrong type", func(p *patient) { p.do("SET", p.keys.Seen, "x") }},
	{"D301", "wrong type of the schedule", func(p *patient) { p.do("DEL", p.keys.Payload, p.keys.Meta); p.do("SET", p.keys.Due, "x") }},
	{"D301", "wrong type of the stream", func(p *patient) { p.do("SET", p.keys.Stream, "x") }},
	{"D301", "wrong type of the defaults", func(p *patient) { p.do("SET", p.shared.Defaults, "x") }},
	{"D302", "expiry", func(p *patient) { p.do("EXPIRE", p.keys.Payload, "1000") }},
	{"D302", "expiry of the registry", func(p *patient) { p.do("EXPIRE", p.shared.Queues, "1000") }},
	{"D303", "retry without meta", func(p *patient) { p.do("ZADD", p.keys.Due, p.in(time.Hour), retry("g")) }},
	{"D304", "meta with a number", func(p *patient) { p.do("HSET", p.keys.Meta, "order", `{"max_attempts":5}`) }},
	{"D304", "meta that is no JSON", func(p *patient) { p.do("HSET", p.keys.Meta, "order", `{`) }},
	{"D304", "empty member", func(p *patient) { p.do("ZADD", p.keys.Due, p.in(time.Hour), "") }},
	{"D304", "member that is not UTF-8", func(p *patient) { p.do("ZADD", p.keys.Due, p.in(time.Hour), "\xff") }},
	{"D305", "payload without member", func(p *patient) { p.do("HSET", p.keys.Payload, "orphan", "x") }},
	{"D305", "many metas without member", func(p *patient) {
		args := []string{"HSET", p.keys.Meta}
		for i := range 3000 {
			args = append(args, fmt.Sprint("orphan-", i), `{"a":"b"}`)
		}
		p.do(args...)
	}},
	{"D306", "seconds", func(p *patient) { p.do("ZADD", p.keys.Due, fmt.Sprint(time.Now().Unix()), "a") }},
	{"D307", "never due", func(p *patient) { p.do("ZADD", p.keys.Due, "1e15", "a", "inf", "b") }},
	{"D308", "centuries ahead", func(p *patient) { p.do("ZADD", p.keys.Due, "20000000000000", "a") }},
	{"D309", "overdue", func(p *patient) { p.do("ZADD", p.keys.Due, p.in(-time.Minute), "a") }},
	{"D309", "due since ever", func(p *patient) { p.do("ZADD", p.keys.Due, "-inf", "a") }},
	{"D310", "held", func(p *patient) {
		p.do("HSET", p.keys.Policy, "held", "1")
		p.do("ZADD", p.keys.Due, p.in(-time.Minute), "a")
	}},
	{"D311", "retry for nobody", func(p *patient) {
		p.do("HSET", p.keys.Meta, retry("gone"), `{"id":"id","for":"gone","attempt":"2"}`)
		p.do("ZADD", p.keys.Due, p.in(time.Hour), retry("gone"))
	}},
	{"D401", "no group", func(p *patient) { p.do("XGROUP", "DESTROY", p.keys.Stream, "g"); p.entry(p.keys, 0) }},
	{"D402", "no consumer", func(p *patient) {
		p.do("XGROUP", "DELCONSUMER", p.keys.Stream, "g", "c")
		p.entry(p.keys, 2*time.Minute)
	}},
	{"D404", "far behind", func(p *patient) { p.entry(p.keys, 2*time.Hour) }},
	{"D405", "old pending", func(p *patient) { p.entry(p.keys, 2*time.Hour); p.read(p.keys, "c") }},
	{"D406", "pending without entry", func(p *patient) { id := p.entry(p.keys, 0); p.read(p.keys, "c"); p.do("XDEL", p.keys.Stream, id) }},
	{"D407", "not reclaimed", func(p *patient) {
		p.do("HSET", p.keys.Policy, "visibility_ms", "100")
		redistest.Eventually(p.t, 10*time.Second, func() (bool, string) { // bridges would wait after a start
			_, uptime, _ := strings.Cut(fmt.Sprint(p.do("INFO", "server").ToString()), "uptime_in_seconds:")
			return !strings.HasPrefix(uptime, "0") && !strings.HasPrefix(uptime, "1\r"), "the server has just started"
		})
		id := p.entry(p.keys, 0)
		p.read(p.keys, "c")
		p.do("XCLAIM", p.keys.Stream, "g", "c", "0", id, "IDLE", "600000", "JUSTID")
	}},
	{"D408", "held by the reclaimer", func(p *patient) { p.entry(p.keys, 0); p.read(p.keys, lua.ReclaimConsumer) }},
	{"D409", "idle consumer", func(p *patient) {
		p.entry(p.keys, 0)
		p.read(p.keys, "busy")
		p.config.Idle = 50 * time.Millisecond
		since := time.Now()
		redistest.Eventually(p.t, time.Second, func() (bool, string) { return time.Since(since) > 2*p.config.Idle, "" })
	}},
	{"D410", "not freed", func(p *patient) { id := p.entry(p.keys, 0); p.read(p.keys, "c"); p.do("XACK", p.keys.Stream, "g", id) }},
	{"D410", "not freed behind a pending entry", func(p *patient) {
		p.entry(p.keys, time.Second)
		id := p.entry(p.keys, 0)
		p.read(p.keys, "c")
		p.do("XACK", p.keys.Stream, "g", id)
	}},
	{"D501", "settings out of their limits", func(p *patient) { p.do("HSET", p.keys.Policy, "visibility_ms", "5", "group:g:max_attempts", "many") }},
	{"D501", "longest retry below the shortest", func(p *patient) { p.do("HSET", p.shared.Defaults, "retry_min_ms", "100", "retry_max_ms", "10") }},
	{"D502", "misspelt", func(p *patient) { p.do("HSET", p.keys.Policy, "visibilty_ms", "5000", "group:g:held", "1") }},
	{"D502", "held for all", func(p *patient) { p.do("HSET", p.shared.Defaults, "held", "1") }},
	{"D511", "ended windows", func(p *patient) { p.do("ZADD", p.keys.Seen, p.in(-time.Hour), "a", p.in(time.Hour), "b") }},
	{"D512", "far window", func(p *patient) { p.do("ZADD", p.keys.Seen, p.in(20*365*24*time.Hour), "a") }},
	{"D521", "many dead", func(p *patient) {
		for range 1000 {
			p.do("XADD", p.keys.Dead, "*", "id", "a", "payload", "", "reason", "expired", "dead_ms", "1")
		}
	}},
	{"D522", "old dead", func(p *patient) {
		p.do("XADD", p.keys.Dead, p.in(-8*24*time.Hour), "id", "a", "payload", "", "reason", "expired", "dead_ms", "1")
	}},
	{"D523", "odd dead", func(p *patient) { p.do("XADD", p.keys.Dead, "*", "foo", "bar") }},
	{"D201 D305 D306", "three at once", func(p *patient) {
		p.stopHeart()
		p.do("HSET", p.keys.Payload, "orphan", "x")
		p.do("ZADD", p.keys.Due, fmt.Sprint(time.Now().Unix()), "a")
	}},
}

// Each defect is found by its code, and by no other; and what a repair says that it mends is mended, and nothing else is touched by it.
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

// check examines, repairs, and examines again.
func (p *patient) check(want string) {
	p.t.Helper()
	report := p.examine()
	if got := strings.Join(codes(report), " "); got != want {
		p.t.Fatalf("found %q, want %q: %+v", got, want, report.Findings)
	}
	for _, f := range report.Findings {
		if f.Found == "" || f.Why == "" || f.Do == "" || f.Count == 0 && f.Code != "D201" || strings.Contains(f.Do, "{") && !strings.Contains(f.Do, ":{") {
			p.t.Errorf("%+v", f)
		}
	}
	var mended []string
	err := doctor.Mend(context.Background(), report, func(r doctor.Repair) {
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

// A consumer's idle time can only be had by a clock that is stepped; which is found, too.
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

func (p *patient) heartbeatNow() { p.do("ZADD", p.shared.Bridges, p.in(0), "now") }

// What a server's settings are worth.
func TestDoctorNamesSettingsOfTheServer(t *testing.T) {
	t.Parallel()
	for _, s := range []struct{ code, setting, value string }{
		{"D102", "maxmemory-policy", "allkeys-lru"}, {"D103", "maxmemory", "0"}, {"D105", "appendonly", "no"}, {"D106", "appendfsync", "no"},
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
	t.Run("nearly full", func(t *testing.T) {
		t.Parallel()
		p := newPatient(t, redistest.Own(t, sound...))
		used := p.examine().Servers[0].Used
		p.do("CONFIG", "SET", "maxmemory", strconv.FormatInt(used*105/100, 10))
		if got := codes(p.examine()); !slices.Equal(got, []string{"D104"}) {
			t.Errorf("found %v", got)
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
		p.config.Redis = r
		if got := codes(p.examine()); !slices.Equal(got, []string{"D111"}) {
			t.Errorf("found %v", got)
		}
	})
}

// What was asked for is looked at, and nothing else.
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
	p.config.Queues, p.config.Prefix = []string{"{}"}, "{}"
	if err := p.config.Validate(); !errors.Is(err, bridge.ErrInvalid) {
		t.Error(err)
	}
}

// A quick look says what it leaves out, and still counts.
func TestDoctorSaysWhatAQuickLookLeavesOut(t *testing.T) {
	t.Parallel()
	p := newPatient(t, redistest.Own(t, sound...))
	for i := range 3000 {
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
