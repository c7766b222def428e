package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
	"github.com/duestream/duestream/stream/keeper"
)

const (
	windowSlack = 20 * time.Minute // bridges tidy up a quiet queue every 10 minutes at least
	farWindows  = lua.MaxDelay + 24*time.Hour
	deadMany    = 1000
	deadOld     = 7 * 24 * time.Hour
	quickItems  = 200 // samples

	shortPatience = time.Hour // partners are away longer
)

func isType(err error) bool { return errors.Is(err, lua.ErrWrongType) }

// partition looks at one partition of a queue.
func (e *examination) partition(ctx context.Context, p place) (err error) {
	if e.now, err = view.ServerTime(ctx, e.c); err != nil {
		return err
	}
	want := make([]string, len(kinds))
	for i, k := range kinds {
		want[i] = k.want
	}
	for _, look := range []func() error{
		func() error { return e.types(ctx, p, keysOf(p.keys), want) },
		func() error { return e.tokens(ctx, p) },
		func() error { return e.ids(ctx, p, p.keys.Stream, p.keys.Dead, p.keys.Wake) },
		func() error { return e.schedule(ctx, p) },
		func() error { return e.bodies(ctx, p) },
		func() error { return e.stream(ctx, p) },
		func() error { return e.windows(ctx, p) },
		func() error { return e.dead(ctx, p) },
	} {
		if err := look(); err != nil && !isType(err) { // a key of another type is found by the first look
			return err
		}
	}
	if p.partition == 0 {
		if err = e.settingsOf(ctx, p, p.keys.Policy, false); err == nil {
			err = e.patience(ctx, p)
		}
	}
	return err
}

// types looks for keys of another type, and for expiries.
func (e *examination) types(ctx context.Context, p place, keys, want []string) error {
	var cmds []rueidis.Completed
	for _, key := range keys {
		cmds = append(cmds, e.c.B().Type().Key(key).Build(), e.c.B().Pttl().Key(key).Build())
	}
	replies, err := e.do(ctx, cmds...)
	if err != nil {
		return err
	}
	for i, key := range keys {
		is, err := replies[2*i].ToString()
		if err != nil {
			return err
		}
		if is != want[i] && is != "none" {
			if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
				replies, err := e.do(ctx, e.c.B().Type().Key(key).Build())
				if err != nil {
					return nil, err
				}
				is, err := replies[0].ToString()
				if err != nil || is == want[i] || is == "none" {
					return nil, err
				}
				return e.finding(wrongType, p, key, "", 1, fmt.Sprintf("%s holds a %s where a %s belongs", key, is, want[i])), nil
			}); err != nil {
				return err
			}
		}
		if ttl, _ := replies[2*i+1].AsInt64(); ttl < 0 {
			continue
		}
		if err := e.twice(ctx, func(ctx context.Context) (*Finding, error) {
			ttl, err := e.number(ctx, e.c.B().Pttl().Key(key).Build())
			if err != nil || ttl < 0 {
				return nil, err
			}
			f := e.finding(expires, p, key, "", 1, fmt.Sprintf("%s is deleted in %s", key,
				(time.Duration(ttl)*time.Millisecond).Round(time.Second)))
			f.mend = func(ctx context.Context) (string, error) {
				_, err := e.number(ctx, e.c.B().Persist().Key(key).Build())
				return "removed the expiry of " + key, err
			}
			return f, nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// tokens looks at a wake stream.
func (e *examination) tokens(ctx context.Context, p place) error {
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		n, err := e.number(ctx, e.c.B().Xlen().Key(p.keys.Wake).Build())
		if err != nil {
			return nil, err
		}
		mend := func(ctx context.Context) (string, error) {
			return "added a token to " + p.keys.Wake, lua.AddToken(ctx, e.c, p.keys.Wake)
		}
		if n > 1 {
			f := e.finding(manyTokens, p, p.keys.Wake, "", n, fmt.Sprintf("%d tokens in %s", n, p.keys.Wake))
			f.mend = mend
			return f, nil
		}
		if n == 1 || p.keys.Due == "" {
			return nil, nil
		}
		scheduled, err := e.number(ctx, e.c.B().Zcard().Key(p.keys.Due).Build())
		if err != nil || scheduled == 0 {
			return nil, err
		}
		f := e.finding(noToken, p, p.keys.Wake, "", scheduled,
			plural(scheduled, "message is", "messages are")+" scheduled without one")
		f.mend = mend
		return f, nil
	})
}

// windows looks at the ends of dedup windows.
func (e *examination) windows(ctx context.Context, p place) error {
	ended, far := ms(e.now.Add(-windowSlack-time.Duration(e.partitions())*time.Second)), ms(e.now.Add(farWindows))
	count := func(ctx context.Context, c *Check, from, to, found string, mend func(context.Context) (string, error)) error {
		return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
			n, some, err := e.between(ctx, p.keys.Seen, from, to)
			if err != nil || n == 0 {
				return nil, err
			}
			f := e.finding(c, p, p.keys.Seen, "", n, plural(n, "window ", "windows ")+found, some...)
			f.mend = mend
			return f, nil
		})
	}
	if err := count(ctx, endedWindow, "-inf", "("+ended, "ended long ago", e.trim(p)); err != nil {
		return err
	}
	return count(ctx, farWindow, far, "+inf", "in more than ten years", nil)
}

func ms(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// between counts the members of a sorted set with scores in a range, and returns some of them.
func (e *examination) between(ctx context.Context, key, from, to string) (int64, []string, error) {
	replies, err := e.do(ctx, e.c.B().Zcount().Key(key).Min(from).Max(to).Build(),
		e.c.B().Zrangebyscore().Key(key).Min(from).Max(to).Withscores().Limit(0, examples).Build())
	if err != nil {
		return 0, nil, err
	}
	n, err := replies[0].AsInt64()
	if err != nil {
		return 0, nil, err
	}
	list, err := replies[1].AsZScores()
	var some []string
	for _, one := range list {
		some = append(some, shown(one.Member)+" at "+strconv.FormatFloat(one.Score, 'f', -1, 64))
	}
	return n, some, err
}

// trim is the repair of what was not freed.
func (e *examination) trim(p place) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		freed, windows, err := keeper.Trim(ctx, e.c, e.Prefix, lua.PartitionName(p.queue, p.partition))
		return fmt.Sprintf("freed %s and %s of %s", plural(int64(freed), "entry", "entries"),
			plural(int64(windows), "dedup window", "dedup windows"), lua.PartitionName(p.queue, p.partition)), err
	}
}

// settingsOf looks at the settings of a queue, or at the defaults.
func (e *examination) settingsOf(ctx context.Context, p place, key string, defaults bool) error {
	probe := func(c *Check, wrong func(fields map[string]string) []string) error {
		return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
			replies, err := e.do(ctx, e.c.B().Hgetall().Key(key).Build())
			if err != nil {
				return nil, err
			}
			fields, err := replies[0].AsStrMap()
			if err != nil {
				return nil, err
			}
			list := wrong(fields)
			if len(list) == 0 {
				return nil, nil
			}
			return e.finding(c, p, key, "", int64(len(list)),
				plural(int64(len(list)), "field of ", "fields of ")+key+" does not count", list...), nil
		})
	}
	if err := probe(badSetting, func(fields map[string]string) (list []string) {
		bad, _ := stream.CheckSettings(fields, defaults)
		for field, err := range bad {
			list = append(list, field+": "+err.Error())
		}
		slices.Sort(list)
		return list
	}); err != nil {
		return err
	}
	return probe(oddSetting, func(fields map[string]string) []string {
		_, unknown := stream.CheckSettings(fields, defaults)
		return unknown
	})
}

// patience notes how long messages that fail are tried.
func (e *examination) patience(ctx context.Context, p place) error {
	policy, _, err := stream.ReadPolicy(ctx, e.c, e.Prefix, p.queue, "")
	if isType(err) {
		return nil
	}
	if err != nil {
		return err
	}
	lasts := policy.TriedFor()
	e.report.Patience = append(e.report.Patience, Patience{p.queue, policy.MaxAttempts, lasts.Milliseconds()})
	return e.twice(ctx, func(ctx context.Context) (*Finding, error) {
		policy, _, err := stream.ReadPolicy(ctx, e.c, e.Prefix, p.queue, "")
		if lasts := policy.TriedFor(); err == nil && lasts < shortPatience {
			found := fmt.Sprintf("a message that always fails is a dead letter after about %s: %s", lasts,
				plural(int64(policy.MaxAttempts), "attempt", "attempts"))
			return e.finding(givesUpEarly, p, "", "", 1, found), nil
		}
		return nil, err
	})
}

// dead looks at the dead letters.
func (e *examination) dead(ctx context.Context, p place) error {
	key := p.keys.Dead
	replies, err := e.do(ctx, e.c.B().Xlen().Key(key).Build(), e.c.B().Xrange().Key(key).Start("-").End("+").Count(1).Build())
	if err != nil {
		return err
	}
	n, err := replies[0].AsInt64()
	if err != nil || n == 0 {
		return err
	}
	if n >= deadMany {
		e.report.Findings = append(e.report.Findings,
			*e.finding(manyDead, p, key, "", n, plural(n, "dead letter", "dead letters")))
	}
	first, err := replies[1].AsXRange()
	if err != nil {
		return err
	}
	if len(first) > 0 && entryID(first[0].ID).Age(e.now) > deadOld {
		e.report.Findings = append(e.report.Findings,
			*e.finding(oldDead, p, key, "", n, fmt.Sprintf("the oldest of %s is of %s", plural(n, "dead letter", "dead letters"),
				lua.EntryTime(first[0].ID).UTC().Format(time.DateOnly)), first[0].ID))
	}
	var odd []string
	count, looked, from, page := int64(0), 0, "-", e.pageOf(ctx, key, n)
	for {
		replies, err := e.do(ctx, e.c.B().Xrange().Key(key).Start(from).End("+").Count(page).Build())
		if err != nil {
			return err
		}
		letters, err := replies[0].AsXRange()
		if err != nil {
			return err
		}
		for _, l := range letters {
			if _, err := strconv.ParseInt(l.FieldValues[lua.FieldDead], 10, 64); err != nil ||
				l.FieldValues[lua.FieldReason] == "" || l.FieldValues[lua.FieldID] == "" {
				if count++; len(odd) < examples {
					odd = append(odd, l.ID+" without "+missing(l.FieldValues))
				}
			}
		}
		looked += len(letters)
		e.Progress("dead letters of "+lua.PartitionName(p.queue, p.partition), looked, int(n))
		if int64(len(letters)) < page {
			break
		}
		if e.Quick && looked >= quickItems {
			e.leftOut("%s: looked at %d of %s (without --quick: all)", key, looked, plural(n, "dead letter", "dead letters"))
			break
		}
		from = "(" + letters[len(letters)-1].ID
	}
	if count > 0 {
		e.report.Findings = append(e.report.Findings,
			*e.finding(oddDead, p, key, "", count, plural(count, "entry that is", "entries that are")+" no dead letter", odd...))
	}
	return nil
}

func missing(fields map[string]string) string {
	var list []string
	for _, name := range []string{lua.FieldID, lua.FieldReason, lua.FieldDead} {
		if fields[name] == "" {
			list = append(list, name)
		}
	}
	if list == nil {
		return "a number in dead_ms"
	}
	return strings.Join(list, ", ")
}
