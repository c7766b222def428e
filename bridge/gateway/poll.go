package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Poll calls pull, which may block for about wait. Meanwhile the request counts as waiting, and not against the limit
// of requests. The context of pull ends when the caller hangs up or the gateway stops. When the gateway stops, Poll
// returns early and without an error; the caller then asks another gateway. ErrBusy: a limit of waiting requests is
// reached.
func (c *Call) Poll(wait time.Duration, pull func(context.Context) error) error {
	if wait == 0 {
		ctx, cancel := context.WithTimeout(c.Ctx, c.g.cfg.Timeout)
		defer cancel()
		return pull(ctx)
	}
	if !c.g.runCalled.Load() {
		c.g.warnNotRun.Do(func() {
			c.g.log.Warn("Run of this gateway was not called: waiting requests notice new messages late")
		})
	}
	done, err := c.beginWait()
	if err != nil {
		return err
	}
	defer done()
	rc, deadline := http.NewResponseController(c.W), time.Now().Add(wait+c.g.cfg.Timeout)
	_ = rc.SetReadDeadline(deadline)
	_ = rc.SetWriteDeadline(deadline)
	waiting, cancel := context.WithCancel(c.Ctx)
	defer cancel()
	defer context.AfterFunc(c.g.stopping, cancel)()
	err = pull(waiting)
	_ = rc.SetWriteDeadline(time.Now().Add(readTimeout + c.g.cfg.Timeout)) // for the answer
	gatewayStops := c.g.stopping.Err() != nil && c.Ctx.Err() == nil
	if gatewayStops && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// beginWait counts this request as waiting instead of busy, until done is called. It fails if too many requests wait.
// Each token may have a quarter of MaxPolls.
func (c *Call) beginWait() (done func(), err error) {
	g, token := c.g, c.w.token
	if g.waiting.begin(token) {
		g.waiting.end(token)
		return nil, busy(ErrBusy, "this token has reached its limit of waiting requests: try again")
	}
	select {
	case g.polls <- struct{}{}:
	default:
		g.waiting.end(token)
		return nil, busy(ErrBusy, "this gateway has reached its limit of waiting requests: try again")
	}
	g.busy.Add(-1)
	return func() {
		g.busy.Add(1) // even above MaxRequests, because a request that has received a message must not be refused
		g.waiting.end(token)
		<-g.polls
	}, nil
}
