package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// letterFilter reads a filter of dead letters from the query.
func letterFilter(q query) (admin.LetterFilter, error) {
	older, errOlder := q.millis("older_than_ms")
	newer, errNewer := q.millis("newer_than_ms")
	limit, errLimit := q.integer("limit", 0, 1, 1_000_000)
	newest, errNewest := q.flag("newest")
	f := admin.LetterFilter{Group: q["group"], Reason: q["reason"], ErrorText: q["error"], ID: q["id"],
		OlderThan: older, NewerThan: newer, Limit: int(limit), Newest: newest}
	return f, errors.Join(errOlder, errNewer, errLimit, errNewest)
}

// requiredFilter is letterFilter for requests that change dead letters. A request without a filter must have all=true.
func requiredFilter(q query) (admin.LetterFilter, error) {
	f, err := letterFilter(q)
	all, errAll := q.flag("all")
	err = errors.Join(err, errAll)
	isEmpty := f == admin.LetterFilter{}
	if err == nil && isEmpty && !all {
		err = lua.Invalid("all", "", "must be true where no filter is given")
	}
	return f, err
}

// listLetters shows dead letters: at most a hundred unless the query has a limit.
func listLetters(c *call) (int, any, error) {
	f, err := letterFilter(c.query)
	if err == nil && f.Limit > mostListed {
		err = lua.Invalid("limit", c.query["limit"], "must be a whole number from 1 to %d", mostListed)
	}
	if err == nil {
		err = c.op.CheckKnown(c.Ctx, c.queue)
	}
	if err != nil {
		return 0, nil, err
	}
	if f.Limit == 0 {
		f.Limit = defaultLimit
	}
	list, bytes := []admin.Letter{}, 0
	for letter, err := range c.op.DeadLetters().List(c.Ctx, c.queue, f) {
		if err != nil {
			return 0, nil, err
		}
		if bytes += len(letter.Payload); bytes > maxAnswered && len(list) > 0 {
			return http.StatusOK, map[string]any{"letters": list, "more": true}, nil
		}
		list = append(list, letter)
	}
	return http.StatusOK, map[string]any{"letters": list}, nil
}

func showLetter(c *call) (int, any, error) {
	l, err := c.op.DeadLetters().Show(c.Ctx, c.queue, c.id())
	return http.StatusOK, l, err
}

// part is the progress that a long operation made within the time of one request.
type part struct {
	admin.RedriveResult
	More bool `json:"more"` // the time was up: repeat the request to continue
}

// timeIsUp returns more, and no error, if err only means that the time of the request is up.
func (c *call) timeIsUp(err error) (more bool, failed error) {
	callerWaits := c.R.Context().Err() == nil
	if errors.Is(err, context.DeadlineExceeded) && c.Ctx.Err() != nil && callerWaits {
		return true, nil
	}
	return false, err
}

// redriveLetters redrives the dead letters that match the filter, until the time of the request is up.
func redriveLetters(c *call) (int, any, error) {
	f, errFilter := requiredFilter(c.query)
	delay, errDelay := c.query.millis("in_ms")
	spread, errSpread := c.query.millis("spread_ms")
	rate, errRate := c.query.rate("rate")
	dry, errDry := c.query.flag("dry_run")
	err := errors.Join(errFilter, errDelay, errSpread, errRate, errDry, checkTo(c.query))
	if err == nil {
		err = c.op.CheckKnown(c.Ctx, c.queue)
	}
	if err != nil {
		return 0, nil, err
	}
	r, err := c.op.DeadLetters().RedriveMatching(c.Ctx, c.queue, f,
		admin.RedriveOptions{Delay: delay, Spread: spread, To: c.query["to"], Rate: rate, DryRun: dry})
	more, err := c.timeIsUp(err)
	if r.Scheduled > 0 && delay == 0 && spread == 0 && !dry {
		c.makeReady()
	}
	return http.StatusOK, part{r, more}, err
}

// makeReady makes redriven messages ready before the request is answered, so that the next consumer gets them. An
// error is only logged: the messages are scheduled, and a bridge makes them ready.
func (c *call) makeReady() {
	if err := c.op.MakeReady(c.Ctx, c.queue); err != nil {
		c.log.Warn("redriven messages become ready after their request is answered", slog.String("queue", c.queue),
			slog.Any("error", err))
	}
}

// checkTo checks the group in the parameter to, which gets the redriven messages.
func checkTo(q query) error {
	if to, is := q["to"]; is {
		return lua.CheckGroup(to)
	}
	return nil
}

// redriveLetter redrives one dead letter. With replace_payload the body is its new payload.
func redriveLetter(c *call) (int, any, error) {
	delay, errDelay := c.query.millis("in_ms")
	replace, errReplace := c.query.flag("replace_payload")
	if err := errors.Join(errDelay, errReplace, checkTo(c.query)); err != nil {
		return 0, nil, err
	}
	o := admin.RedriveOptions{Delay: delay, To: c.query["to"]}
	if replace {
		payload, err := c.Body(c.cfg.MaxPayload)
		if err != nil {
			return 0, nil, err
		}
		o.Payload = &payload
	}
	r, err := c.op.DeadLetters().Redrive(c.Ctx, c.queue, []string{c.id()}, o)
	switch {
	case err == nil && r.Gone > 0:
		err = admin.ErrNotFound
	case err == nil && r.Left() > 0:
		return 0, nil, &problem{Type: typeLeft, Status: http.StatusConflict,
			Detail: "the dead letter stays as it is: its payload or headers are lost, or its group is gone"}
	}
	if r.Scheduled > 0 && delay == 0 {
		c.makeReady()
	}
	return http.StatusOK, r, err
}

func purgeLetter(c *call) (int, any, error) {
	n, err := c.op.DeadLetters().Purge(c.Ctx, c.queue, []string{c.id()})
	if err == nil && n == 0 {
		err = admin.ErrNotFound
	}
	return http.StatusNoContent, nil, err
}

func purgeLetters(c *call) (int, any, error) {
	f, err := requiredFilter(c.query)
	if err == nil {
		err = c.op.CheckKnown(c.Ctx, c.queue)
	}
	if err != nil {
		return 0, nil, err
	}
	n, err := c.op.DeadLetters().PurgeProgress(c.Ctx, c.queue, f, func(int) {})
	more, err := c.timeIsUp(err)
	return http.StatusOK, map[string]any{"purged": n, "more": more}, err
}
