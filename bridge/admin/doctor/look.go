package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// look reads from Redis until something fails. From then on it reads nothing, and answers with nothing: whoever looks asks once, at
// the end, whether it failed.
type look struct {
	*examination
	ctx context.Context
	err error
}

// probe looks at one thing; nil: it is in order.
type probe func(*look) *Finding

// fail ends a look, unless err is nil.
func (l *look) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// suspect is something that looked wrong once.
type suspect struct {
	probe    probe
	patience time.Duration // how long it may take to come into order
	first    time.Time     // when it looked wrong first
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

// read runs one command of a look, and reads its reply.
func read[T any](l *look, cmd rueidis.Completed, as func(rueidis.RedisResult) (T, error)) (answer T) {
	for _, reply := range l.do(cmd) {
		answer = parsed(l, reply, as)
	}
	return answer
}

func parsed[T any](l *look, reply rueidis.RedisResult, as func(rueidis.RedisResult) (T, error)) T {
	answer, err := as(reply)
	if !rueidis.IsRedisNil(err) {
		l.fail(err)
	}
	return answer
}

// number runs a command that answers with an integer.
func (l *look) number(cmd rueidis.Completed) int64 { return read(l, cmd, rueidis.RedisResult.AsInt64) }

// fields returns a hash.
func (l *look) fields(key string) map[string]string {
	return read(l, l.c.B().Hgetall().Key(key).Build(), rueidis.RedisResult.AsStrMap)
}

// stream returns the length and the groups of a stream.
func (l *look) stream(key string) view.StreamInfo {
	return ask(l, func(ctx context.Context) (view.StreamInfo, error) { return view.ReadStream(ctx, l.c, key) })
}

// serverTime returns the server's clock.
func (l *look) serverTime() time.Time {
	return ask(l, func(ctx context.Context) (time.Time, error) { return view.ServerTime(ctx, l.c) })
}

// twice suspects what probes find, and probes again later. A key of another type is found by the look at the types: probes that meet
// one say nothing.
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
func (l *look) try(p probe) *Finding {
	if l.err != nil {
		return nil
	}
	inner := &look{l.examination, l.ctx, nil}
	f := p(inner)
	if err := inner.err; err != nil {
		if !isType(err) && !errors.Is(err, lua.ErrNoGroup) {
			l.err = err
		}
		return nil
	}
	return f
}

// lookAgain probes each suspect again, until it is in order or its time is up.
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

// apart looks at something of its own. A key of another type ends it alone: the look at the types finds that.
func (l *look) apart(at func(*look)) {
	if l.err != nil {
		return
	}
	inner := &look{l.examination, l.ctx, nil}
	if at(inner); !isType(inner.err) {
		l.err = inner.err
	}
}

func isType(err error) bool { return errors.Is(err, lua.ErrWrongType) }
