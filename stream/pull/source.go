package pull

import (
	"context"
	"errors"
	"log/slog"
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
	active  int       // callers that ask
	used    time.Time
	waiters []*waiter // in order of their tickets
}

func (s *source) visibility() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy.VisibilityTimeout
}

func (s *source) attempts() lua.Attempts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policy.Attempts()
}

func (s *source) within(r *Request) time.Duration {
	if visibility := s.visibility(); r.Within == 0 || r.Within > visibility {
		return visibility
	}
	return r.Within
}

// linesOf returns the partitions that a request reads, in its order; those of one queue begin at a random one.
func (p *Puller) linesOf(ctx context.Context, r *Request) ([]*line, error) {
	var all []*line
	var failed error
	for _, queue := range r.order() {
		s, err := p.sourceOf(ctx, queue, r.Group)
		p.tell(queue, r.Group, err)
		if err != nil && (lua.Temporary(err) || ctx.Err() != nil) {
			return nil, err
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if visibility := s.visibility(); r.Within > visibility {
			return nil, lua.Invalid("within", r.Within.String(),
				"must be at most %s, the visibility timeout of group %s of queue %s", visibility, r.Group, queue)
		}
		all = append(all, p.rotated(s)...)
	}
	if len(all) == 0 {
		return nil, failed
	}
	return all, nil
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

// sourceOf returns what is known of a queue, read anew when that is older than stream.PolicyInterval.
func (p *Puller) sourceOf(ctx context.Context, queue, group string) (*source, error) {
	key := sourceKey{queue, group}
	p.mu.Lock()
	s := p.sources[key]
	p.mu.Unlock()
	if s != nil && s.isFresh() {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
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
