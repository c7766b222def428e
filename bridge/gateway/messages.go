package gateway

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// found lists the places of a message in its queue.
type found struct {
	Queue  string        `json:"queue"`
	ID     string        `json:"id"`
	Places []admin.Place `json:"places"`
}

func get(c *call) (int, any, error) {
	if err := lua.CheckID(c.id()); err != nil {
		return 0, nil, err
	}
	places, err := c.op.Locate(c.Ctx, c.queue, c.id())
	return http.StatusOK, found{c.queue, c.id(), places}, err
}

// withdrawn is the reply to a cancel with running=true.
type withdrawn struct {
	ID      string               `json:"id"`
	Verdict bridge.CancelVerdict `json:"verdict"`
	Holders []bridge.Holder      `json:"holders,omitempty"`
}

func cancel(c *call) (int, any, error) {
	running, err := c.query.flag("running")
	if group, is := c.query["group"]; err == nil && is && !running {
		err = lua.Invalid("group", group, "is allowed only with running=true")
	}
	if err != nil {
		return 0, nil, err
	}
	if running {
		return cancelRunning(c)
	}
	return http.StatusNoContent, nil, c.client.Cancel(c.Ctx, c.queue, c.id())
}

func cancelRunning(c *call) (int, any, error) {
	done, err := c.client.CancelRunning(c.Ctx, c.queue, c.query["group"], c.id())
	if err != nil {
		return 0, nil, err
	}
	if done[0].Verdict == bridge.VerdictNotFound {
		return 0, nil, admin.ErrNotFound
	}
	return http.StatusOK, withdrawn{done[0].ID, done[0].Verdict, done[0].Holders}, nil
}

func reschedule(c *call) (int, any, error) {
	m, err := parseOptions(c.query)
	if err == nil && len(c.query) != 1 {
		err = lua.Invalid("in_ms", "", "give either in_ms or at_ms, and nothing else")
	}
	if err != nil {
		return 0, nil, err
	}
	to := bridge.In(m.Delay)
	if !m.At.IsZero() {
		to = bridge.At(m.At)
	}
	due, err := c.client.Reschedule(c.Ctx, c.queue, c.id(), to)
	return http.StatusOK, receipt{ID: c.id(), Due: due}, err
}

// allowedQueues returns the queues on which the token allows a verb.
func (c *call) allowedQueues(verb access.Verb) ([]string, error) {
	all, err := c.op.Queues(c.Ctx)
	return append([]string{}, slices.DeleteFunc(all, func(queue string) bool { return !c.Grant.May(verb, queue) })...), err
}

func queues(c *call) (int, any, error) {
	names, err := c.allowedQueues(access.Inspect)
	return http.StatusOK, map[string]any{"queues": names}, err
}

// find looks for a message in all queues that the token allows.
func find(c *call) (int, any, error) {
	if err := lua.CheckID(c.id()); err != nil {
		return 0, nil, err
	}
	names, err := c.allowedQueues(access.Inspect)
	if err == nil && len(names) == 0 { // an empty list would mean all queues
		err = admin.ErrNotFound
	}
	if err != nil {
		return 0, nil, err
	}
	f, err := c.op.Find(c.Ctx, c.id(), admin.FindOptions{Queues: names})
	return http.StatusOK, f, err
}

// Bounds of a list.
const (
	defaultLimit = 100
	mostListed   = 1000
)

func stats(c *call) (int, any, error) {
	if err := c.op.CheckKnown(c.Ctx, c.queue); err != nil {
		return 0, nil, err
	}
	s, err := c.op.Stats(c.Ctx, c.queue)
	return http.StatusOK, s, err
}

// defaultWithin is the time of a forecast if the query has no within_ms.
const defaultWithin = time.Minute

// forecast returns the work that the queue has now and will have within a time.
func forecast(c *call) (int, any, error) {
	within, err := c.query.integer("within_ms", defaultWithin.Milliseconds(), 0, lua.MaxDelay.Milliseconds())
	if group, is := c.query["group"]; is {
		err = errors.Join(err, lua.CheckGroup(group))
	}
	if err == nil {
		err = c.op.CheckKnown(c.Ctx, c.queue)
	}
	if err != nil {
		return 0, nil, err
	}
	f, err := c.op.Forecast(c.Ctx, c.queue, c.query["group"], time.Duration(within)*time.Millisecond)
	return http.StatusOK, f, err
}

// recentChanges is the answer of history.
type recentChanges struct {
	admin.Recent
	IsKept bool `json:"kept"` // the queue keeps a history
}

// history returns the newest changes of the messages of a queue.
func history(c *call) (int, any, error) {
	n, err := c.query.integer("limit", 50, 1, admin.MaxRecent)
	if err != nil {
		return 0, nil, err
	}
	if err := c.op.CheckKnown(c.Ctx, c.queue); err != nil {
		return 0, nil, err
	}
	recent, err := c.op.Recent(c.Ctx, c.queue, int(n))
	isKept := !errors.Is(err, admin.ErrNoHistory)
	if !isKept {
		err = nil
	}
	return http.StatusOK, recentChanges{recent, isKept}, err
}

func peek(c *call) (int, any, error) {
	n, err := c.query.integer("limit", 10, 1, mostListed)
	payloads, errFlag := c.query.flag("payloads")
	if err := errors.Join(err, errFlag); err != nil {
		return 0, nil, err
	}
	if err := c.op.CheckKnown(c.Ctx, c.queue); err != nil {
		return 0, nil, err
	}
	p, err := c.op.Peek(c.Ctx, c.queue, int(n), false)
	if err != nil {
		return 0, nil, err
	}
	isPart := false
	if payloads {
		found := len(p.Next)
		fitting := fitting(p.Next)
		if p, err = c.op.Peek(c.Ctx, c.queue, fitting, true); err != nil {
			return 0, nil, err
		}
		isPart = fitting < found
	}
	answer := map[string]any{"at": p.At, "total": p.Total, "held": p.Held, "next": append([]admin.Due{}, p.Next...)}
	if isPart {
		answer["more"] = true
	}
	return http.StatusOK, answer, nil
}

// fitting returns how many of the first messages have at most maxAnswered bytes of payloads together, but at least 1.
func fitting(list []admin.Due) int {
	bytes := int64(0)
	for i, d := range list {
		if bytes += d.Bytes; bytes > maxAnswered && i > 0 {
			return i
		}
	}
	return max(1, len(list))
}

func pending(c *call) (int, any, error) {
	n, err := c.query.integer("limit", defaultLimit, 1, mostListed)
	idle, errIdle := c.query.millis("min_idle_ms")
	if err := errors.Join(err, errIdle, lua.CheckGroup(c.query["group"])); err != nil {
		return 0, nil, err
	}
	list, err := c.op.Pending(c.Ctx, c.queue, c.query["group"],
		admin.PendingFilter{Consumer: c.query["consumer"], MinIdle: idle}, int(n))
	return http.StatusOK, map[string]any{"pending": append([]admin.PendingEntry{}, list...)}, err
}

func consumers(c *call) (int, any, error) {
	if group, is := c.query["group"]; is {
		if err := lua.CheckGroup(group); err != nil {
			return 0, nil, err
		}
	} else if err := c.op.CheckKnown(c.Ctx, c.queue); err != nil {
		return 0, nil, err
	}
	list, err := c.op.Consumers(c.Ctx, c.queue, c.query["group"])
	return http.StatusOK, map[string]any{"consumers": append([]admin.Consumer{}, list...)}, err
}

// changed is the reply to a pause or resume. Changed is false if the queue already was in that state.
type changed struct {
	Changed bool `json:"changed"`
}

func pause(c *call) (int, any, error) {
	workers, err := c.query.flag("workers")
	if err == nil {
		err = c.op.CheckKnown(c.Ctx, c.queue)
	}
	if err != nil {
		return 0, nil, err
	}
	var wasChanged bool
	if workers {
		wasChanged, err = c.named().PauseWorkers(c.Ctx, c.queue)
	} else {
		wasChanged, err = c.named().Pause(c.Ctx, c.queue, true)
	}
	return http.StatusOK, changed{wasChanged}, err
}

// named returns the handle of operators under the name of the caller's token, for the record of changes.
func (c *call) named() *admin.Admin { return c.op.As("token " + c.Grant.Name()) }

func resume(c *call) (int, any, error) {
	if err := c.op.CheckKnown(c.Ctx, c.queue); err != nil {
		return 0, nil, err
	}
	wasChanged, err := c.named().Pause(c.Ctx, c.queue, false) // false = not paused
	return http.StatusOK, changed{wasChanged}, err
}
