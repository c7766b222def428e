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

// source is a queue as a group reads it: its partitions and its policy, as they were read last.
type source struct {
	queue, group string
	lines        []*line // in order of their partitions; only growing

	mu     sync.Mutex
	policy stream.Policy
	read   time.Time
}

type sourceKey struct{ queue, group string }

// line is one partition of a source, and who waits for it. Fields below keys are guarded by Puller.mu.
type line struct {
	source    *source
	partition int
	keys      lua.Keys

	news    bool      // there may be something
	at      string    // the group was given all up to this entry
	latest  string    // the last entry that was seen
	recheck time.Time // when to ask although nothing was seen
	rests   bool      // until then nobody asks: it failed, or workers are held
	away    error     // why its server could not be reached when it was asked last; nil = it could
	active  int       // callers that ask
	used    time.Time
	waiters []*waiter // in order of their tickets
}

func (s *source) settings() stream.Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy
}

func (s *source) visibility() time.Duration { return s.settings().VisibilityTimeout }

func (s *source) within(r *Request) time.Duration {
	if visibility := s.visibility(); r.Within == 0 || r.Within > visibility {
		return visibility
	}
	return r.Within
}

// lookWait is how long the settings of a queue are waited for while there are others to receive from, or older settings
// of the same queue. A look that is given up does no harm.
const lookWait = time.Second

// linesOf returns the partitions that a request reads, in its order; those of one queue begin at a random one. Queues
// that cannot be read are left out, and failed says why. The request itself may be wrong: invalid.
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

// joined is errors.Join, but that one temporary error stands for all of them: of an outage all say the same.
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

// looked is what became of looking a queue up.
type looked struct {
	source *source
	err    error
}

// sourcesOf looks all queues of a request up, in its order and at the same time: one that does not answer delays no
// other.
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

// allows says that a delivery may be given for so long.
func allows(within, visibility time.Duration, queue, group string) error {
	if within > visibility {
		return lua.Invalid("within", within.String(), "must be at most %s, the visibility timeout of group %s of queue %s",
			visibility, group, queue)
	}
	return nil
}

const mostFailing = 1000 // queues of which the log is told

// tell has the log say, once, that a queue cannot be read, and that it can be again.
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
	case said != before && !lua.Temporary(err): // an outage is told by whoever waits for news
		p.cfg.Logger.Warn("a queue cannot be received from", slog.String("queue", queue), slog.String("group", group),
			slog.Any("error", err))
	}
}

func (p *Puller) known(queue, group string) *source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sources[sourceKey{queue, group}]
}

// policyOf returns the policy that a delivery is settled by. A queue that nobody receives from here is asked each time,
// and not kept, nor written into the registry: its name comes from a token, and may be made up.
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

// look reads what is known of a queue anew. While the server that knows cannot be reached, what was read last counts:
// the partitions of a queue may be with other servers.
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

// keep has what was read last count for another stream.PolicyInterval.
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
