package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/duestream/duestream/lua"
)

// durability knows whether the server supports the configured durability. The first call asks; concurrent calls share
// its question.
type durability struct {
	known atomic.Bool // the server supports it

	mu  sync.Mutex
	now *question // the question in flight
}

type question struct {
	answered chan struct{}
	err      error // read after answered is closed
}

// canWait refuses a call before anything is sent if the server cannot give the configured durability:
// lua.ErrUnsupported, lua.ErrDenied. It asks with the context of the call, at each call until the server has confirmed
// once. If the server cannot be asked now, canWait returns nil: the call goes on, and repeats errors that may pass.
func (p *Producer) canWait(ctx context.Context) error {
	d := p.cfg.Durability
	for !p.durable.known.Load() && (d.Fsync || d.Replicas > 0) {
		p.durable.mu.Lock()
		q := p.durable.now
		mine := q == nil
		if mine {
			q = &question{answered: make(chan struct{})}
			p.durable.now = q
		}
		p.durable.mu.Unlock()
		if mine {
			p.ask(ctx, q)
		}
		select {
		case <-q.answered:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !errors.Is(q.err, errAskerLeft) {
			return q.err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// errAskerLeft: the context of the call that asked has ended without an answer. The others ask for themselves.
var errAskerLeft = errors.New("the call that asked has ended")

func (p *Producer) ask(ctx context.Context, q *question) {
	one, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	err := lua.CheckDurability(one, p.cfg.Client, p.globals.Queues, p.cfg.Durability)
	switch {
	case err == nil:
		p.durable.known.Store(true)
	case errors.Is(err, lua.ErrUnsupported) || errors.Is(err, lua.ErrDenied):
		q.err = fmt.Errorf("durability %s: %w", p.cfg.Durability, err)
	case ctx.Err() != nil:
		q.err = errAskerLeft
	}
	p.durable.mu.Lock()
	p.durable.now = nil
	p.durable.mu.Unlock()
	close(q.answered)
}
