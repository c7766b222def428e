package dashboard

import (
	"errors"
	"fmt"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file changes one message.

// messageForms are the forms of the page, by the parameter "do" of its address.
var messageForms = []string{"cancel", "move", "expire", "purge"}

func messageActions() []action {
	publish := []access.Verb{access.Publish, access.Operate}
	operate := []access.Verb{access.Operate}
	return []action{
		{path: "do-message-cancel", verbs: publish, form: "message", do: cancelMessage},
		{path: "do-message-move", verbs: publish, form: "message", do: moveMessage},
		{path: "do-message-expire", verbs: operate, form: "message", do: expireMessage},
		{path: "do-message-redrive", verbs: operate, form: "message", do: redriveLetter},
		{path: "do-message-purge", verbs: operate, form: "message", do: purgeLetter},
	}
}

// conflict returns an error that says why a message was not changed.
func conflict(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errConflict, fmt.Sprintf(format, args...))
}

// doneWith returns the outcome of an action, which shows the page of the message again.
func (q *request) doneWith(format string, args ...any) (done, error) {
	page, err := href("message", "id", q.query.Get("id"), "queue", q.queue())
	return done{notice: fmt.Sprintf(format, args...), page: page}, err
}

// target returns the ID and the group of the form. The group is "" for all groups.
func (q *request) target() (id, group string, err error) {
	id, group = q.query.Get("id"), q.query.Get("group")
	err = lua.CheckID(id)
	if group != "" {
		err = errors.Join(err, lua.CheckGroup(group))
	}
	return id, group, err
}

// cancelMessage cancels the message, or the delivery to one group. With running it also cancels an entry of the stream.
func cancelMessage(q *request) (done, error) {
	id, group, err := q.target()
	if err != nil {
		return done{}, err
	}
	if q.query.Get("running") != "" {
		return q.cancelRunning(id, group)
	}
	err = q.reach(group, func(s ...bridge.Scope) error { return q.client().Cancel(q.ctx, q.queue(), id, s...) })
	if err != nil {
		return done{}, err
	}
	if group != "" {
		return q.doneWith("Cancelled: %s will not be delivered to %s again.", visible(id), visible(group))
	}
	return q.doneWith("Cancelled: %s will not be delivered.", visible(id))
}

// reach changes the retry of a group, or the scheduled message. If no message is scheduled, it changes the retries of
// all groups: a letter that was redriven for all groups is one of them.
func (q *request) reach(group string, change func(...bridge.Scope) error) error {
	if group != "" {
		return change(bridge.RetriesOf(group))
	}
	err := change()
	if errors.Is(err, bridge.ErrNotScheduled) {
		err = change(bridge.Retries())
	}
	return err
}

func (q *request) cancelRunning(id, group string) (done, error) {
	results, err := q.client().CancelRunning(q.ctx, q.queue(), group, id)
	if err != nil {
		return done{}, err
	}
	for _, c := range results {
		switch c.Verdict {
		case bridge.VerdictCancelled:
			return q.doneWith("Cancelled: %s will not be delivered.", visible(id))
		case bridge.VerdictCancelling:
			names := ""
			for _, h := range c.Holders {
				names += fmt.Sprintf(", %s of %s", visible(h.Consumer), visible(h.Group))
			}
			return q.doneWith("A worker holds %s, and is told within 5 seconds%s. The message ends when the worker releases it.",
				visible(id), names)
		case bridge.VerdictUnread:
			return done{}, conflict("group %s has not read it yet, and it is for other groups as well: cancel it for all groups",
				visible(group))
		}
	}
	return done{}, fmt.Errorf("cancel %s: %w", visible(id), admin.ErrNotFound)
}

// moveMessage moves the scheduled message, or the retry of a group, to another time.
func moveMessage(q *request) (done, error) {
	id, group, err := q.target()
	if err != nil {
		return done{}, err
	}
	to := bridge.In(0)
	if q.query.Get("now") == "" {
		at, err := q.typedTime()
		if err != nil {
			return done{}, err
		}
		to = bridge.At(at)
	}
	var due time.Time
	err = q.reach(group, func(s ...bridge.Scope) (err error) {
		due, err = q.client().Reschedule(q.ctx, q.queue(), id, to, s...)
		return err
	})
	switch {
	case err != nil:
		return done{}, err
	case q.query.Get("now") != "":
		return q.doneWith("%s is due now%s.", visible(id), q.heldBy())
	}
	return q.doneWith("Moved: %s is due at %s.", visible(id), due.In(q.zone()).Format("2006-01-02 15:04:05 MST"))
}

// heldBy names the setting of the queue that may keep a due message from becoming ready; "" if there is none. If the
// settings cannot be read, it returns "" as well, because the change itself has succeeded.
func (q *request) heldBy() string {
	p, _, err := q.op.ReadPolicy(q.ctx, q.queue(), "")
	switch {
	case err != nil:
	case p.Held:
		return ", and becomes ready when its paused queue is resumed"
	case p.Rate != "":
		return ", and becomes ready within the release rate of " + string(p.Rate)
	case p.ReadyLimit > 0:
		return ", and becomes ready within the ready limit of " + number(p.ReadyLimit)
	}
	return ""
}

// typedTime returns the time of a form with a field for date and time. The script of the page fills the field "at" with
// the exact time. Without the script the field "local" is in UTC.
func (q *request) typedTime() (time.Time, error) {
	if exact := q.query.Get("at"); exact != "" {
		at, err := time.Parse(time.RFC3339Nano, exact)
		if err != nil {
			return at, inField("local", lua.Invalid("at", exact, "must be a time in RFC 3339"))
		}
		return at, inField("local", lua.CheckTime("at", at))
	}
	local := q.query.Get("local")
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04"} {
		if at, err := time.ParseInLocation(layout, local, time.UTC); err == nil {
			return at, inField("local", lua.CheckTime("at", at))
		}
	}
	return time.Time{}, inField("local", lua.Invalid("local", local, "must be a date and a time"))
}

// expireMessage makes the scheduled message, or the retry of a group, expire now.
func expireMessage(q *request) (done, error) {
	id, group, err := q.target()
	if err != nil {
		return done{}, err
	}
	result, err := q.op.Bulk().Expire(q.ctx, q.queue(), admin.BulkFilter{IDs: []string{id}, Group: group},
		admin.BulkOptions{})
	switch {
	case err != nil:
		return done{}, err
	case result.Changed > 0:
		return q.doneWith("Expired: a bridge makes %s a dead letter in a moment.", visible(id))
	case result.Unchanged > 0:
		return q.doneWith("%s had expired already.", visible(id))
	case result.Refused > 0:
		return done{}, conflict("the headers of %s leave no room for an expiry", visible(id))
	}
	return done{}, fmt.Errorf("expire %s: %w", visible(id), bridge.ErrNotScheduled)
}

// letterOf returns the letter that the form names. It refuses a letter of another message, so that a link cannot name a
// letter that the page does not show.
func (q *request) letterOf(what string) (string, error) {
	letter := q.query.Get("letter")
	var l admin.Letter
	err := q.readPayloads(func() (err error) {
		l, err = q.op.DeadLetters().Show(q.ctx, q.queue(), letter)
		return err
	})
	switch {
	case errors.Is(err, admin.ErrNotFound):
		return "", fmt.Errorf("%s %s: %w: somebody redrove or purged it before", what, visible(letter), admin.ErrNotFound)
	case err != nil:
		return "", err
	case l.ID != q.query.Get("id"):
		return "", conflict("dead letter %s is one of another message, %s", visible(letter), visible(cut(l.ID, 100)))
	}
	return letter, nil
}

// redriveLetter schedules a dead letter again, for the group in which it failed.
func redriveLetter(q *request) (done, error) {
	letter, err := q.letterOf("redrive")
	if err != nil {
		return done{}, err
	}
	var result admin.RedriveResult
	err = q.readPayloads(func() (err error) {
		result, err = q.op.DeadLetters().Redrive(q.ctx, q.queue(), []string{letter}, admin.RedriveOptions{})
		return err
	})
	switch {
	case err != nil:
		return done{}, err
	case result.Scheduled > 0:
		return q.doneWith("Redriven: %s is delivered again, from attempt 1.", visible(q.query.Get("id")))
	case result.NoPayload > 0:
		return done{}, conflict("the payload of the dead letter is lost: redrive it with a new payload")
	case result.Unreadable > 0:
		return done{}, conflict("the headers of the dead letter are unreadable: redrive it with new headers")
	case result.GroupGone > 0:
		return done{}, conflict("the stream has no group %s any more: redrive the letter to another group",
			visible(result.GoneGroups[0]))
	}
	return done{}, fmt.Errorf("redrive %s: %w: somebody redrove or purged it before", visible(letter), admin.ErrNotFound)
}

// confirmPurge is the word that a viewer types to purge a dead letter.
const confirmPurge = "purge"

// purgeLetter deletes a dead letter for ever.
func purgeLetter(q *request) (done, error) {
	if typed := q.query.Get("confirm"); typed != confirmPurge {
		return done{}, inField("confirm", lua.Invalid("confirm", typed, "must be the word %s", confirmPurge))
	}
	letter, err := q.letterOf("purge")
	if err != nil {
		return done{}, err
	}
	purged, err := q.op.DeadLetters().Purge(q.ctx, q.queue(), []string{letter})
	switch {
	case err != nil:
		return done{}, err
	case purged == 0:
		return done{}, fmt.Errorf("purge %s: %w: somebody redrove or purged it before", visible(letter), admin.ErrNotFound)
	}
	return q.doneWith("Purged: the dead letter of %s is deleted.", visible(q.query.Get("id")))
}
