package crashpoint

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// restTimeout is the time limit to come to rest. It is generous, because the machine may be busy.
const restTimeout = 60 * time.Second

// rig is duestream without faults, on a server of the test: the surroundings of the component under test.
type rig struct {
	testing.TB
	server *redistest.Server
	redis  *bridge.Redis
	prefix string
}

func newRig(t *testing.T) *rig {
	server := redistest.Own(t)
	r, err := bridge.Dial(context.Background(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for _, name := range scriptNames() { // otherwise only the first run would send their source
		if err := r.Client.Do(context.Background(),
			r.Client.B().ScriptLoad().Script(lua.Source(name)).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	return &rig{TB: t, server: server, redis: r, prefix: server.Prefix(t)}
}

// of returns the rig for a subtest.
func (r *rig) of(t testing.TB) *rig {
	own := *r
	own.TB = t
	return &own
}

// operator returns an operator's handle on the queues of a prefix.
func operator(redis *bridge.Redis, prefix string) *admin.Admin {
	return redistest.Must(admin.New(redis, prefix))
}

// bridge runs a bridge until it is stopped or the test ends.
func (r *rig) bridge(redis *bridge.Redis) *process {
	b, err := bridge.NewBridge(bridge.Config{Redis: redis, Prefix: r.prefix, AnyServer: true, Defaults: bridge.Policy{
		VisibilityTimeout: time.Second, MaxAttempts: 10, RetryMin: 10 * time.Millisecond, RetryMax: 20 * time.Millisecond,
	}})
	if err != nil {
		r.Fatal(err)
	}
	return start(r, b.Run)
}

// process is a running component that can be stopped and waited for.
type process struct {
	r      *rig
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func start(r *rig, run func(context.Context) error) *process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{r: r, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = run(ctx)
	}()
	r.Cleanup(func() { p.stop() })
	return p
}

func (p *process) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop stops the process, and returns the error of Run.
func (p *process) stop() error {
	p.r.Helper()
	p.cancel()
	select {
	case <-p.done:
	case <-time.After(restTimeout):
		p.r.Error("a component does not stop")
	}
	return p.err
}

// anyIDPayload is a payload that a message with any ID may have: a message that got its ID from the client, or a dead
// letter that an operator edited. All other payloads follow from their IDs, see body.
const anyIDPayload = "edited"

// load is a queue with a ledger of sent messages and deliveries.
type load struct {
	*rig
	queue  string
	k      lua.Keys
	ledger redistest.Ledger
	dead   []string // expected dead letters, as "group/id reason"

	mu    sync.Mutex
	calls map[address]int // calls of handlers
	most  map[address]int // highest attempt seen
	odd   []string        // wrong payloads, as texts of errors
}

func (r *rig) load(t testing.TB) *load {
	queue := redistest.Queue(t)
	return &load{rig: r.of(t), queue: queue, k: lua.NewKeys(r.prefix, queue), calls: map[address]int{}, most: map[address]int{}}
}

func (l *load) ctx() context.Context { return context.Background() }

func (l *load) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func (l *load) groups(names ...string) {
	for _, name := range names {
		_, err := bridge.CreateGroup(l.ctx(), l.redis, l.prefix, l.queue, name)
		l.must(err)
	}
}

// setLongVisibility sets a visibility timeout that is longer than a test, for a group, or for the whole queue (""). So
// messages that the test itself reads stay where they are, even on a busy machine.
func (l *load) setLongVisibility(group string) {
	l.Helper()
	visibility := time.Minute
	l.must(operator(l.redis, l.prefix).WritePolicy(l.ctx(), l.queue, group,
		admin.PolicyUpdate{VisibilityTimeout: &visibility}))
}

// message returns a message whose content follows from its ID.
func message(id string, delay time.Duration) bridge.NewMessage {
	return bridge.NewMessage{ID: id, Payload: []byte(body(id)), Headers: map[string]string{"of": id}, Delay: delay}
}

// send schedules messages with a client that is not under test.
func (l *load) send(messages ...bridge.NewMessage) {
	l.Helper()
	c, err := bridge.NewClient(bridge.ClientConfig{Redis: l.redis, Prefix: l.prefix})
	l.must(err)
	defer c.Close()
	results, err := c.ScheduleBatch(l.ctx(), l.queue, messages)
	l.must(err)
	for _, r := range results {
		l.must(r.Err)
		l.ledger.Sent(r.ID, r.Due.UnixMilli())
	}
}

// got records a delivery in the ledger.
func (l *load) got(group string, m *bridge.Message) {
	l.ledger.Delivered(group, m.ID, lua.EntryTime(m.EntryID).UnixMilli(), m.Due.UnixMilli())
	l.mu.Lock()
	defer l.mu.Unlock()
	at := address{group, m.ID}
	l.calls[at]++
	l.most[at] = max(l.most[at], m.Attempt)
	if string(m.Payload) != body(m.ID) && string(m.Payload) != anyIDPayload {
		l.odd = append(l.odd, fmt.Sprintf("%s came with payload %q", at, m.Payload))
	}
}

func (l *load) count(group, id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[address{group, id}]
}

// worker runs a worker that records its deliveries in the ledger. A worker that will die gets no time to stop.
func (l *load) worker(redis *bridge.Redis, group string, m mode, handle bridge.Handler) *process {
	l.Helper()
	grace := 20 * time.Second
	if m == dies {
		grace = 20 * time.Millisecond
	}
	w, err := bridge.NewWorker(bridge.WorkerConfig{
		Redis: redis, Prefix: l.prefix, Queue: l.queue, Group: group, ShutdownTimeout: -1, CancelGrace: grace,
		Handler: func(ctx context.Context, m *bridge.Message) error {
			l.got(group, m)
			if handle == nil {
				return nil
			}
			return handle(ctx, m)
		},
	})
	l.must(err)
	return start(l.rig, w.Run)
}

func (l *load) do(words ...string) rueidis.RedisResult {
	c := l.redis.Client
	return c.Do(l.ctx(), c.B().Arbitrary(words[0]).Args(words[1:]...).Build())
}

func (l *load) number(words ...string) int64 {
	n, _ := l.do(words...).AsInt64()
	return n
}

func (l *load) pending(group string) int64 {
	return pendingOf(l.do("XPENDING", l.k.Stream, group))
}

func pendingOf(reply rueidis.RedisResult) int64 {
	cells, err := reply.ToArray()
	if err != nil || len(cells) == 0 {
		return 0
	}
	n, _ := cells[0].AsInt64()
	return n
}

// empty reports whether the queue holds only dead letters.
func (l *load) empty(groups ...string) (bool, string) {
	c, left := l.redis.Client, ""
	asked := rueidis.Commands{
		c.B().Zcard().Key(l.k.Due).Build(), c.B().Hlen().Key(l.k.Payload).Build(), c.B().Hlen().Key(l.k.Meta).Build(),
		c.B().Xlen().Key(l.k.Stream).Build(),
	}
	for _, group := range groups {
		asked = append(asked, c.B().Xpending().Key(l.k.Stream).Group(group).Build())
	}
	for i, reply := range c.DoMulti(l.ctx(), asked...) { // one round trip, because many tests ask all the time
		if i > 3 {
			if n := pendingOf(reply); n > 0 {
				left += fmt.Sprintf("%d pending in %s; ", n, groups[i-4])
			}
		} else if n, _ := reply.AsInt64(); n > 0 {
			left += fmt.Sprintf("%d %s left; ", n, []string{"members", "payloads", "metas", "entries"}[i])
		}
	}
	return left == "", left
}

// rest waits until every group has all messages and nothing is left, and compares the result with what was sent.
func (l *load) rest(groups ...string) redistest.Result {
	l.Helper()
	redistest.Eventually(l, restTimeout, func() (bool, string) {
		if r := l.ledger.Summary(groups...); r.Lost > 0 {
			why := r.String()
			for _, group := range groups {
				why += fmt.Sprintf(", missing in %s: %v", group, l.ledger.Missing(group, 5))
			}
			return false, why
		}
		return l.empty(groups...)
	})
	dead := l.deadLetters()
	slices.Sort(l.dead)
	if !slices.Equal(dead, l.dead) {
		l.Errorf("dead letters are\n  %s\nand must be\n  %s", strings.Join(dead, "\n  "), strings.Join(l.dead, "\n  "))
	}
	l.mu.Lock()
	for _, odd := range l.odd {
		l.Error(odd)
	}
	l.mu.Unlock()
	return l.ledger.Check(l, groups...)
}

// deadLetters returns the dead letters as "group/id reason".
func (l *load) deadLetters() []string {
	var list []string
	for letter, err := range operator(l.redis, l.prefix).DeadLetters().List(l.ctx(), l.queue, admin.LetterFilter{}) {
		l.must(err)
		list = append(list, fmt.Sprintf("%s/%s %s", letter.Group, letter.ID, letter.Reason))
	}
	slices.Sort(list)
	return list
}

func (l *load) until(condition func() (bool, string)) {
	l.Helper()
	redistest.Eventually(l, restTimeout, condition)
}

// checkAttempts checks that no handler saw a higher attempt than failures explain. natural has the highest attempt by
// "group/id", if it is above 1. In group a, a process that died may have used up burnt more.
func (l *load) checkAttempts(natural map[string]int, burnt int) {
	l.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, attempt := range l.most {
		may := max(1, natural[at.String()])
		if at.group == "a" {
			may += burnt
		}
		if attempt > may {
			l.Errorf("%s came with attempt %d, and at most %d is accounted for", at, attempt, may)
		}
	}
}

// checkCalls compares the number of handler calls with the expected number: that in natural by "group/id", otherwise 1.
func (l *load) checkCalls(natural map[string]int) {
	l.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, n := range l.calls {
		if must := max(1, natural[at.String()]); n != must {
			l.Errorf("%s came %d times, and must %d times", at, n, must)
		}
	}
}
