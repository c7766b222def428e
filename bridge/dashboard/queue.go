package dashboard

import (
	"context"
	"errors"
	"slices"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file holds the page about one queue, and its tabs.

func queueSection() section {
	operate := []access.Verb{access.Operate}
	return section{
		pages: []page{{path: "queue", title: "Queue", template: "queue", show: showQueue, live: liveQueue}},
		actions: []action{
			{path: "do-queue-pause", verbs: operate, form: "queue", do: ofKnownQueue(pauseQueue)},
			{path: "do-queue-pause-workers", verbs: operate, form: "queue", do: ofKnownQueue(pauseWorkers)},
			{path: "do-queue-resume", verbs: operate, form: "queue", do: ofKnownQueue(resumeQueue)},
			{path: "do-queue-settings", verbs: operate, form: "queue", do: ofKnownQueue(saveSettings)},
			{path: "do-queue-create", verbs: []access.Verb{access.Publish, access.Operate}, form: "queue", payload: true,
				do: createMessage},
			{path: "do-queue-grow", verbs: operate, form: "queue", do: ofKnownQueue(growQueue)},
			{path: "do-queue-delete", verbs: operate, form: "queue", do: deleteQueue},
		},
	}
}

// queueTab is a tab of the page. The address names it in the parameter tab.
type queueTab struct {
	Key, Title string
	allowed    func(q *request) bool // whether the viewer sees the tab
	show       func(q *request, state queueState) (view any, err error)
}

func inspects(q *request) bool { return q.may(access.Inspect, q.queue()) }
func creates(q *request) bool  { return q.mayPublish(q.queue()) }
func operates(q *request) bool { return q.may(access.Operate, q.queue()) }

// queueTabs are all tabs; the first one is shown if the address names none.
func queueTabs() []queueTab {
	return []queueTab{
		{"", "Overview", inspects, nil},
		{"due", "Due times", inspects, showDue},
		{"consumers", "Consumers", inspects, showConsumers},
		{"latency", "Latency", inspects, showLatency},
		{"history", "History", inspects, showHistory},
		{"settings", "Settings", inspects, showSettings},
		{"partitions", "Partitions", inspects, showPartitions},
		{"create", "Create a message", creates, showCreate},
		{"delete", "Delete", operates, showDelete},
	}
}

// queueView is the data of the page.
type queueView struct {
	Queue string
	Tab   string
	Tabs  []queueTab
	State queueState
	View  any // of the tab
}

func showQueue(q *request) (any, error) {
	if err := lua.CheckQueue(q.queue()); err != nil {
		return nil, err
	}
	if err := q.op.CheckKnown(q.ctx, q.queue()); err != nil {
		return nil, err
	}
	l, err := q.liveQueue()
	if err != nil {
		return nil, err
	}
	value, err := q.sample(l)
	if err != nil {
		return nil, err
	}
	v := q.queueView(value.(queueState))
	for _, tab := range v.Tabs {
		if tab.Key == v.Tab && tab.show != nil {
			v.View, err = tab.show(q, v.State)
		}
	}
	return v, err
}

// queueView returns the data of the page, without that of the tab.
func (q *request) queueView(state queueState) queueView {
	v := queueView{Queue: q.queue(), State: state}
	v.State.Findings = q.findings(state.Findings)
	for _, tab := range queueTabs() {
		if tab.allowed(q) {
			v.Tabs = append(v.Tabs, tab)
		}
	}
	if wanted := q.query.Get("tab"); slices.ContainsFunc(v.Tabs, func(t queueTab) bool { return t.Key == wanted }) {
		v.Tab = wanted
	}
	return v
}

// liveQueue keeps the overview of the queue up to date, and on other tabs the line below the title.
func liveQueue(q *request) (*live, error) {
	if err := q.checkLives(); err != nil {
		return nil, err
	}
	return q.liveQueue()
}

// checkLives returns an error if the queue of the address does not exist, so that a viewer cannot make looks at queues
// of any name. While Redis is away it returns none: the stream tells that.
func (q *request) checkLives() error {
	if err := lua.CheckQueue(q.queue()); err != nil {
		return err
	}
	ctx, end := context.WithTimeout(q.ctx, q.cfg.Timeout)
	defer end()
	if err := q.op.CheckKnown(ctx, q.queue()); errors.Is(err, admin.ErrNoQueue) {
		return err
	}
	return nil
}

func (q *request) liveQueue() (*live, error) {
	l := q.queueTopic(q.queue())
	l.part = "queue-state"
	if q.queueView(queueState{}).Tab == "" {
		l.part = "queue-live"
	}
	l.data = func(value any) (any, error) { return q.queueView(value.(queueState)), nil }
	return l, nil
}
