package view

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Question is a command, and a place for its reply.
type Question struct {
	command rueidis.Completed
	name    string // command and key, for errors
	read    func(rueidis.RedisResult) error
	noGroup bool // see OrNoGroup

	optional bool // see OrNothing
}

// Into returns a question whose answer is stored in v. v stays as it is if the server answers nil, or that there is no
// such key.
func Into[T any](command rueidis.Completed, v *T, read func(rueidis.RedisResult) (T, error)) Question {
	words := command.Commands()
	n := 2
	if words[0] == "XINFO" {
		n = 3
	}
	return Question{command: command, name: strings.Join(words[:min(n, len(words))], " "),
		read: func(reply rueidis.RedisResult) error {
			got, err := read(reply)
			if err == nil {
				*v = got
			}
			return err
		}}
}

// Number asks for a whole number.
func Number(command rueidis.Completed, n *int64) Question {
	return Into(command, n, rueidis.RedisResult.AsInt64)
}

// Scores asks for members of a sorted set with their scores.
func Scores(command rueidis.Completed, list *[]rueidis.ZScore) Question {
	return Into(command, list, rueidis.RedisResult.AsZScores)
}

// Score asks for a score of the schedule, or of another sorted set of times: see ScoreTime.
func Score(command rueidis.Completed, at *time.Time) Question {
	return Into(command, at, func(reply rueidis.RedisResult) (time.Time, error) {
		score, err := reply.AsFloat64()
		return ScoreTime(score), err
	})
}

// Scan asks for a step of a scan.
func Scan(command rueidis.Completed, page *rueidis.ScanEntry) Question {
	return Into(command, page, rueidis.RedisResult.AsScanEntry)
}

// Entries asks for entries of a stream.
func Entries(command rueidis.Completed, list *[]rueidis.XRangeSlice) Question {
	return Into(command, list, rueidis.RedisResult.AsXRangeSlices)
}

// OrNoGroup returns the question for which a missing group is no error, because such a group holds nothing.
func (q Question) OrNoGroup() Question {
	q.noGroup = true
	return q
}

// OrNothing returns the question for which a refusal of the server is no error: the user may not ask, or the key has
// another type.
func (q Question) OrNothing() Question {
	q.optional = true
	return q
}

// Ask sends questions in one round trip of at most loop.CallTimeout. It returns the first error, with command and key.
func Ask(ctx context.Context, c rueidis.Client, questions ...Question) error {
	return ask(ctx, c, loop.CallTimeout, questions)[0]
}

// AskLong is Ask for large replies: it waits loop.PassTimeout.
func AskLong(ctx context.Context, c rueidis.Client, questions ...Question) error {
	return ask(ctx, c, loop.PassTimeout, questions)[0]
}

// AskEach sends several lists of questions in one round trip, and returns the first error of each list.
func AskEach(ctx context.Context, c rueidis.Client, lists ...[]Question) []error {
	return ask(ctx, c, loop.PassTimeout, lists...)
}

func ask(ctx context.Context, c rueidis.Client, limit time.Duration, lists ...[]Question) []error {
	ctx, cancel := context.WithTimeout(ctx, limit) // rueidis repeats reads for as long as ctx lives
	defer cancel()
	var commands []rueidis.Completed
	for _, questions := range lists {
		for _, q := range questions {
			commands = append(commands, q.command)
		}
	}
	errs := make([]error, len(lists))
	if len(commands) == 0 {
		return errs
	}
	replies := c.DoMulti(ctx, commands...)
	for i, questions := range lists {
		for k, q := range questions {
			if err := q.take(replies[k]); errs[i] == nil {
				errs[i] = err
			}
		}
		replies = replies[len(questions):]
	}
	return errs
}

func (q Question) take(reply rueidis.RedisResult) error {
	err := reply.Error()
	switch {
	case err == nil:
		if err = q.read(reply); err != nil {
			err = fmt.Errorf("%s: unexpected reply: %w", q.name, err)
		}
		return err
	case rueidis.IsRedisNil(err), isNoKey(err):
		return nil
	case q.optional && Refused(err):
		return nil
	}
	if err = lua.Classify(q.name, err); q.noGroup && errors.Is(err, lua.ErrNoGroup) {
		return nil
	}
	return err
}

// isNoKey reports whether XINFO found no stream.
func isNoKey(err error) bool { return strings.Contains(err.Error(), "no such key") }

// row is an element of a reply: values by name. err is the error of the first value that could not be read.
type row struct {
	fields map[string]rueidis.RedisMessage
	err    error
}

func (r *row) text(field string) string  { return valueOf(r, field, (*rueidis.RedisMessage).ToString) }
func (r *row) number(field string) int64 { return valueOf(r, field, (*rueidis.RedisMessage).AsInt64) }
func (r *row) entryID(field string) EntryID {
	id, err := ParseEntryID(r.text(field))
	if r.err == nil {
		r.err = err
	}
	return id
}

// numberOr returns a number, or the fallback if the server does not tell the number.
func (r *row) numberOr(field string, fallback int64) int64 {
	m := r.fields[field]
	if n, err := m.AsInt64(); err == nil {
		return n
	}
	return fallback
}

func valueOf[T any](r *row, field string, read func(*rueidis.RedisMessage) (T, error)) T {
	m := r.fields[field]
	v, err := read(&m)
	if r.err == nil {
		r.err = err
	}
	return v
}

// rows returns a function that reads a list of rows. If names are given, the elements of the reply have no names, only
// values in the order of names.
func rows[T any](read func(*row) T, names ...string) func(rueidis.RedisResult) ([]T, error) {
	return func(reply rueidis.RedisResult) ([]T, error) {
		message, err := reply.ToMessage()
		if err != nil {
			return nil, err
		}
		return rowsIn(message, read, names...)
	}
}

// rowsIn reads a list of rows that is a part of a reply. A nil value has none.
func rowsIn[T any](message rueidis.RedisMessage, read func(*row) T, names ...string) ([]T, error) {
	if message.IsNil() {
		return nil, nil
	}
	elements, err := message.ToArray()
	list := make([]T, len(elements))
	for i, one := range elements {
		var r row
		if len(names) == 0 {
			r.fields, r.err = one.AsMap()
		} else {
			r.fields, r.err = valuesOf(one, names)
		}
		list[i] = read(&r)
		if r.err != nil {
			return nil, r.err
		}
	}
	return list, err
}

func valuesOf(element rueidis.RedisMessage, names []string) (map[string]rueidis.RedisMessage, error) {
	values, err := element.ToArray()
	if err == nil && len(values) < len(names) {
		err = fmt.Errorf("%d values where %d belong", len(values), len(names))
	}
	if err != nil {
		return nil, err
	}
	fields := make(map[string]rueidis.RedisMessage, len(names))
	for i, name := range names {
		fields[name] = values[i]
	}
	return fields, nil
}
