package inspect

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Bounds of the questions why a message is not delivered.
const (
	whyGroups    = 8    // groups of a ready message whose readers are read
	whyConsumers = 1000 // consumers of such a group

	// lastHeartbeat is the greatest age of a live bridge's last heartbeat; bridges send one every second.
	lastHeartbeat = 5 * time.Second
	// soon is how long a due or abandoned message may normally take to move.
	soon = 2 * time.Second
)

// surroundings is Find's knowledge of everything that a message may wait for. It asks each question once. It tells
// nothing about questions that are denied or not answered.
type surroundings struct {
	c      rueidis.Client
	prefix string
	now    time.Time

	bridges func() bool // the heartbeats can be read, and no bridge is alive
	full    func() bool // the memory can be read, and is at maxmemory

	mu       sync.Mutex
	policies map[[2]string]stream.Policy // by queue and group
}

func newSurroundings(ctx context.Context, c rueidis.Client, prefix string, now time.Time) *surroundings {
	s := &surroundings{c: c, prefix: prefix, now: now, policies: map[[2]string]stream.Policy{}}
	s.bridges = sync.OnceValue(func() bool { return s.noBridge(ctx) })
	s.full = sync.OnceValue(func() bool { return isFull(ctx, c) })
	return s
}

// noBridge reports whether the heartbeats can be read and none is fresh. It reads the newest 100. It returns false if
// all of these have names that no bridge has.
func (s *surroundings) noBridge(ctx context.Context) bool {
	const most = 100
	var names []string
	oldest := strconv.FormatInt(s.now.Add(-lastHeartbeat).UnixMilli(), 10)
	err := view.Ask(ctx, s.c, view.Into(s.c.B().Zrange().Key(lua.NewGlobals(s.prefix).Bridges).Min("+inf").Max(oldest).Byscore().
		Rev().Limit(0, most).Build(), &names, rueidis.RedisResult.AsStrSlice))
	for _, name := range names {
		if _, ok := lua.ParseIdentity(name); ok {
			return false
		}
	}
	return err == nil && len(names) < most
}

// isFull reports whether the server can be asked and has reached its memory limit. Of a cluster it asks one server.
func isFull(ctx context.Context, c rueidis.Client) bool {
	info, err := view.ReadInfo(ctx, c, "memory")
	return err == nil && info.Number("maxmemory") > 0 && info.Number("used_memory") >= info.Number("maxmemory")
}

// policy returns the policy of a group; ok is false if it cannot be read.
func (s *surroundings) policy(ctx context.Context, queue, group string) (p stream.Policy, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := [2]string{queue, group}
	if p, ok = s.policies[key]; ok {
		return p, true
	}
	p, _, err := stream.ReadPolicy(ctx, s.c, s.prefix, queue, group)
	if err == nil {
		s.policies[key] = p
	}
	return p, err == nil
}

// obstacles names what keeps a message in the schedule, besides its due time.
func (s *surroundings) obstacles(ctx context.Context, queue string) (all []string) {
	if p, ok := s.policy(ctx, queue, ""); ok && p.Held {
		all = append(all, "the queue is paused")
	} else if ok && p.Rate != "" {
		all = append(all, "the queue has a release rate of "+string(p.Rate))
	} else if ok && p.ReadyLimit > 0 {
		all = append(all, fmt.Sprintf("the queue has a ready limit of %d", p.ReadyLimit))
	}
	if s.bridges() {
		all = append(all, "no bridge is alive")
	}
	if s.full() {
		all = append(all, "Redis is full")
	}
	return all
}

// why tells why a scheduled, pending or dead message is not delivered, or not done.
func (s *surroundings) why(ctx context.Context, p Sighting) string {
	switch p.State {
	case StateScheduled, StateRetrying:
		return s.whyWaiting(ctx, p)
	case StatePending:
		return s.whyHeld(ctx, p)
	case StateDead:
		return whyDead(p)
	}
	return ""
}

func (s *surroundings) whyWaiting(ctx context.Context, p Sighting) string {
	obstacles := strings.Join(s.obstacles(ctx, p.Queue), ", and ")
	late := s.now.Sub(p.Due)
	switch {
	case p.Waits:
		return strings.TrimSuffix("waits for its key "+quoted(p.Key)+": another message of it is in flight; "+obstacles, "; ")
	case late < 0:
		text := "waits for its time, " + formatTime(p.Due)
		if p.State == StateRetrying && p.Attempt > 1 {
			text = fmt.Sprintf("waits for its retry for %s at %s (attempt %s)", quoted(p.Group), formatTime(p.Due),
				s.attempt(ctx, p))
		}
		return strings.TrimSuffix(text+"; "+obstacles, "; ")
	case obstacles != "":
		return fmt.Sprintf("%s: it is due since %s", obstacles, formatTime(p.Due))
	case late < soon:
		return "it is due since " + formatTime(p.Due) + ": a bridge is about to take it"
	}
	return fmt.Sprintf("the bridges are behind: it is due since %s", formatTime(p.Due))
}

func (s *surroundings) whyHeld(ctx context.Context, p Sighting) string {
	idle := time.Duration(p.Idle)
	text := fmt.Sprintf("held by consumer %s of group %s since %s (attempt %s)",
		quoted(p.Consumer), quoted(p.Group), formatTime(p.HeldSince), s.attempt(ctx, p))
	if time.Duration(p.Held)-idle > time.Second {
		text += ", last extended at " + formatTime(s.now.Add(-idle))
	}
	if policy, ok := s.policy(ctx, p.Queue, p.Group); ok && idle > policy.VisibilityTimeout+soon {
		text += ", without a sign of life for longer than the visibility timeout"
		if s.bridges() {
			text += "; no bridge is alive: nobody takes it from there"
		}
	}
	return text
}

// attempt returns the number of the attempt, and if known the maximum.
func (s *surroundings) attempt(ctx context.Context, p Sighting) string {
	most := p.MaxAttempts
	if most == 0 {
		policy, ok := s.policy(ctx, p.Queue, p.Group)
		if !ok {
			return strconv.Itoa(p.Attempt)
		}
		most = policy.MaxAttempts
	}
	return fmt.Sprintf("%d of %d", p.Attempt, most)
}

// whyNowhere tells what is known of a message that was not found.
func (s *surroundings) whyNowhere(f Finding) string {
	var all []string
	for _, w := range f.Windows {
		all = append(all, fmt.Sprintf("%s took it before, and it is finished or gone; its ID is remembered until %s", w.Queue,
			formatTime(w.Until)))
	}
	if len(all) == 0 && s.full() {
		return "Redis is full: it may have been refused"
	}
	return strings.Join(all, "; ")
}

var deaths = map[string]string{
	lua.ReasonMaxAttempts:       "its attempts are used up (%d)",
	lua.ReasonHandlerTimeout:    "its attempts are used up (%d): the handler of the last one took longer than it may",
	lua.ReasonRetryFor:          "it was too old for another attempt, by retry_for (attempt %d)",
	lua.ReasonMaxSnoozes:        "it was snoozed as often as it may be (attempt %d)",
	lua.ReasonCrashes:           "its workers crashed with it as often as they may (attempt %d)",
	lua.ReasonVisibilityTimeout: "its attempts are used up (%d): the last consumer gave no sign of life for the visibility timeout",
	lua.ReasonDeadLetter:        "its worker gave it up (attempt %d)",
	lua.ReasonExpired:           "it expired before it was delivered (attempt %d)",
	lua.ReasonGroupGone:         "its group is not on the stream (attempt %d)",
	lua.ReasonMalformed:         "what was found could not be delivered (attempt %d)",
	lua.ReasonBodyLost:          "somebody deleted its entry (attempt %d)",
}

func whyDead(p Sighting) string {
	text, ok := deaths[p.Reason]
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
func (s *surroundings) whyReady(ctx context.Context, key string, waiting []view.GroupInfo, p Sighting) string {
	if len(waiting) == 0 {
		return "no group is on the stream: it waits for one"
	}
	var nobody, slow []string
	for _, g := range waiting[:min(whyGroups, len(waiting))] {
		if s.read(ctx, key, p.Queue, g) {
			slow = append(slow, fmt.Sprintf("group %s has not come to it, and holds %d", quoted(g.Name), g.Pending))
			continue
		}
		nobody = append(nobody, "nobody reads group "+quoted(g.Name))
	}
	all := append(nobody, slow...)
	if more := len(waiting) - whyGroups; more > 0 {
		all = append(all, fmt.Sprintf("and so for %d more groups", more))
	}
	return strings.Join(all, "; ")
}

// read reports whether a group may have a reader: a consumer with a sign of life within the visibility timeout, or one
// that cannot be ruled out.
func (s *surroundings) read(ctx context.Context, key, queue string, g view.GroupInfo) bool {
	if g.Consumers == 0 || g.Consumers > whyConsumers {
		return g.Consumers > 0
	}
	policy, ok := s.policy(ctx, queue, g.Name)
	consumers, err := view.ReadConsumers(ctx, s.c, key, g.Name)
	return err != nil || slices.ContainsFunc(consumers, func(one view.Consumer) bool {
		return !ok || one.Name != lua.ReclaimConsumer && one.Idle <= policy.VisibilityTimeout
	})
}

// formatTime formats a time for people and programs.
func formatTime(t time.Time) string { return t.Local().Format(time.RFC3339) }

// quoted returns a name: unchanged, or in quotes if CheckGroup does not accept it.
func quoted(name string) string {
	if lua.CheckGroup(name) != nil || strings.ContainsAny(name, " \t") {
		return fmt.Sprintf("%.64q", name)
	}
	return name
}
