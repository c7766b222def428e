package alerts

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
)

// theatre is a running system whose parts can be broken, and a Prometheus that watches it.
type theatre struct {
	*watcher
	server  *redistest.Server
	clock   *redistest.Clock
	redis   *bridge.Redis
	admin   *admin.Admin
	client  *bridge.Client
	metrics *metrics.Metrics // of the producer and of workers in this process
	dir     string           // has the file "exit", with the exit code that the worker's command uses; see exits
	binary  string           // path of the duestream command
	rate    atomic.Int64     // messages per second that the producer schedules
	began   time.Time
	scenes  []time.Time // begin of each scene

	bridges [2]string         // addresses of the bridges' metrics
	worker  string            // address of the worker's metrics
	kills   map[string]func() // kill a process: "bridge 0", "bridge 1" or "worker"
}

// TestStagedOutages runs a real Prometheus beside bridges, a worker and a producer, and breaks one part after another.
// In each scene, exactly the alerts fire that the scene names, and they stop when the part is repaired. Every query of
// the board has a result. The test takes ten minutes; for that, the windows of the rules are shortened to a thirtieth.
// `make staged-alerts OUT=dir` also draws the board's panels.
func TestStagedOutages(t *testing.T) {
	out := os.Getenv("DUESTREAM_STAGED_ALERTS")
	if out == "" {
		t.Log("not asked for: make staged-alerts")
		return
	}
	s := raise(t)
	s.scene("an hour of health", 3600*time.Second/scale)
	s.scene("the worker is killed", 0, "DuestreamConsumerGone",
		does(s.kills["worker"]), does(s.work))
	s.scene("one of two bridges is killed", 10*time.Second, does(func() { s.kills["bridge 0"]() }))
	s.scene("the other bridge, too", 0, "DuestreamNoBridge",
		does(func() { s.kills["bridge 1"]() }), does(func() { s.serve(0); s.serve(1) }))
	s.scene("Redis is full", 0, "DuestreamRedisFull", "DuestreamRedisNearlyFull", does(func() {
		used := s.latest("max(duestream_redis_used_memory_bytes)")
		s.do("CONFIG", "SET", "maxmemory", strconv.Itoa(int(used[0]*0.9)))
	}), does(func() { s.do("CONFIG", "SET", "maxmemory", "100mb") }))
	s.scene("the service behind the handlers is away", 0, "DuestreamHandlersFail",
		does(func() { s.exits(75) }), does(func() { s.exits(0) }))
	s.scene("handlers give messages up", 10*time.Second, "DuestreamDeadLetters",
		does(func() { s.exits(65) }), does(func() { s.exits(0); s.redrive() }))
	s.scene("the worker is slow", 0, "DuestreamLate", "DuestreamBacklogGrows",
		does(func() { s.kills["worker"](); s.worksBy("1", "sleep", "0.2") }),
		does(func() { s.kills["worker"](); s.work() }))
	s.rate.Store(2)
	s.scene("a queue is paused, and an entry of another one is never given back", 0, "DuestreamPausedForgotten", "DuestreamStuck", "DuestreamHeldLong",
		does(func() { s.pause(true); s.hold() }), does(func() { s.pause(false); s.letGo() }))
	release := make(chan struct{})
	s.scene("a handler ignores the end of its time", 0, "DuestreamHandlersAbandoned",
		does(func() { s.hang(release) }), does(func() { close(release) }))
	s.rate.Store(20)
	s.scene("a stream refuses entries, and a key has another type", 0, "DuestreamOverdue", "DuestreamUnreadable",
		does(s.spoil), does(s.mend))
	s.scene("Redis is set to evict", 0, "DuestreamRedisUnsafe",
		does(func() { s.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru") }),
		does(func() { s.do("CONFIG", "SET", "maxmemory-policy", "noeviction") }))
	s.scene("the bridges' user loses its rights", 0, "DuestreamBridgeCutOff",
		does(func() { s.do("ACL", "SETUSER", "serve", "-@all") }),
		does(func() { s.do("ACL", "SETUSER", "serve", "+@all") }))
	s.scene("the clock of Redis is stepped", 0, "DuestreamClock",
		does(func() { s.clock.Step(10 * time.Second) }), does(func() { s.clock.Step(-10 * time.Second) }))
	s.scene("half an hour of health", 1800*time.Second/scale)
	s.look(out)
}

// does is an action of a scene.
type does func()

// raise starts all parts, and waits until Prometheus scrapes all of them and no alert fires.
func raise(t *testing.T) *theatre {
	server, clock := redistest.OwnClock(t, "--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")
	r, err := bridge.Dial(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	m := redistest.Must(metrics.New(metrics.Config{}))
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	producer := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(producer.Close)
	client, err := bridge.NewClient(bridge.ClientConfig{Redis: r, Observer: m, RetryTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	op := redistest.Must(admin.New(r, "")).Observed(m)
	s := &theatre{server: server, clock: clock, redis: r, admin: op, client: client, metrics: m,
		dir:     t.TempDir(),
		bridges: [2]string{freeAddr(t), freeAddr(t)}, worker: freeAddr(t), kills: map[string]func(){}}
	s.watcher = &watcher{t: t}
	s.do("ACL", "SETUSER", "serve", "on", ">secret", "~*", "&*", "+@all")
	s.binary = filepath.Join(s.dir, "duestream")
	if out, err := exec.Command("go", "build", "-o", s.binary, "../../cmd/duestream").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	program := os.Getenv("DUESTREAM_PROMETHEUS")
	if program == "" {
		program = "prometheus"
	}
	text := file(t, rulesPath)
	for _, group := range [][2]string{{"emails", "mailer"}, {"reports", "render"}} {
		if _, err := bridge.CreateGroup(t.Context(), r, "", group[0], group[1]); err != nil {
			t.Fatal(err)
		}
	}
	s.exits(0)
	s.serve(0)
	s.serve(1)
	s.work()
	s.rate.Store(20)
	s.produce()
	s.watcher = watch(t, program, shortened(text), map[string][]string{"duestream": s.bridges[:], "workers": {s.worker},
		"producers": {strings.TrimPrefix(producer.URL, "http://")}})
	redistest.Eventually(t, patience, func() (bool, string) { // a busy machine may need some scrapes
		now, err := s.firing()
		all := s.latest(`count(up == 1) and on () max(duestream_up)`)
		return err == nil && len(now) == 0 && len(all) == 1 && all[0] == 4, fmt.Sprint(now, all, err)
	})
	s.began = time.Now()
	return s
}

// environment returns our environment without settings, because a command refuses unknown ones.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DUESTREAM_") })
}

// serve starts bridge 0 or 1.
func (s *theatre) serve(i int) {
	url := strings.Replace(s.server.URL(), "://", "://serve:secret@", 1)
	s.kills[fmt.Sprint("bridge ", i)] = start(s.t, append(environment(), "DUESTREAM_REDIS_URL="+url,
		"DUESTREAM_METRICS_ADDR="+s.bridges[i], "DUESTREAM_VISIBILITY_TIMEOUT=5s", "DUESTREAM_LOG_LEVEL=error"), s.binary, "serve")
}

// work starts the worker with a command that ends with the exit code in the file "exit".
func (s *theatre) work() {
	s.worksBy("8", "sh", "-c", `read -r code <"$0/exit"; exit "$code"`, s.dir)
}

// worksBy starts the worker with a command of its own.
func (s *theatre) worksBy(concurrency string, command ...string) {
	s.kills["worker"] = start(s.t, append(environment(), "DUESTREAM_REDIS_URL="+s.server.URL(), "DUESTREAM_LOG_LEVEL=error"),
		s.binary, append([]string{"work", "emails", "--group", "mailer", "-n", concurrency, "--metrics", s.worker, "--"},
			command...)...)
}

// exits sets the exit code of the worker's commands. It renames a complete file, so that no command reads half of one.
func (s *theatre) exits(code int) {
	if err := os.WriteFile(filepath.Join(s.dir, "code"), []byte(strconv.Itoa(code)+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(s.dir, "code"), filepath.Join(s.dir, "exit")); err != nil {
		s.t.Fatal(err)
	}
}

// produce schedules messages at the rate until the test ends. It ignores errors, because outages cause them on purpose.
func (s *theatre) produce() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	s.t.Cleanup(func() {
		cancel()
		<-ended
	})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			timer := time.NewTimer(time.Second / time.Duration(s.rate.Load()))
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			_, _ = s.client.Schedule(ctx, "emails", []byte("hello"), bridge.In(200*time.Millisecond))
			if n%100 == 0 { // so that a message is always scheduled
				_, _ = s.client.Schedule(ctx, "emails", []byte("later"), bridge.In(time.Minute))
			}
		}
	}()
}

func (s *theatre) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *theatre) do(words ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	s.must(s.redis.Client.Do(ctx, s.redis.Client.B().Arbitrary(words...).Build()).Error())
}

func (s *theatre) pause(held bool) {
	_, err := s.admin.Pause(s.t.Context(), "emails", held)
	s.must(err)
}

// hold reads an entry of a queue with a visibility timeout of an hour, and neither extends nor acknowledges it.
func (s *theatre) hold() {
	hour := time.Hour
	s.must(s.admin.WritePolicy(s.t.Context(), "reports", "", admin.PolicyUpdate{VisibilityTimeout: &hour}))
	_, err := s.client.Schedule(s.t.Context(), "reports", []byte("x"))
	s.must(err)
	s.do("XREADGROUP", "GROUP", "render", "raw", "COUNT", "1", "BLOCK", "10000", "STREAMS", "duestream:{reports}:stream", ">")
}

// letGo deletes the stream with the entry that hold has read.
func (s *theatre) letGo() { s.do("DEL", "duestream:{reports}:stream") }

// hang runs a worker in this process whose first handler ignores the end of its context until release is closed. The
// next attempt succeeds.
func (s *theatre) hang(release <-chan struct{}) {
	const queue, group = "thumbnails", "resizer"
	var hung atomic.Bool
	w, err := bridge.NewWorker(bridge.WorkerConfig{Redis: s.redis, Queue: queue, Group: group, Observer: s.metrics,
		HandlerTimeout: 300 * time.Millisecond, AbandonAfter: 300 * time.Millisecond,
		Handler: func(context.Context, *bridge.Message) error {
			if !hung.Swap(true) {
				<-release
			}
			return nil
		}})
	s.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		s.must(<-ended)
	})
	_, err = s.client.Schedule(s.t.Context(), queue, []byte("x"))
	s.must(err)
}

// spoil makes two queues that a bridge cannot drain: the stream of "refused" has the highest possible entry ID, so it
// refuses further entries, and the schedule of "odd" is a string.
func (s *theatre) spoil() {
	const stream = "duestream:{refused}:stream"
	s.do("XADD", stream, "18446744073709551615-18446744073709551615", "id", "last")
	_, err := s.client.Schedule(s.t.Context(), "refused", []byte("x"), bridge.In(time.Millisecond))
	s.must(err)
	s.do("HSETNX", "duestream:queues", "odd", "1")
	s.do("SET", "duestream:{odd}:due", "x")
}

// mend deletes the keys of spoil.
func (s *theatre) mend() {
	s.do("DEL", "duestream:{refused}:stream", "duestream:{odd}:due")
}

func (s *theatre) redrive() {
	_, err := s.admin.DeadLetters().RedriveMatching(s.t.Context(), "emails", admin.LetterFilter{}, admin.RedriveOptions{})
	s.must(err)
}

// latest returns the current values of a query.
func (s *theatre) latest(query string) (values []float64) {
	s.t.Helper()
	now := time.Now()
	for _, l := range s.over(query, now, now, time.Second) {
		values = append(values, l.values[0])
	}
	return values
}

// scene breaks a part, waits until the alerts fire, repairs the part, and waits until no alert fires. It fails the test
// if another alert fires. Of parts, each string is the name of an alert; the first action breaks the part, and the
// second repairs it; both may be missing. A scene lasts at least as long as calm, so that alerts which must not fire
// have time to.
func (s *theatre) scene(what string, calm time.Duration, parts ...any) {
	s.t.Helper()
	var want []string
	var acts []does
	for _, part := range parts {
		if act, ok := part.(does); ok {
			acts = append(acts, act)
		} else {
			want = append(want, part.(string))
		}
	}
	slices.Sort(want)
	began, said := time.Now(), map[string]string{} // said: summaries of the alerts that fired in this scene, by name
	s.scenes = append(s.scenes, began)
	if len(acts) > 0 {
		acts[0]()
	}
	end := time.Now().Add(calm)
	redistest.Eventually(s.t, 5*time.Minute+calm, func() (bool, string) {
		now, err := s.firing()
		maps.Copy(said, now)
		missing := slices.ContainsFunc(want, func(name string) bool { return said[name] == "" })
		return err == nil && !missing && time.Now().After(end), fmt.Sprint(what, ": ", said, ", want ", want, err)
	})
	fired := time.Since(began)
	if len(acts) > 1 {
		acts[1]()
	}
	redistest.Eventually(s.t, 5*time.Minute, func() (bool, string) {
		now, err := s.firing()
		maps.Copy(said, now)
		return err == nil && len(now) == 0, fmt.Sprint(what, ": mended, and still: ", now, err)
	})
	s.t.Logf("%d. %s: %.0f s, quiet again after %.0f s", len(s.scenes), what, fired.Seconds(), time.Since(began).Seconds())
	got := map[string]bool{} // alerts that fired, also those between two calls of firing, from the history of Prometheus
	for _, l := range s.over(`ALERTS{alertstate="firing"}`, began, time.Now(), time.Second) {
		got[l.labels["alertname"]] = true
	}
	for name := range said {
		got[name] = true
	}
	names := slices.Sorted(maps.Keys(got))
	if !slices.Equal(names, want) {
		s.t.Errorf("%s: fired %v, want %v", what, names, want)
	}
	for _, name := range names {
		s.t.Logf("  %s: %s", name, said[name])
	}
	if len(names) == 0 {
		s.t.Log("  silent")
	}
}

// look evaluates all queries of the board over the whole run, and fails the test if one has no result. It writes a
// picture of the board to the directory out, unless out is "-".
func (s *theatre) look(out string) {
	const columns = 240
	to := time.Now()
	step := max(to.Sub(s.began)/columns, time.Second).Truncate(100 * time.Millisecond)
	fill := strings.NewReplacer("$job", ".*", "$queue", ".*", "$group", ".*", "$__rate_interval", "10s")
	b, queries := readBoard(s.t), 0
	drawn := map[int][]curve{}
	for _, p := range b.Panels {
		for _, q := range p.Targets {
			queries++
			lines := s.over(fill.Replace(q.Expr), s.began, to, step)
			if len(lines) == 0 {
				s.t.Errorf("%s: %s is empty", p.Title, q.Expr)
			}
			for _, l := range lines {
				drawn[p.ID] = append(drawn[p.ID], curve{legend(q.LegendFormat, l.labels), l.values})
			}
		}
	}
	s.t.Logf("%d queries of the board, none may be empty", queries)
	if out != "-" {
		s.must(os.MkdirAll(out, 0o755))
		var marks []float64
		for _, at := range s.scenes {
			marks = append(marks, float64(at.Sub(s.began))/float64(to.Sub(s.began)))
		}
		s.must(os.WriteFile(filepath.Join(out, "board.svg"), []byte(picture(b, drawn, step, marks)), 0o644))
	}
}
