package pull

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// source is a queue from which a group receives, with its partitions and its policy, as of the last read.
type source struct {
	queue, group string
	lines        []*line // by partition; lines are only added

	mu       sync.Mutex
	policy   policy.Policy
	lastRead time.Time
	expected int64 // bytes of the payloads in the next reply; 0 = no reply has come yet
}

type sourceKey struct{ queue, group string }

// line is one partition of a source, with its waiting callers. Puller.mu guards the fields below keys.
type line struct {
	source    *source
	partition int
	keys      lua.Keys

	news        bool      // there may be entries that the group was not given
	given       string    // ID of the last entry that the group was given
	latest      string    // ID of the last entry that was seen
	recheck     time.Time // when to ask although no new entry was seen
	suspended   bool      // no requests until recheck, because a request failed, or because workers are paused
	unreachable error     // error of the last request if its server could not be reached, else nil
	active      int       // callers with a request in flight
	used        time.Time // when a request last wanted the line
	waiters     []*waiter // sorted by ticket
}

func (s *source) settings() policy.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy
}

func (s *source) visibility() time.Duration { return s.settings().VisibilityTimeout }

// lease is the time in which a delivery must be settled, and the visibility timeout that limits this time.
type lease struct{ within, visibility time.Duration }

func (s *source) lease(r *Request) lease {
	visibility := s.visibility()
	if r.Within == 0 || r.Within > visibility {
		return lease{visibility, visibility}
	}
	return lease{r.Within, visibility}
}

// shortTimeout is the time limit of a call that may fail without harm: because there are other queues to receive from,
// or older settings of the same queue.
const shortTimeout = time.Second

// linesOf returns the lines that a request reads: queues in the order of the request, and the partitions of a queue
// from a random one on. It leaves out queues that cannot be read; failed holds their errors. invalid is set if the
// request itself is wrong.
func (p *Puller) linesOf(ctx context.Context, r *Request) (all []*line, failed, invalid error) {
	var errs []error
	for _, one := range p.sourcesOf(ctx, r) {
		if one.err != nil {
			errs = append(errs, one.err)
			continue
		}
		if err := checkWithin(r.Within, one.source.visibility(), one.source.queue, one.source.group); err != nil {
			return nil, nil, err
		}
		all = append(all, p.rotated(one.source)...)
	}
	return all, joined(errs), nil
}

// joined is errors.Join, except that it keeps only the last temporary error, because in an outage all are alike.
func joined(errs []error) error {
	var temporary error
	lasting := slices.DeleteFunc(errs, func(err error) bool {
		if lua.Temporary(err) {
			temporary = err
		}
		return lua.Temporary(err)
	})
	return errors.Join(append(lasting, temporary)...)
}

// sourceResult is the result of looking up one queue.
type sourceResult struct {
	source *source
	err    error
}

// sourcesOf looks up all queues of a request, and returns them in the order of the request. It looks them up
// concurrently, so that a queue that does not answer delays no other.
func (p *Puller) sourcesOf(ctx context.Context, r *Request) []sourceResult {
	queues := r.order()
	all := make([]sourceResult, len(queues))
	timeout := loop.CallTimeout
	if len(queues) > 1 {
		timeout = shortTimeout
	}
	var looks sync.WaitGroup
	for i, queue := range queues {
		if s := p.known(queue, r.Group); s != nil && s.isFresh() {
			all[i].source = s
			continue
		}
		looks.Go(func() { all[i].source, all[i].err = p.lookUp(ctx, queue, r.Group, timeout) })
	}
	looks.Wait()
	for i, queue := range queues {
		p.logFailure(queue, r.Group, all[i].err)
	}
	return all
}

// checkWithin returns an error if the time of a delivery is longer than the visibility timeout.
func checkWithin(within, visibility time.Duration, queue, group string) error {
	if within > visibility {
		return lua.Invalid("within", within.String(),
			"must be at most %s, the visibility timeout of group %s of queue %s", visibility, group, queue)
	}
	return nil
}

const maxFailing = 1000 // queues with a logged error that are remembered

// logFailure logs once that a queue cannot be read, and once that it can be read again. A nil error means that it can.
func (p *Puller) logFailure(queue, group string, err error) {
	text, key := "", sourceKey{queue, group}
	if err != nil {
		text = err.Error()
	}
	p.mu.Lock()
	lastText, wasFailing := p.failing[key]
	delete(p.failing, key)
	if text != "" && len(p.failing) < maxFailing {
		p.failing[key] = text
	}
	p.mu.Unlock()
	switch {
	case text == "" && wasFailing:
		p.cfg.Logger.Info("a queue can be received from again",
			slog.String("queue", queue), slog.String("group", group))
	case text != lastText && !lua.Temporary(err): // the reader of new entries logs an outage
		p.cfg.Logger.Warn("a queue cannot be received from", slog.String("queue", queue), slog.String("group", group),
			slog.Any("error", err))
	}
}

func (p *Puller) known(queue, group string) *source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sources[sourceKey{queue, group}]
}

// policyOf returns the policy by which a delivery is settled. If nobody receives from the queue through this Puller,
// the policy is read each time, and the queue is neither remembered nor registered: its name comes from a token, and
// may be made up.
func (p *Puller) policyOf(ctx context.Context, queue, group string) (policy.Policy, error) {
	s := p.known(queue, group)
	if s == nil {
		ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		rules, _, err := policy.Read(ctx, p.cfg.Client, p.cfg.Prefix, queue, group)
		return rules, err
	}
	if !s.isFresh() {
		var err error
		if s, err = p.lookUp(ctx, queue, group, loop.CallTimeout); err != nil {
			return policy.Policy{}, err
		}
	}
	return s.settings(), nil
}

// lookUp reads the settings and partitions of a queue. If the server of the settings cannot be reached, the settings
// and partitions of the last read stay in force, because the partitions of the queue may be on other servers.
func (p *Puller) lookUp(ctx context.Context, queue, group string, timeout time.Duration) (*source, error) {
	known := p.known(queue, group)
	if known != nil {
		timeout = shortTimeout
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, err := p.readSource(limited, known == nil, queue, group)
	if known != nil && ctx.Err() == nil && lua.Temporary(err) {
		known.refresh()
		return known, nil
	}
	return s, err
}

// refresh extends the validity of the last read by another policy.RefreshInterval.
func (s *source) refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastRead = time.Now()
}

// readSource reads the settings and partitions of a queue into its source. It registers a new queue.
func (p *Puller) readSource(ctx context.Context, isNew bool, queue, group string) (*source, error) {
	rules, _, err := policy.Read(ctx, p.cfg.Client, p.cfg.Prefix, queue, group)
	if err != nil {
		return nil, err
	}
	globals := lua.NewGlobals(p.cfg.Prefix)
	counts, err := lua.ReadCounts(ctx, p.cfg.Client, globals, queue)
	if err != nil {
		return nil, err
	}
	if isNew {
		if _, err := lua.Register(ctx, p.cfg.Client, globals, []string{queue}); err != nil {
			return nil, err
		}
	}
	key := sourceKey{queue, group}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sources[key]
	if s == nil {
		s = &source{queue: queue, group: group}
		p.sources[key] = s
	}
	if known := len(s.lines); 0 < known && known < counts.Latest() {
		for _, w := range s.lines[0].waiters { // wake them, so that they add the new partitions
			loop.Poke(w.wake)
		}
	}
	for i := len(s.lines); i < counts.Latest(); i++ {
		l := &line{source: s, partition: i, news: true, used: time.Now(),
			keys: lua.NewKeys(p.cfg.Prefix, lua.PartitionName(queue, i)).As(lua.Actor(lua.ActorWorker))}
		s.lines = append(s.lines, l)
		p.streams[l.keys.Stream] = append(p.streams[l.keys.Stream], l)
	}
	s.mu.Lock()
	s.policy, s.lastRead = rules, time.Now()
	s.mu.Unlock()
	return s, nil
}

func (s *source) isFresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.lastRead) < policy.RefreshInterval
}
