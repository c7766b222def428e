package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file shows one message: where it is, and why it is not delivered.

func messageSection() section {
	return section{
		pages: []page{{path: "message", title: "Message", template: "message", show: showMessage, live: liveMessage}},
		routes: []route{
			{http.MethodGet, "payload", servePayload},
			{http.MethodGet, "message-json", serveMessageJSON},
		},
		actions: messageActions(),
	}
}

// Bounds of the page.
const (
	maxPlaces       = 50      // cards
	maxPayloads     = 5       // different payloads that are shown
	maxLiveRequests = 100     // requests to Redis of a look that may be repeated without being asked for
	maxLivePayload  = 1 << 20 // bytes that such a look may read
	maxLiveStory    = 20_000  // entries of a history that such a look may read, when the message has changed
	storyTimeout    = 3 * time.Second

	// maxFinds is the number of messages that are searched at the same time. Other requests wait.
	maxFinds = 4

	// idleShare is the pause for each Redis request of the last look, while nothing changes.
	idleShare = 750 * time.Millisecond
)

// messageState is the state of a message in Redis.
type messageState struct {
	finding  admin.Finding
	payloads []payloadOf // of the places, in their order
	stopped  bool        // the search took too long, so there may be more places
	story    admin.Story
	noStory  error // why there is no story; nil = it was read
	policies map[groupOf]bridge.Policy
	searched searched
	requests int   // requests to Redis of a search, about
	unknown  error // the queue that was searched does not exist
}

// searched names the queues in which a message is searched. There is at least one.
type searched struct {
	queues []string
	all    bool // these are all queues
}

// inQueue names one queue.
func inQueue(queue string) searched { return searched{queues: []string{queue}} }

// filter returns the queues as the options of package admin name them.
func (s searched) filter() []string {
	if s.all {
		return nil
	}
	return s.queues
}

// payloadOf names the payload of a place by its content.
type payloadOf struct {
	digest string // "" = the payload is lost
	size   int64
}

// groupOf names a group of a queue; the group "" stands for the queue itself.
type groupOf struct{ queue, group string }

// messageView is the data of the page.
type messageView struct {
	messageState
	ID, Queue string
	Form      string // of the action that the viewer has chosen; "" = none
	Group     string // for the form
	Letter    string // for the form
	Running   string // for the form: "1" = also an entry of the stream
	All       string // "1" = all queues were searched, and the viewer is not sent to the only one with the message
	Due       time.Time
	Payloads  []payloadView
	Headers   []headersView
	View      string // how payloads are shown, by the address; "" = automatically
	Hidden    int    // different payloads that are not shown
}

// Title is the name of the page.
func (v messageView) Title() string {
	if v.ID == "" {
		return "Message"
	}
	return visible(v.ID)
}

// Still reports whether the page does not change by itself: nothing moves the message any more, or looking again would
// cost too much.
func (v messageView) Still() bool { return v.Queue == "" || v.ID == "" || v.IsAtRest() || v.IsCostly() }

// IsAtRest reports whether only a person or a producer can change the state of the message.
func (s messageState) IsAtRest() bool {
	return !slices.ContainsFunc(s.finding.Places, func(p admin.Sighting) bool { return p.State != admin.StateDead })
}

// IsCostly reports whether a look reads so much that it must not be repeated without being asked for.
func (s messageState) IsCostly() bool {
	return s.stopped || s.requests > maxLiveRequests || s.bytes() > maxLivePayload
}

// bytes returns the size of the payloads of all places.
func (s messageState) bytes() (size int) {
	for _, p := range s.payloads {
		size += int(p.size)
	}
	return size
}

// lookAtMessage reads a message from queues. Before is the state at an earlier look, or
// nil: if the message has not changed since, its story is not read again.
func (d *Dashboard) lookAtMessage(
	ctx context.Context, in searched, id string, before *messageState,
) (messageState, error) {
	s, err := d.findMessage(ctx, in, id)
	if err != nil {
		return s, err
	}
	if err := d.readPolicies(ctx, &s); err != nil {
		return s, err
	}
	if before != nil && (before.mark() == s.mark() || before.story.Looked > maxLiveStory) {
		s.story, s.noStory = before.story, before.noStory
		return s, nil
	}
	return s, d.readStory(ctx, &s)
}

// findMessage searches the queues for the places of a message. If that takes more than three fifths of the time of a
// request, the state holds the places found until then.
func (d *Dashboard) findMessage(ctx context.Context, in searched, id string) (messageState, error) {
	s := messageState{searched: in, policies: map[groupOf]bridge.Policy{}}
	select {
	case d.finds <- struct{}{}:
		defer func() { <-d.finds }()
	case <-ctx.Done():
		return s, ctx.Err()
	}
	partitions := 1
	if len(in.queues) == 1 {
		counts, err := d.op.Partitions(ctx, in.queues[0])
		if err != nil {
			return s, err
		}
		partitions = counts.Latest()
	}
	searching, cancel := context.WithTimeout(ctx, d.cfg.Timeout*3/5)
	defer cancel()
	var seen []admin.Sighting
	var err error
	s.finding, err = d.op.Find(searching, id, admin.FindOptions{
		Queues: in.filter(), Seen: func(p admin.Sighting) { seen = append(seen, p) },
	})
	switch {
	case errors.Is(err, admin.ErrNotFound) && len(in.queues) == 1:
		if err := d.shared().CheckKnown(ctx, in.queues[0]); errors.Is(err, admin.ErrNoQueue) {
			s.unknown = err
		} else if err != nil {
			return s, err
		}
	case err == nil, errors.Is(err, admin.ErrNotFound):
	case searching.Err() != nil && ctx.Err() == nil:
		s.stopped, s.finding.Places = true, seen
	default:
		return s, err
	}
	// A search takes about a dozen requests, eight for each partition, and one for 250 entries or letters.
	s.requests = 12 + 8*partitions + int(s.finding.Looked/250)
	for _, p := range s.finding.Places {
		one := payloadOf{size: int64(len(p.Payload))}
		if p.Payload != nil {
			one.digest = digest(p.Payload)
		}
		s.payloads = append(s.payloads, one)
	}
	return s, nil
}

// readPolicies reads the policies of the queues and groups of the places.
func (d *Dashboard) readPolicies(ctx context.Context, s *messageState) error {
	for _, p := range s.finding.Places[:min(maxPlaces, len(s.finding.Places))] {
		for _, key := range []groupOf{{p.Queue, ""}, {p.Queue, p.Group}} {
			if _, known := s.policies[key]; known {
				continue
			}
			policy, _, err := d.op.ReadPolicy(ctx, key.queue, key.group)
			if err != nil {
				return err
			}
			s.policies[key] = policy
		}
	}
	return nil
}

// errLongHistory: the history was not read to its end.
var errLongHistory = errors.New("the history is too long to be read here")

// readStory reads the story from the queues that hold the message, or from all if none does.
func (d *Dashboard) readStory(ctx context.Context, s *messageState) error {
	queues := s.searched.filter()
	if len(s.finding.Places) > 0 {
		queues = nil
		for _, p := range s.finding.Places {
			queues = append(queues, p.Queue)
		}
		slices.Sort(queues)
		queues = slices.Compact(queues)
	}
	reading, cancel := context.WithTimeout(ctx, storyTimeout)
	defer cancel()
	var err error
	s.story, err = d.op.Story(reading, s.finding.ID, admin.StoryOptions{Queues: queues})
	switch {
	case err == nil:
	case errors.Is(err, admin.ErrNoHistory), errors.Is(err, admin.ErrUntold):
		s.noStory = err
	case reading.Err() != nil && ctx.Err() == nil:
		s.noStory = errLongHistory
	default:
		return err
	}
	return nil
}

// inspectable returns the names of the queues that the viewer may inspect.
func (q *request) inspectable() ([]string, error) {
	names, err := q.op.Queues(q.ctx)
	return slices.DeleteFunc(names, func(name string) bool { return !q.may(access.Inspect, name) }), err
}

// whereToSearch returns the queue of the address, or if there is none all queues that the viewer may inspect.
// errForbidden: there are none.
func (q *request) whereToSearch() (in searched, err error) {
	if q.queue() != "" {
		return inQueue(q.queue()), nil
	}
	in.all = q.may(access.Inspect, "")
	if in.queues, err = q.inspectable(); err != nil {
		return in, err
	}
	if len(in.queues) == 0 { // an empty list would mean all queues
		return in, errForbidden
	}
	return in, nil
}

// takeFind waits until the request may search a message, which reads all entries of a queue. A token has a share of the
// places. The caller calls leave.
func (q *request) takeFind() (leave func(), err error) {
	t, err := q.finders.join(q.grant.Name())
	if err != nil {
		return nil, err
	}
	before := 0
	if err := q.finders.wait(q.ctx, t, func(n int) { before = n }); err != nil {
		q.finders.leave(t)
		return nil, tooMany{q.finders.what, before + 1}
	}
	return func() { q.finders.leave(t) }, nil
}

// takePayload waits until the request may read the payload of a dead letter or a recurrence. Redis and this process
// hold each such payload until it has been read, and other requests to Redis wait behind it. The caller calls leave.
func (q *request) takePayload() (leave func(), err error) { return q.takeTurn(q.payloads) }

// readPayloads calls read in a turn of takePayload. The error is that of takePayload or of read.
func (q *request) readPayloads(read func() error) error {
	leave, err := q.takePayload()
	if err != nil {
		return err
	}
	defer leave()
	return read()
}

func showMessage(q *request) (any, error) {
	id := q.query.Get("id")
	if id == "" {
		return messageView{}, nil
	}
	if err := lua.CheckID(id); err != nil {
		return nil, err
	}
	in, err := q.whereToSearch()
	if errors.Is(err, errForbidden) {
		return messageView{ID: id, messageState: messageState{noStory: admin.ErrNoHistory}}, nil
	}
	if err != nil {
		return nil, err
	}
	leave, err := q.takeFind()
	if err != nil {
		return nil, err
	}
	defer leave()
	s, err := q.lookAtMessage(q.ctx, in, id, nil)
	if err != nil {
		return nil, err
	}
	if q.queue() == "" && q.query.Get("all") == "" && q.r.Method == http.MethodGet {
		if only, ok := s.onlyQueue(); ok {
			to, err := href("message", "id", id, "queue", only, "view", q.query.Get("view"))
			return nil, errors.Join(err, elsewhere{to})
		}
	}
	v := q.messageView(s)
	if v.unknown != nil { // the error of this viewer may suggest a queue
		if err := q.op.CheckKnown(q.ctx, v.Queue); errors.Is(err, admin.ErrNoQueue) {
			v.unknown = err
		}
	}
	if err := q.work(s.bytes(), func() { v.Payloads, v.Hidden = v.viewPayloads() }); err != nil {
		return nil, err
	}
	dropPayloads(v.finding.Places) // a page that waits to be rendered must hold little
	v.Headers = v.headers()
	return v, nil
}

// dropPayloads lets the memory of payloads be used again.
func dropPayloads(places []admin.Sighting) {
	for i := range places {
		places[i].Payload = nil
	}
}

// onlyQueue returns the queue of all places, if they are in the same one.
func (s messageState) onlyQueue() (queue string, ok bool) {
	for i, p := range s.finding.Places {
		if i > 0 && p.Queue != queue {
			return "", false
		}
		queue = p.Queue
	}
	return queue, queue != "" && !s.stopped
}

// messageView returns the view of a state for the viewer.
func (q *request) messageView(s messageState) messageView {
	v := messageView{
		messageState: s, ID: s.finding.ID, Queue: q.queue(), View: q.query.Get("view"), Group: q.query.Get("group"),
		Letter: q.query.Get("letter"), Running: q.query.Get("running"), All: q.query.Get("all"),
	}
	if form := q.query.Get("do"); slices.Contains(messageForms, form) && v.Queue != "" {
		v.Form = form
	}
	for _, p := range s.finding.Places {
		if p.Group == v.Group && !p.Due.IsZero() {
			v.Due = p.Due
		}
	}
	return v
}

// Address returns the address of the page without a form.
func (v messageView) Address() (string, error) {
	return href("message", "id", v.ID, "queue", v.Queue, "all", v.All, "view", v.View)
}

// PayloadQueue returns a queue from which the files of the message can be read; "" if it is in no place.
func (v messageView) PayloadQueue() string {
	if v.Queue == "" && v.Found() {
		return v.finding.Places[0].Queue
	}
	return v.Queue
}

// DueUTC returns the due time for a field of date and time, as it is without a script.
func (v messageView) DueUTC() string {
	if v.Due.IsZero() {
		return ""
	}
	return v.Due.UTC().Format("2006-01-02T15:04:05")
}

// messageWatch looks at one message again and again, for all its viewers.
type messageWatch struct {
	d         *Dashboard
	queue, id string
	last      *messageState
	lookedAt  time.Time
	isIdle    bool // the last look showed no change
}

// costlyInterval is the least time between two looks that read much, if somebody watches nevertheless.
const costlyInterval = time.Minute

// interval returns the least time between the last look and the next one.
func (w *messageWatch) interval() time.Duration {
	switch {
	case w.last.IsCostly():
		return costlyInterval
	case w.isIdle:
		return time.Duration(w.last.requests) * idleShare
	}
	return 0
}

// mayLook reports whether it is time for another look. After a change of the queue by a viewer it is, unless a look is
// costly: the viewer must not see the old state again.
func (w *messageWatch) mayLook() bool {
	isOutdated := !w.lookedAt.After(w.d.hub.lastChange(w.queue))
	switch {
	case isOutdated && !w.last.IsCostly():
		return true
	case !isOutdated && time.Since(w.lookedAt) < w.interval():
		return false
	}
	return w.d.messageTurns.take()
}

// look returns the state of the message. If it is too early for another look, or another message's turn, that is the
// state at the last look.
func (w *messageWatch) look(ctx context.Context) (sample, error) {
	if w.last != nil && !w.mayLook() {
		return sample{value: *w.last, mark: w.last.mark()}, nil
	}
	began := time.Now()
	s, err := w.d.lookAtMessage(ctx, inQueue(w.queue), w.id, w.last)
	if err != nil {
		return sample{}, err
	}
	dropPayloads(s.finding.Places) // updates do not show payloads, and many messages may be watched
	w.isIdle = w.last != nil && w.last.mark() == s.mark()
	w.last, w.lookedAt = &s, began
	return sample{value: s, mark: s.mark()}, nil
}

func liveMessage(q *request) (*live, error) {
	id := q.query.Get("id")
	if err := errors.Join(q.checkLives(), lua.CheckID(id)); err != nil {
		return nil, err
	}
	watch := &messageWatch{d: q.Dashboard, queue: q.queue(), id: id}
	return &live{
		topic: fmt.Sprintf("message\x00%s\x00%s", q.queue(), id), queue: q.queue(), part: "message-live", look: watch.look,
		data: func(value any) (any, error) { return q.messageView(value.(messageState)), nil },
	}, nil
}
