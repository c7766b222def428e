package dashboard

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file puts the state of a message into words.

// digest names a payload by its content.
func digest(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:12])
}

// mark returns a text that is the same for two states that look the same.
func (s messageState) mark() string {
	places := slices.Clone(s.finding.Places)
	for i := range places {
		p := &places[i]
		p.Payload, p.Idle, p.Held, p.HeldSince = nil, 0, 0, p.HeldSince.Truncate(time.Second)
	}
	text, err := json.Marshal([]any{places, s.finding.Windows, s.stopped, s.unknown != nil})
	if err != nil { // a time beyond the year 9999
		return ""
	}
	return fmt.Sprintf("%s %v %v", text, s.payloads, s.policies)
}

// placeView is a place of the message, for its card.
type placeView struct {
	admin.Sighting
	Index  int
	Now    time.Time // by the server's clock
	Policy string    // the settings of the queue that hold the message back
	Most   int       // the greatest number of attempts

	Visibility time.Duration // pending: after this time without a sign of life, the message is delivered again
	Digest     string        // of the payload; "" = the payload is lost
	Size       int64

	IsPayloadShown bool // on the page
}

// Places returns the places for the cards.
func (s messageState) Places() []placeView {
	places := s.finding.Places[:min(maxPlaces, len(s.finding.Places))]
	views := make([]placeView, len(places))
	digests := map[string]bool{}
	for i, p := range places {
		v := placeView{Sighting: p, Index: i + 1, Now: s.finding.At, Most: p.MaxAttempts, Digest: s.payloads[i].digest,
			Size: s.payloads[i].size}
		policy := s.policies[groupOf{p.Queue, p.Group}]
		if p.State == admin.StatePending {
			v.Visibility = policy.VisibilityTimeout
		}
		if v.Most == 0 && (p.Group != "" || p.State == admin.StateScheduled || p.State == admin.StateReady) {
			v.Most = policy.MaxAttempts
		}
		if v.Digest != "" && (digests[v.Digest] || len(digests) < maxPayloads) {
			digests[v.Digest], v.IsPayloadShown = true, true
		}
		queue := s.policies[groupOf{p.Queue, ""}]
		var settings []string
		if queue.Held {
			settings = append(settings, "paused")
		}
		if queue.HeldWorkers {
			settings = append(settings, "workers paused")
		}
		if queue.Rate != "" {
			settings = append(settings, "release rate "+string(queue.Rate))
		}
		if queue.ReadyLimit > 0 {
			settings = append(settings, "ready limit "+number(queue.ReadyLimit))
		}
		v.Policy = strings.Join(settings, ", ")
		views[i] = v
	}
	return views
}

// MorePlaces returns how many places have no card.
func (s messageState) MorePlaces() int { return max(0, len(s.finding.Places)-maxPlaces) }

// Stopped reports whether the search was not finished.
func (s messageState) Stopped() bool { return s.stopped }

// Looked returns how many members, entries and letters were searched.
func (s messageState) Looked() int64 { return s.finding.Looked }

// Searched returns how many queues were searched.
func (s messageState) Searched() int { return len(s.searched.queues) }

// Windows returns the dedup windows that refuse the ID.
func (s messageState) Windows() []admin.Window { return s.finding.Windows }

// Unknown returns the error if the queue that was searched does not exist.
func (s messageState) Unknown() error { return s.unknown }

// Found reports whether the message is in a place.
func (s messageState) Found() bool { return len(s.finding.Places) > 0 }

// Label names the place in a list of places: "dead for mailer".
func (p placeView) Label() string {
	text := p.StateText()
	if p.Group != "" {
		text += " for " + visible(p.Group)
	}
	return text + " in " + p.Queue
}

// StateText returns the state in the words of the badge.
func (p placeView) StateText() string {
	switch {
	case p.State == admin.StateScheduled && p.Waits:
		return "waiting for its key"
	case p.State == admin.StateRetrying && p.Waits:
		return "retry waiting for its key"
	case p.State == admin.StatePending && p.Cancelled:
		return "being cancelled"
	}
	return string(p.State)
}

// Severity returns the class of the badge.
func (p placeView) Severity() string {
	switch {
	case p.State == admin.StateDead:
		return "bad"
	case p.State == admin.StateRetrying, p.Waits, p.Policy != "", p.IsOverdue():
		return "warn"
	}
	return "good"
}

// IsOverdue reports whether the message should have become ready.
func (p placeView) IsOverdue() bool {
	return p.IsInSchedule() && !p.Waits && p.Now.Sub(p.Due) > 2*time.Second
}

// IsInSchedule reports whether the message waits in the schedule, for the first time or as a retry.
func (p placeView) IsInSchedule() bool {
	return p.State == admin.StateScheduled || p.State == admin.StateRetrying
}

// Running returns the parameter of the form that cancels the place.
func (p placeView) Running() string {
	if p.State == admin.StateReady || p.State == admin.StatePending {
		return "1"
	}
	return ""
}

// IsDead reports whether the place is a dead letter.
func (p placeView) IsDead() bool { return p.State == admin.StateDead }

// IsRedriven reports whether the message is scheduled again for all groups.
func (p placeView) IsRedriven() bool { return p.State == admin.StateScheduled && p.Before != "" }

// Since returns when the message came into the state, if it is known.
func (p placeView) Since() time.Time {
	switch p.State {
	case admin.StatePending:
		return p.HeldSince
	case admin.StateDead:
		return p.Dead
	case admin.StateReady:
		return lua.EntryTime(p.Entry)
	case admin.StateScheduled, admin.StateRetrying:
		if p.Before != "" {
			return lua.EntryTime(p.Before)
		}
	}
	return time.Time{}
}

// textPart is a part of a sentence: a text, or if At is not zero a time.
type textPart struct {
	Text string
	At   time.Time
}

// rfc3339 matches the times in the reasons of package admin.
var rfc3339 = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)`)

// timedText splits a text into texts and times, so that the page shows the times in the viewer's zone.
func timedText(text string) (parts []textPart) {
	for len(text) > 0 {
		at := rfc3339.FindStringIndex(text)
		if at == nil {
			return append(parts, textPart{Text: visible(text)})
		}
		if at[0] > 0 {
			parts = append(parts, textPart{Text: visible(text[:at[0]])})
		}
		if t, err := time.Parse(time.RFC3339, text[at[0]:at[1]]); err == nil {
			parts = append(parts, textPart{At: t})
		} else {
			parts = append(parts, textPart{Text: text[at[0]:at[1]]})
		}
		text = text[at[1]:]
	}
	return parts
}

// WhyParts returns the reason why the message is not delivered, or not done.
func (p placeView) WhyParts() []textPart {
	if p.Sighting.Why == "" {
		return []textPart{{Text: "the reason is not known"}}
	}
	return timedText(p.Sighting.Why)
}

// NowhereParts returns what is known about a message that was not found.
func (s messageState) NowhereParts() []textPart { return timedText(s.finding.Why) }

// headersView holds headers, and the places that have them.
type headersView struct {
	Of      []string
	Headers map[string]string
}

// headers returns the different headers of the places.
func (v messageView) headers() (all []headersView) {
	at := map[string]int{}
	for _, p := range v.Places() {
		if len(p.Headers) == 0 {
			continue
		}
		key, err := json.Marshal(p.Headers) // sorts the names
		if err != nil {
			continue
		}
		i, known := at[string(key)]
		if !known {
			i = len(all)
			at[string(key)] = i
			all = append(all, headersView{Headers: p.Headers})
		}
		all[i].Of = append(all[i].Of, p.Label())
	}
	return all
}
