package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/duestream/duestream/lua"
)

// durability knows whether the server can give the durability that the producer is configured with. The first call asks; calls
// made meanwhile share its question.
type durability struct {
	known atomic.Bool // the server can

	mu  sync.Mutex
	now *question // the question that is on its way
}

type question struct {
	answered chan struct{}
	err      error // read after answered is closed
}

// canWait refuses a call, before anything of it is sent, when the server cannot give the durability that is configured:
// lua.ErrUnsupported, lua.ErrDenied. It asks with the context of a call, again at each call until the server has said once that
// it can. A server that cannot be asked now is no error here: the call goes on, and repeats what may pass.
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

// errAskerLeft: the call whose context the question was asked with has ended, and there is no answer. Others ask for themselves.
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
