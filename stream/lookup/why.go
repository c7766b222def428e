package lookup

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
)

// Bounds of the questions why a message is not delivered.
const (
	whyGroups    = 8    // groups of a ready message whose consumers are read
	whyConsumers = 1000 // consumers of a group; if it has more, they are not read

	// lastHeartbeat is the greatest age of a live bridge's last heartbeat. Bridges send one every second.
	lastHeartbeat = 5 * time.Second
	// soon is how long a due or abandoned message may normally take to move.
	soon = 2 * time.Second
)

// reasons finds the reasons why a message waits. It asks each question once. If the server denies or does not answer a
// question, it gives no reason that depends on the answer.
type reasons struct {
	c      rueidis.Client
	prefix string
	now    time.Time

	noBridge  func() bool // true: the heartbeats can be read, and no bridge is alive
	redisFull func() bool // true: the memory can be read, and is at maxmemory

	mu       sync.Mutex
	policies map[[2]string]policy.Policy // by queue and group
}

func newReasons(ctx context.Context, c rueidis.Client, prefix string, now time.Time) *reasons {
	r := &reasons{c: c, prefix: prefix, now: now, policies: map[[2]string]policy.Policy{}}
	r.noBridge = sync.OnceValue(func() bool { return r.readNoBridge(ctx) })
	r.redisFull = sync.OnceValue(func() bool { return readRedisFull(ctx, c) })
	return r
}

// readNoBridge reports whether the heartbeats can be read and none of a bridge is fresh. Other programs may write names
// there, so it reads at most 100 fresh ones. It returns false if none of these is a bridge's, because more may follow.
func (r *reasons) readNoBridge(ctx context.Context) bool {
	const most = 100
	var names []string
	oldest := strconv.FormatInt(r.now.Add(-lastHeartbeat).UnixMilli(), 10)
	fresh := r.c.B().Zrange().Key(lua.NewGlobals(r.prefix).Bridges).Min("+inf").Max(oldest).Byscore().Rev().
		Limit(0, most).Build()
	err := view.Ask(ctx, r.c, view.Into(fresh, &names, rueidis.RedisResult.AsStrSlice))
	for _, name := range names {
		if _, ok := lua.ParseIdentity(name); ok {
			return false
		}
	}
	return err == nil && len(names) < most
}

// readRedisFull reports whether the server can be asked and has reached its memory limit. On a cluster it asks one
// server.
func readRedisFull(ctx context.Context, c rueidis.Client) bool {
	info, err := view.ReadInfo(ctx, c, "memory")
	return err == nil && info.Number("maxmemory") > 0 && info.Number("used_memory") >= info.Number("maxmemory")
}

// policy returns the policy of a group; ok is false if it cannot be read.
func (r *reasons) policy(ctx context.Context, queue, group string) (p policy.Policy, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := [2]string{queue, group}
	if p, ok = r.policies[key]; ok {
		return p, true
	}
	p, _, err := policy.Read(ctx, r.c, r.prefix, queue, group)
	if err == nil {
		r.policies[key] = p
	}
	return p, err == nil
}

// obstacles names the reasons why a due message stays in the schedule.
func (r *reasons) obstacles(ctx context.Context, queue string) (all []string) {
	if p, ok := r.policy(ctx, queue, ""); ok && p.Held {
		all = append(all, "the queue is paused")
	} else if ok && p.Rate != "" {
		all = append(all, "the queue has a release rate of "+string(p.Rate))
	} else if ok && p.ReadyLimit > 0 {
		all = append(all, fmt.Sprintf("the queue has a ready limit of %d", p.ReadyLimit))
	}
	if r.noBridge() {
		all = append(all, "no bridge is alive")
	}
	if r.redisFull() {
		all = append(all, "Redis is full")
	}
	return all
}

// why tells why a scheduled, pending or dead message is not delivered, or why it is not finished. For a message that
// waits for its key, front is the text of the method front.
func (r *reasons) why(ctx context.Context, p Sighting, front string) string {
	switch p.State {
	case StateScheduled, StateRetrying:
		return r.whyWaiting(ctx, p, front)
	case StatePending:
		return r.whyHeld(ctx, p)
	case StateDead:
		return whyDead(p)
	}
	return ""
}

// front returns the ID of the message that is first in line for a key, and what it does there. An unknown ID is "".
func (r *reasons) front(ctx context.Context, keys lua.Keys, key string) (id, text string) {
	const unknown = "another message of it is in flight"
	var first []string
	ask := r.c.B().Zrange().Key(keys.Turns).Min("["+key+lua.Separator).Max("("+key+lua.Separator+"wait ").Bylex().
		Limit(0, 1).Build()
	err := view.Ask(ctx, r.c, view.Into(ask, &first, rueidis.RedisResult.AsStrSlice))
	if err != nil || len(first) == 0 {
		return "", unknown
	}
	if waiting, _, ok := lua.ParsePlace(first[0]); ok {
		id = lua.ParseMember(waiting).ID
		return id, fmt.Sprintf("message %s of it is in front", quoted(id))
	}
	holder := strings.TrimPrefix(first[0], key+lua.Separator+"busy"+lua.Separator)
	if m := lua.ParseMember(holder); m.Kind != lua.MemberFirst {
		return m.ID, r.retryInFront(ctx, keys, holder, m)
	}
	entry, ok, err := view.ReadEntry(ctx, r.c, keys.Stream, holder)
	if err != nil || !ok {
		return "", unknown
	}
	id = lua.ParseEntry(entry.ID, entry.FieldValues).ID
	return id, fmt.Sprintf("message %s of it is in flight", quoted(id))
}

// retryInFront describes a retry that holds a key: its message, its group and its due time.
func (r *reasons) retryInFront(ctx context.Context, keys lua.Keys, member string, m lua.Member) string {
	var due time.Time
	err := view.Ask(ctx, r.c, view.Score(r.c.B().Zscore().Key(keys.Due).Member(member).Build(), &due))
	text := fmt.Sprintf("message %s of it is in front, and waits for its retry", quoted(m.ID))
	if m.Group != "" {
		text += " for " + quoted(m.Group)
	}
	if err == nil && !due.IsZero() {
		text += " at " + formatTime(view.Shown(due))
	}
	return text
}

// whyWaiting tells why a member of the schedule waits. front tells which message of its key is in front.
func (r *reasons) whyWaiting(ctx context.Context, p Sighting, front string) string {
	obstacles := strings.Join(r.obstacles(ctx, p.Queue), ", and ")
	late := r.now.Sub(p.Due)
	switch {
	case p.Waits:
		return strings.TrimSuffix("waits for its key "+quoted(p.Key)+": "+front+"; "+obstacles, "; ")
	case late < 0:
		text := "waits for its time, " + formatTime(p.Due)
		if p.State == StateRetrying && p.Attempt > 1 {
			text = fmt.Sprintf("waits for its retry for %s at %s (attempt %s)", quoted(p.Group), formatTime(p.Due),
				r.attempt(ctx, p))
		}
		return strings.TrimSuffix(text+"; "+obstacles, "; ")
	case obstacles != "":
		return fmt.Sprintf("%s: it is due since %s", obstacles, formatTime(p.Due))
	case late < soon:
		return "it is due since " + formatTime(p.Due) + ": a bridge is about to take it"
	}
	return fmt.Sprintf("the bridges are behind: it is due since %s", formatTime(p.Due))
}

func (r *reasons) whyHeld(ctx context.Context, p Sighting) string {
	if p.GivenBack {
		text := fmt.Sprintf("its worker of group %s gave it back by XNACK (attempt %s): ", quoted(p.Group), r.attempt(ctx, p))
		if r.noBridge() {
			return text + "no bridge is alive: nobody takes it from there"
		}
		return text + "a bridge is about to take it"
	}
	idle := time.Duration(p.Idle)
	text := fmt.Sprintf("held by consumer %s of group %s since %s (attempt %s)",
		quoted(p.Consumer), quoted(p.Group), formatTime(p.HeldSince), r.attempt(ctx, p))
	if time.Duration(p.Held)-idle > time.Second {
		text += ", last extended at " + formatTime(r.now.Add(-idle))
	}
	if policy, ok := r.policy(ctx, p.Queue, p.Group); ok && idle > policy.VisibilityTimeout+soon {
		text += ", without a sign of life for longer than the visibility timeout"
		if r.noBridge() {
			text += "; no bridge is alive: nobody takes it from there"
		}
	}
	return text
}

// attempt returns the number of the attempt and, if it is known, the greatest number of attempts: "2 of 5".
func (r *reasons) attempt(ctx context.Context, p Sighting) string {
	most := p.MaxAttempts
	if most == 0 {
		policy, ok := r.policy(ctx, p.Queue, p.Group)
		if !ok {
			return strconv.Itoa(p.Attempt)
		}
		most = policy.MaxAttempts
	}
	return fmt.Sprintf("%d of %d", p.Attempt, most)
}

// whyNowhere tells the likely reason why a message was not found; "" if there is none.
func (r *reasons) whyNowhere(f Finding) string {
	var all []string
	for _, w := range f.Windows {
		all = append(all, fmt.Sprintf("%s took it before, and it is finished or gone; its ID is remembered until %s", w.Queue,
			formatTime(w.Until)))
	}
	if len(all) == 0 && r.redisFull() {
		return "Redis is full: it may have been refused"
	}
	return strings.Join(all, "; ")
}

// deathTexts explains, by reason, why a message became a dead letter. %d is its attempt.
var deathTexts = map[string]string{
	lua.ReasonMaxAttempts:    "its attempts are used up (%d)",
	lua.ReasonHandlerTimeout: "its attempts are used up (%d): the handler of the last one took longer than it may",
	lua.ReasonRetryFor:       "it was too old for another attempt, by retry_for (attempt %d)",
	lua.ReasonMaxSnoozes:     "it was snoozed as often as it may be (attempt %d)",
	lua.ReasonCrashes:        "its workers crashed with it as often as they may (attempt %d)",
	lua.ReasonVisibilityTimeout: "its attempts are used up (%d): " +
		"the last consumer gave no sign of life for the visibility timeout",
	lua.ReasonDeadLetter: "its worker gave it up (attempt %d)",
	lua.ReasonXNackFatal: "its worker gave it up by XNACK FATAL (attempt %d)",
	lua.ReasonExpired:    "it expired before it was delivered (attempt %d)",
	lua.ReasonGroupGone:  "its group is not on the stream (attempt %d)",
	lua.ReasonMalformed:  "what was found could not be delivered (attempt %d)",
	lua.ReasonBodyLost:   "somebody deleted its entry (attempt %d)",
}

func whyDead(p Sighting) string {
	text, ok := deathTexts[p.Reason]
	if !ok {
		text = "it was given up (attempt %d)"
	}
	text = fmt.Sprintf(text, p.Attempt)
	if p.Group != "" {
		text = "for group " + quoted(p.Group) + " " + text
	}
	return text + ": a dead letter since " + formatTime(p.Dead)
}

// whyReady tells why groups have not been given an entry yet.
func (r *reasons) whyReady(ctx context.Context, key string, waiting []view.GroupInfo, p Sighting) string {
	if len(waiting) == 0 {
		return "no group is on the stream: it waits for one"
	}
	var unread, slow []string // texts about groups without and with a reader
	for _, g := range waiting[:min(whyGroups, len(waiting))] {
		if r.mayHaveReader(ctx, key, p.Queue, g) {
			slow = append(slow, fmt.Sprintf("group %s has not come to it, and holds %d", quoted(g.Name), g.Pending))
			continue
		}
		unread = append(unread, "nobody reads group "+quoted(g.Name))
	}
	all := append(unread, slow...)
	if more := len(waiting) - whyGroups; more > 0 {
		all = append(all, fmt.Sprintf("and so for %d more groups", more))
	}
	return strings.Join(all, "; ")
}

// mayHaveReader reports whether a consumer of the group has read, or extended an entry, within the visibility timeout.
// It returns true if that is not known, because the consumers are too many, or they or the policy cannot be read.
func (r *reasons) mayHaveReader(ctx context.Context, key, queue string, g view.GroupInfo) bool {
	switch {
	case g.Consumers == 0:
		return false
	case g.Consumers > whyConsumers:
		return true
	}
	policy, knowsPolicy := r.policy(ctx, queue, g.Name)
	consumers, err := view.ReadConsumers(ctx, r.c, key, g.Name)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(consumers, func(one view.Consumer) bool {
		return !knowsPolicy || one.Name != lua.ReclaimConsumer && one.Idle <= policy.VisibilityTimeout
	})
}

// formatTime formats a time for people and programs.
func formatTime(t time.Time) string { return t.Local().Format(time.RFC3339) }

// quoted returns a name unchanged if CheckGroup accepts it and it has no blanks, or else in quotes.
func quoted(name string) string {
	if lua.CheckGroup(name) != nil || strings.ContainsAny(name, " \t") {
		return fmt.Sprintf("%.64q", name)
	}
	return name
}
