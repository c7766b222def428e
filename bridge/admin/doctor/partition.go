package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream/keeper"
	"github.com/duestream/duestream/stream/sizes"
)

const (
	windowSlack = 20 * time.Minute // bridges tidy a quiet queue at least every 10 minutes
	farWindows  = lua.MaxDelay + 24*time.Hour
	deadMany    = 1000
	deadOld     = 7 * 24 * time.Hour
	quickItems  = 200 // elements of a key that are read with Config.Quick

	shortPatience = time.Hour // an outage of a service that handlers call may last longer
)

// partition examines one partition of a queue.
func (l *look) partition(p place) {
	l.now = l.serverTime()
	want := make([]string, len(kinds))
	for i, k := range kinds {
		want[i] = k.want
	}
	for _, part := range []func(*look){
		func(l *look) { l.types(p, p.keys.All(), want) },
		func(l *look) { l.tokens(p) },
		func(l *look) { l.ids(p, aheadOfTime, p.keys.Stream, p.keys.Dead, p.keys.Wake) },
		func(l *look) { l.ids(p, historyIDAhead, p.keys.History) },
		func(l *look) { l.schedule(p) },
		func(l *look) { l.bodies(p) },
		func(l *look) { l.groups(p) },
		func(l *look) { l.windows(p) },
		func(l *look) { l.dead(p) },
	} {
		l.scoped(part, lua.ErrWrongType) // l.types reports keys of a wrong type
	}
	if p.partition == 0 {
		l.settingsOf(p, p.keys.Policy, false)
		l.patience(p)
		l.scoped(func(l *look) { l.recurrences(p) }, lua.ErrWrongType)
	}
}

// types checks for keys of the wrong type, and for keys with an expiry.
func (l *look) types(p place, keys, want []string) {
	is, ttl := make([]string, len(keys)), make([]int64, len(keys))
	var questions []view.Question
	for i, key := range keys {
		questions = append(questions, view.Into(l.c.B().Type().Key(key).Build(), &is[i], rueidis.RedisResult.ToString),
			view.Number(l.c.B().Pttl().Key(key).Build(), &ttl[i]))
	}
	l.read(questions...)
	for i, key := range keys {
		if is[i] != want[i] && is[i] != "none" {
			l.probeEachTwice(func(l *look) *Finding {
				is := l.text(l.c.B().Type().Key(key).Build())
				if is == want[i] || is == "none" {
					return nil
				}
				return l.finding(wrongType, p, key, "", 1, fmt.Sprintf("%s holds a %s where a %s belongs", key, is, want[i]))
			})
		}
		expiresWhenIdle := key == p.keys.History || key == p.keys.Rate || key == p.keys.Changes
		if ttl[i] >= 0 && !expiresWhenIdle {
			l.probeEachTwice(func(l *look) *Finding { return l.expiry(p, key) })
		}
	}
}

// expiry returns a finding if a key has an expiry.
func (l *look) expiry(p place, key string) *Finding {
	ttl := l.number(l.c.B().Pttl().Key(key).Build())
	if ttl < 0 {
		return nil
	}
	f := l.finding(expires, p, key, "", 1, fmt.Sprintf("%s is deleted in %s", key,
		(time.Duration(ttl)*time.Millisecond).Round(time.Second)))
	return f.mendedBy(func(ctx context.Context) (string, error) {
		_, err := lua.Persist(ctx, l.c, key)
		return "removed the expiry of " + key, err
	})
}

// tokens checks a wake stream.
func (l *look) tokens(p place) {
	l.probeEachTwice(func(l *look) *Finding {
		mend := func(ctx context.Context) (string, error) {
			return "added a token to " + p.keys.Wake, lua.AddToken(ctx, l.c, p.keys.Wake)
		}
		n := l.number(l.c.B().Xlen().Key(p.keys.Wake).Build())
		if n > 1 {
			return l.finding(manyTokens, p, p.keys.Wake, "", n, fmt.Sprintf("%d tokens in %s", n, p.keys.Wake)).mendedBy(mend)
		}
		if n == 1 || p.keys.Due == "" { // the wake stream that all queues share has no schedule, and needs no token
			return nil
		}
		return l.counted(noToken, p, p.keys.Wake, "", l.number(l.c.B().Zcard().Key(p.keys.Due).Build()),
			"message is scheduled without one", "messages are scheduled without one").mendedBy(mend)
	})
}

// windows checks the ends of dedup windows.
func (l *look) windows(p place) {
	// A bridge tidies its quiet partitions in turn, so the slack grows with the number of partitions.
	slack := windowSlack + time.Duration(l.partitions())*keeper.DefaultTidyInterval
	ended, far := ms(l.now.Add(-slack)), ms(l.now.Add(farWindows))
	l.probeEachTwice(scores(endedWindow, p, p.keys.Seen, "-inf", "("+ended, "window", "ended long ago", l.trim(p)),
		scores(farWindow, p, p.keys.Seen, far, "+inf", "window", "in more than ten years", nil))
}

func ms(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// scores returns a probe that finds members of a sorted set with scores in a range. name is the noun for a member, and
// found is the fault of such a member.
func scores(c *Check, p place, key, from, to, name, found string, mend mend) probe {
	return func(l *look) *Finding {
		n, some := l.between(key, from, to)
		return l.counted(c, p, key, "", n, name+" "+found, name+"s "+found, some...).mendedBy(mend)
	}
}

// between counts the members of a sorted set with scores in a range, and returns some of them.
func (l *look) between(key, from, to string) (n int64, some []string) {
	var list []rueidis.ZScore
	l.read(view.Number(l.c.B().Zcount().Key(key).Min(from).Max(to).Build(), &n),
		view.Scores(l.c.B().Zrangebyscore().Key(key).Min(from).Max(to).Withscores().Limit(0, examples).Build(), &list))
	for _, one := range list {
		some = append(some, shown(one.Member)+" at "+strconv.FormatFloat(one.Score, 'f', -1, 64))
	}
	return n, some
}

// trim returns a repair that frees entries that no group needs, and ended dedup windows.
func (e *examination) trim(p place) mend {
	return func(ctx context.Context) (string, error) {
		freed, windows, err := keeper.Trim(ctx, e.c, e.Prefix, p.name())
		return fmt.Sprintf("freed %s and %s of %s", plural(int64(freed), "entry", "entries"),
			plural(int64(windows), "dedup window", "dedup windows"), p.name()), err
	}
}

// settingsOf checks the settings of a queue, or the defaults.
func (l *look) settingsOf(p place, key string, defaults bool) {
	probe := func(c *Check, wrong func(fields map[string]string) []string) probe {
		return func(l *look) *Finding {
			return l.listed(c, p, key, "", wrong(l.fields(key)), "field of "+key+" without effect",
				"fields of "+key+" without effect")
		}
	}
	l.probeEachTwice(probe(badSetting, func(fields map[string]string) (list []string) {
		bad, _ := policy.CheckSettings(fields, defaults)
		for field, err := range bad {
			list = append(list, field+": "+err.Error())
		}
		slices.Sort(list)
		return list
	}), probe(oddSetting, func(fields map[string]string) []string {
		_, unknown := policy.CheckSettings(fields, defaults)
		return unknown
	}))
}

// policy returns the policy of a queue for a group.
func (l *look) policy(queue, group string) policy.Policy {
	return ask(l, func(ctx context.Context) (policy.Policy, error) {
		rules, _, err := policy.Read(ctx, l.c, l.Prefix, queue, group)
		return rules, err
	})
}

// patience reports how long failing messages are retried.
func (l *look) patience(p place) {
	l.scoped(func(l *look) {
		policy := l.policy(p.queue, "")
		if l.err != nil {
			return
		}
		l.report.Patience = append(l.report.Patience, Patience{p.queue, policy.MaxAttempts, policy.TriedFor().Milliseconds()})
		l.probeEachTwice(func(l *look) *Finding {
			policy := l.policy(p.queue, "")
			lasts := policy.TriedFor()
			if lasts >= shortPatience {
				return nil
			}
			return l.finding(givesUpEarly, p, "", "", 1,
				fmt.Sprintf("a message that always fails is a dead letter after about %s: %s",
					lasts, plural(int64(policy.MaxAttempts), "attempt", "attempts")))
		})
	}, lua.ErrWrongType)
}

// dead checks the dead letters.
func (l *look) dead(p place) {
	key := p.keys.Dead
	var n int64
	var first, recent []rueidis.XRangeSlice
	l.read(view.Number(l.c.B().Xlen().Key(key).Build(), &n),
		view.Entries(l.c.B().Xrange().Key(key).Start(ms(l.now.Add(-sizes.FreshLetter))).End("+").Count(1).Build(), &recent),
		view.Entries(l.c.B().Xrange().Key(key).Start("-").End("+").Count(1).Build(), &first))
	if n == 0 || l.err != nil {
		return
	}
	letters := plural(n, "dead letter", "dead letters")
	switch {
	case n >= deadMany:
		l.add(l.finding(manyDead, p, key, "", n, letters))
	// An entry without a reason is no dead letter: oddLetters reports it.
	case len(recent) > 0 && lua.ParseLetter(recent[0].ID, recent[0].FieldValues).Reason != "":
		newest := l.newestEntry(key, recent[0].ID)
		l.add(l.finding(freshDead, p, key, "", n, recentLetter(letters, entryID(newest).Age(l.now)), newest))
	}
	if len(first) > 0 && entryID(first[0].ID).Age(l.now) > deadOld {
		l.add(l.finding(oldDead, p, key, "", n, fmt.Sprintf("the oldest of %s is of %s", letters,
			lua.EntryTime(first[0].ID).UTC().Format(time.DateOnly)), first[0].ID))
	}
	l.oddLetters(p, n)
}

// newestEntry returns the ID of the last entry of a stream. If it cannot be read, newestEntry returns known, the ID of
// another entry.
func (l *look) newestEntry(key, known string) string {
	var last string
	l.read(view.Into(l.c.B().XinfoStream().Key(key).Build(), &last, func(reply rueidis.RedisResult) (string, error) {
		info, err := reply.AsMap()
		if err != nil {
			return "", err
		}
		entry := info["last-entry"]
		if entry.IsNil() { // all entries were deleted meanwhile
			return "", nil
		}
		one, err := entry.AsXRangeEntry()
		return one.ID, err
	}))
	if l.denied("the newest entry of "+key) || entryID(last).Compare(entryID(known)) < 0 {
		return known
	}
	return last
}

// oddLetters checks the n entries of the dead-letter stream for entries that are no dead letters.
func (l *look) oddLetters(p place, n int64) {
	key := p.keys.Dead
	var odd []string
	count, page := int64(0), l.pageOf(key, n)
	way := &progress{look: l, step: "dead letters of " + p.name(), key: key, all: n,
		one: "dead letter", many: "dead letters"}
	for from := "-"; ; {
		var letters []rueidis.XRangeEntry
		l.read(view.Into(l.c.B().Xrange().Key(key).Start(from).End("+").Count(page).Build(), &letters,
			rueidis.RedisResult.AsXRange))
		for _, one := range letters {
			if _, err := strconv.ParseInt(one.FieldValues[lua.FieldDead], 10, 64); err != nil ||
				one.FieldValues[lua.FieldReason] == "" || one.FieldValues[lua.FieldID] == "" {
				count++
				if len(odd) < examples {
					odd = append(odd, one.ID+" without "+missing(one.FieldValues))
				}
			}
		}
		if !way.more(len(letters)) || int64(len(letters)) < page {
			break
		}
		from = "(" + letters[len(letters)-1].ID
	}
	if count > 0 && l.err == nil {
		l.add(l.finding(oddDead, p, key, "", count,
			plural(count, "entry that is", "entries that are")+" no dead letter", odd...))
	}
}

// missing returns what an entry lacks to be a dead letter.
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
