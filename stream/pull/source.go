package pull

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// source is a queue as read by a group: its partitions and its policy, as of the last read.
type source struct {
	queue, group string
	lines        []*line // by partition; only growing

	mu     sync.Mutex
	policy stream.Policy
	read   time.Time
}

type sourceKey struct{ queue, group string }

// line is one partition of a source, with its waiting callers. Puller.mu guards the fields below keys.
type line struct {
	source    *source
	partition int
	keys      lua.Keys

	news    bool      // there may be new entries
	at      string    // last entry that the group was given
	latest  string    // last entry that was seen
	recheck time.Time // when to ask although nothing was seen
	rests   bool      // no requests until recheck: it failed, or workers are paused
	away    error     // error of the last request if its server could not be reached; nil = it could
	active  int       // callers with a request in flight
	used    time.Time
	waiters []*waiter // sorted by ticket
}

func (s *source) settings() stream.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy
}

func (s *source) visibility() time.Duration { return s.settings().VisibilityTimeout }

// lease is the time in which a delivery is to be done, and the visibility timeout from which it was computed.
type lease struct{ within, visibility time.Duration }

func (s *source) lease(r *Request) lease {
	visibility := s.visibility()
	if r.Within == 0 || r.Within > visibility {
		return lease{visibility, visibility}
	}
	return lease{r.Within, visibility}
}

// lookWait is the time limit of a look for a queue's settings if there are other queues to receive from, or older
// settings of the same queue. Giving up does no harm.
const lookWait = time.Second

// linesOf returns the partitions that a request reads, in its order. The partitions of a queue begin at a random one.
// It leaves out queues that cannot be read; failed is their errors. invalid is set if the request itself is wrong.
func (p *Puller) linesOf(ctx context.Context, r *Request) (all []*line, failed, invalid error) {
	var errs []error
	for _, one := range p.sourcesOf(ctx, r) {
		if one.err != nil {
			errs = append(errs, one.err)
			continue
		}
		if err := allows(r.Within, one.source.visibility(), one.source.queue, one.source.group); err != nil {
			return nil, nil, err
		}
		all = append(all, p.rotated(one.source)...)
	}
	return all, joined(errs), nil
}

// joined is errors.Join, except that one temporary error stands for all: in an outage all say the same.
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

// looked is the result of a look for one queue.
type looked struct {
	source *source
	err    error
}

// sourcesOf looks up all queues of a request, in its order and concurrently: one that does not answer delays no other.
func (p *Puller) sourcesOf(ctx context.Context, r *Request) []looked {
	queues := r.order()
	all := make([]looked, len(queues))
	wait := loop.CallTimeout
	if len(queues) > 1 {
		wait = lookWait
	}
	var looks sync.WaitGroup
	for i, queue := range queues {
		if s := p.known(queue, r.Group); s != nil && s.isFresh() {
			all[i].source = s
			continue
		}
		looks.Go(func() { all[i].source, all[i].err = p.look(ctx, queue, r.Group, wait) })
	}
	looks.Wait()
	for i, queue := range queues {
		p.tell(queue, r.Group, all[i].err)
	}
	return all
}

// allows returns an error if a delivery may not be given for this long.
func allows(within, visibility time.Duration, queue, group string) error {
	if within > visibility {
		return lua.Invalid("within", within.String(), "must be at most %s, the visibility timeout of group %s of queue %s",
			visibility, group, queue)
	}
	return nil
}

const mostFailing = 1000 // queues with a logged error

// tell logs once that a queue cannot be read, and once that it can be read again.
func (p *Puller) tell(queue, group string, err error) {
	said, key := "", sourceKey{queue, group}
	if err != nil {
		said = err.Error()
	}
	p.mu.Lock()
	before, known := p.failing[key]
	delete(p.failing, key)
	if said != "" && len(p.failing) < mostFailing {
		p.failing[key] = said
	}
	p.mu.Unlock()
	switch {
	case said == "" && known:
		p.cfg.Logger.Info("a queue can be received from again", slog.String("queue", queue), slog.String("group", group))
	case said != before && !lua.Temporary(err): // the blocked reads report an outage
		p.cfg.Logger.Warn("a queue cannot be received from", slog.String("queue", queue), slog.String("group", group),
			slog.Any("error", err))
	}
}

func (p *Puller) known(queue, group string) *source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sources[sourceKey{queue, group}]
}

// policyOf returns the policy by which a delivery is settled. If nobody receives from the queue here, its policy is
// read each time, and the queue is neither kept nor registered: its name comes from a token, and may be made up.
func (p *Puller) policyOf(ctx context.Context, queue, group string) (stream.Policy, error) {
	s := p.known(queue, group)
	if s == nil {
		ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
		defer cancel()
		policy, _, err := stream.ReadPolicy(ctx, p.cfg.Client, p.cfg.Prefix, queue, group)
		return policy, err
	}
	if !s.isFresh() {
		var err error
		if s, err = p.look(ctx, queue, group, loop.CallTimeout); err != nil {
			return stream.Policy{}, err
		}
	}
	return s.settings(), nil
}

// look reads the settings and partitions of a queue. If that server cannot be reached, the last ones stay in force: the
// partitions of the queue may be on other servers.
func (p *Puller) look(ctx context.Context, queue, group string, wait time.Duration) (*source, error) {
	before := p.known(queue, group)
	if before != nil {
		wait = lookWait
	}
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s, err := p.read(limited, before, queue, group)
	if before != nil && ctx.Err() == nil && lua.Temporary(err) {
		before.keep()
		return before, nil
	}
	return s, err
}

// keep extends the validity of the last read by another stream.PolicyInterval.
func (s *source) keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = time.Now()
}

func (p *Puller) read(ctx context.Context, s *source, queue, group string) (*source, error) {
	policy, _, err := stream.ReadPolicy(ctx, p.cfg.Client, p.cfg.Prefix, queue, group)
	if err != nil {
		return nil, err
	}
	globals := lua.NewGlobals(p.cfg.Prefix)
	counts, err := lua.ReadCounts(ctx, p.cfg.Client, globals, queue)
	if err != nil {
		return nil, err
	}
	if s == nil {
		if _, err := lua.Register(ctx, p.cfg.Client, globals, []string{queue}); err != nil {
			return nil, err
		}
	}
	key := sourceKey{queue, group}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s = p.sources[key]; s == nil {
		s = &source{queue: queue, group: group}
		p.sources[key] = s
	}
	if grown := len(s.lines); 0 < grown && grown < counts.Latest() {
		for _, w := range s.lines[0].waiters { // they take up the new partitions
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
	s.policy, s.read = policy, time.Now()
	s.mu.Unlock()
	return s, nil
}

func (s *source) isFresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.read) < stream.PolicyInterval
}
