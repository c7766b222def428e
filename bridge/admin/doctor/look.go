package doctor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// look reads from Redis until something fails. From then on it reads nothing, and answers with nothing: whoever looks asks once,
// at the end, whether it failed.
type look struct {
	*examination
	ctx context.Context
	err error
}

// probe looks at one thing, and returns nil when that is in order.
type probe func(*look) *Finding

// fail ends a look, unless err is nil.
func (l *look) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// suspect is a probe that found something once.
type suspect struct {
	probe    probe
	patience time.Duration // how long the defect may take to go away by itself
	first    time.Time     // when the probe found it first
}

// ask makes one call of a look.
func ask[T any](l *look, call func(ctx context.Context) (T, error)) (answer T) {
	if l.err != nil {
		return answer
	}
	ctx, cancel := context.WithTimeout(l.ctx, callTimeout)
	defer cancel()
	answer, l.err = call(ctx)
	return answer
}

// read asks in one round trip.
func (l *look) read(questions ...view.Question) {
	ask(l, func(ctx context.Context) (struct{}, error) { return struct{}{}, view.AskLong(ctx, l.c, questions...) })
}

// number runs a command that answers with an integer.
func (l *look) number(cmd rueidis.Completed) (n int64) {
	l.read(view.Number(cmd, &n))
	return n
}

// text runs a command that answers with a text; "" when there is none.
func (l *look) text(cmd rueidis.Completed) (text string) {
	l.read(view.Into(cmd, &text, rueidis.RedisResult.ToString))
	return text
}

// list runs a command that answers with a list.
func (l *look) list(cmd rueidis.Completed) (list []rueidis.RedisMessage) {
	l.read(view.Into(cmd, &list, rueidis.RedisResult.ToArray))
	return list
}

// fields returns a hash.
func (l *look) fields(key string) (fields map[string]string) {
	l.read(view.Into(l.c.B().Hgetall().Key(key).Build(), &fields, rueidis.RedisResult.AsStrMap))
	return fields
}

// stream returns the length and the groups of a stream.
func (l *look) stream(key string) view.StreamInfo {
	return ask(l, func(ctx context.Context) (view.StreamInfo, error) { return view.ReadStream(ctx, l.c, key) })
}

// serverTime returns the server's clock.
func (l *look) serverTime() time.Time {
	return ask(l, func(ctx context.Context) (time.Time, error) { return view.ServerTime(ctx, l.c) })
}

// twice suspects what probes find, and probes again later. A probe that meets a key of another type finds nothing: the look at
// the types does.
func (l *look) twice(probes ...probe) { l.patiently(l.Settle, probes...) }

func (l *look) patiently(patience time.Duration, probes ...probe) {
	for _, p := range probes {
		first := time.Now()
		if f := l.try(p); f != nil {
			l.suspects = append(l.suspects, &suspect{p, patience, first})
		}
	}
}

// try probes once.
func (l *look) try(p probe) (found *Finding) {
	l.apart(func(l *look) {
		if f := p(l); l.err == nil {
			found = f
		}
	}, lua.ErrWrongType, lua.ErrNoGroup)
	return found
}

// apart runs a part of a look. Errors of these kinds end that part alone, all others the whole look.
func (l *look) apart(at func(*look), kinds ...error) {
	if l.err != nil {
		return
	}
	inner := &look{l.examination, l.ctx, nil}
	at(inner)
	if !slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(inner.err, kind) }) {
		l.err = inner.err
	}
}

// lookAgain probes again, until a suspect is in order or its patience is over.
func (l *look) lookAgain() {
	for open := l.suspects; len(open) > 0; {
		l.fail(l.wait(l.ctx, "looking again", l.Settle))
		var left []*suspect
		for _, s := range open {
			waited := time.Since(s.first)
			switch f := l.try(s.probe); {
			case f == nil:
			case waited >= s.patience:
				l.add(f)
			default:
				left = append(left, s)
			}
		}
		open = left
	}
}
