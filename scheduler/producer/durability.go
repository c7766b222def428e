package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/duestream/duestream/lua"
)

// durability remembers whether the server supports the configured durability. The first call asks the server, and
// concurrent calls share the question.
type durability struct {
	confirmed atomic.Bool // the server supports the durability, or none is configured

	mu       sync.Mutex
	inFlight *question
}

type question struct {
	answered chan struct{}
	err      error // read after answered is closed
}

// checkDurability returns lua.ErrUnsupported or lua.ErrDenied if the server cannot give the configured durability. Then
// the call must not send anything. Each call asks, with its own context, until the server has confirmed once. If the
// server cannot be asked now, checkDurability returns nil: the call then continues, and repeats errors that may pass.
func (p *Producer) checkDurability(ctx context.Context) error {
	for !p.durable.confirmed.Load() {
		p.durable.mu.Lock()
		q := p.durable.inFlight
		isFirst := q == nil
		if isFirst {
			q = &question{answered: make(chan struct{})}
			p.durable.inFlight = q
		}
		p.durable.mu.Unlock()
		if isFirst {
			p.askDurability(ctx, q)
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

// errAskerLeft: the context of the call that asked has ended without an answer. Each of the other calls asks again.
var errAskerLeft = errors.New("the call that asked has ended")

func (p *Producer) askDurability(ctx context.Context, q *question) {
	try, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	err := lua.CheckDurability(try, p.cfg.Client, p.globals.Queues, p.cfg.Durability)
	switch {
	case err == nil:
		p.durable.confirmed.Store(true)
	case errors.Is(err, lua.ErrUnsupported) || errors.Is(err, lua.ErrDenied):
		q.err = fmt.Errorf("durability %s: %w", p.cfg.Durability, err)
	case ctx.Err() != nil:
		q.err = errAskerLeft
	}
	p.durable.mu.Lock()
	p.durable.inFlight = nil
	p.durable.mu.Unlock()
	close(q.answered)
}
