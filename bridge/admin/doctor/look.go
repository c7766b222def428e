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

// look reads from Redis and keeps the first error. After an error all its methods read nothing and return zero
// values, so a caller checks err once, at the end.
type look struct {
	*examination
	ctx context.Context
	err error
}

// probe checks one thing, and returns nil if it is in order.
type probe func(*look) *Finding

// fail sets the error of a look, unless the look has failed before.
func (l *look) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// suspect is a probe that found something once.
type suspect struct {
	probe    probe
	patience time.Duration // how long the defect may take to go away by itself
	first    time.Time     // when the first run of the probe began
}

// ask makes one call within callTimeout, unless the look has failed.
func ask[T any](l *look, call func(ctx context.Context) (T, error)) (answer T) {
	if l.err != nil {
		return answer
	}
	ctx, cancel := context.WithTimeout(l.ctx, callTimeout)
	defer cancel()
	answer, l.err = call(ctx)
	return answer
}

// read asks several questions in one round trip.
func (l *look) read(questions ...view.Question) {
	ask(l, func(ctx context.Context) (struct{}, error) { return struct{}{}, view.AskLong(ctx, l.c, questions...) })
}

// number runs a command whose reply is an integer.
func (l *look) number(cmd rueidis.Completed) (n int64) {
	l.read(view.Number(cmd, &n))
	return n
}

// text runs a command whose reply is a string; "" stands for nil.
func (l *look) text(cmd rueidis.Completed) (text string) {
	l.read(view.Into(cmd, &text, rueidis.RedisResult.ToString))
	return text
}

// list runs a command whose reply is an array.
func (l *look) list(cmd rueidis.Completed) (list []rueidis.RedisMessage) {
	l.read(view.Into(cmd, &list, rueidis.RedisResult.ToArray))
	return list
}

// fields returns all fields of a hash.
func (l *look) fields(key string) (fields map[string]string) {
	l.read(view.Into(l.c.B().Hgetall().Key(key).Build(), &fields, rueidis.RedisResult.AsStrMap))
	return fields
}

// stream returns the length and the groups of a stream.
func (l *look) stream(key string) view.StreamInfo {
	return ask(l, func(ctx context.Context) (view.StreamInfo, error) { return view.ReadStream(ctx, l.c, key) })
}

// serverTime returns the server's time.
func (l *look) serverTime() time.Time {
	return ask(l, func(ctx context.Context) (time.Time, error) { return view.ServerTime(ctx, l.c) })
}

// probeEachTwice runs probes now. Probes with a finding run again later, because only a finding that lasts is reported.
// A probe that meets a key of another type finds nothing, because types reports that.
func (l *look) probeEachTwice(probes ...probe) { l.probeFor(l.Settle, probes...) }

// probeFor is probeEachTwice for defects that may take as long as patience to go away by themselves.
func (l *look) probeFor(patience time.Duration, probes ...probe) {
	for _, p := range probes {
		first := time.Now()
		if f := l.probeOnce(p); f != nil {
			l.suspects = append(l.suspects, &suspect{p, patience, first})
		}
	}
}

// probeOnce runs a probe once.
func (l *look) probeOnce(p probe) (found *Finding) {
	l.scoped(func(l *look) {
		if f := p(l); l.err == nil {
			found = f
		}
	}, lua.ErrWrongType, lua.ErrNoGroup)
	return found
}

// scoped runs a part of a look. An error of the given kinds ends only that part, any other error the whole look.
func (l *look) scoped(part func(*look), kinds ...error) {
	if l.err != nil {
		return
	}
	inner := &look{l.examination, l.ctx, nil}
	part(inner)
	if !slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(inner.err, kind) }) {
		l.err = inner.err
	}
}

// recheck runs the probes of all suspects again and again. It drops a suspect as soon as the probe finds nothing. It
// reports the finding of a suspect whose patience has passed.
func (l *look) recheck() {
	for open := l.suspects; len(open) > 0; {
		l.fail(l.wait(l.ctx, "looking again", l.Settle))
		var left []*suspect
		for _, s := range open {
			waited := time.Since(s.first)
			switch f := l.probeOnce(s.probe); {
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
