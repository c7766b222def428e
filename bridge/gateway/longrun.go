package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/duestream/duestream/bridge/access"
)

// Bounds of operations that look at whole queues. Each of them keeps Redis busy for a part of the time, so few of them
// run at the same time.
const (
	maxLongRuns      = 8 // of all tokens together
	maxTokenLongRuns = 2

	progressInterval = time.Second // between two lines of progress, and between two checks of the token
)

// longRun writes the answer to an operation that looks at whole queues: lines of JSON, which are written while the
// operation runs. It is safe for concurrent use.
type longRun struct {
	c    *call
	rc   *http.ResponseController
	fail context.CancelCauseFunc // ends the operation

	mu       sync.Mutex
	progress any // written at each tick; nil = none yet
}

// lastLine ends the answer to an operation. Problem tells why the operation ended early.
type lastLine struct {
	Result  any      `json:"result"`
	Problem *problem `json:"problem,omitempty"`
}

// progressLine tells how far an operation is.
type progressLine struct {
	Progress any `json:"progress"`
}

var (
	errTooManyRuns = busy(ErrBusy, "this gateway, or this token, has reached its limit of searches and changes of many "+
		"messages: try again")
	errNotRead  = errors.New("the caller does not read the answer")
	errStopping = busy(ErrBusy, "the gateway is stopping: try again")
)

// beginLong takes a place among the operations that look at whole queues, unless the token allows the verb on no queue.
// A request takes its place before its body is read, because a large body takes memory and time, too. end frees the
// place.
func (c *call) beginLong(verb access.Verb) (end func(), err error) {
	if !c.Grant.MayAnywhere(verb) {
		return nil, forbidden(verb)
	}
	token := c.Grant.Name()
	if c.longRuns.begin(token) {
		c.longRuns.end(token) // begin also counts an operation that it refuses
		return nil, errTooManyRuns
	}
	return func() { c.longRuns.end(token) }, nil
}

// runLong runs an operation that has a place, and answers with the lines that the operation writes and with its result.
// The operation ends early when the caller hangs up or takes no lines for ten seconds, when the gateway stops, and
// within two seconds after the token no longer allows the verb on the queues. If an error comes before the first line,
// runLong returns it, and the caller gets a problem with its status, as for any request.
func (c *call) runLong(
	verb access.Verb, queues []string, operation func(ctx context.Context, out *longRun) (result any, err error),
) error {
	done, err := c.beginWait()
	if err != nil {
		return err
	}
	defer done()
	ctx, fail := context.WithCancelCause(c.Ctx)
	defer fail(nil)
	defer context.AfterFunc(c.stopping, func() { fail(errStopping) })()
	out := &longRun{c: c, rc: http.NewResponseController(c.w), fail: fail}
	_ = out.rc.SetReadDeadline(time.Time{})
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	c.w.Header().Set("X-Accel-Buffering", "no") // tells a proxy not to buffer lines

	watching, stopWatching := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { out.watch(watching, verb, queues) })
	result, err := operation(ctx, out)
	stopWatching()
	watcher.Wait()

	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	if err != nil && c.w.status == 0 {
		return err
	}
	last := lastLine{Result: result}
	switch {
	case errors.Is(err, errNotRead):
		return nil
	case err != nil:
		last.Problem = c.problemOf(err)
		c.w.logFailed(c, last.Problem, err)
	}
	out.write(last)
	return nil
}

// watch checks the token and writes progress at intervals, until ctx ends.
func (l *longRun) watch(ctx context.Context, verb access.Verb, queues []string) {
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := l.c.stillMay(verb, queues); err != nil {
			l.fail(err)
			return
		}
		l.mu.Lock()
		progress := l.progress // also if it is an old one: a proxy may cut an answer that is silent for long
		l.mu.Unlock()
		if progress != nil {
			l.write(progressLine{progress})
		}
	}
}

// setProgress sets the progress that the next ticks write.
func (l *longRun) setProgress(progress any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress = progress
}

// write sends a value as a line. If that fails, the operation ends.
func (l *longRun) write(value any) {
	text, err := encode(value)
	if err != nil {
		l.fail(fmt.Errorf("encode a line: %w", err))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err = l.c.w.Write(text)
	if err == nil {
		err = l.rc.Flush()
	}
	if err != nil {
		l.fail(errNotRead)
	}
}
