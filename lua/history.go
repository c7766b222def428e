package lua

import (
	"encoding/json"
	"os"
	"strconv"
	"time"
)

// Events of a history: changes of a message's state.
const (
	EventScheduled    = "scheduled"
	EventRescheduled  = "rescheduled"
	EventCancelled    = "cancelled"
	EventCancelling   = "cancelling" // a consumer holds the message, and learns of the cancellation
	EventReady        = "ready"
	EventAcknowledged = "acknowledged"
	EventRetried      = "retried"
	EventReleased     = "released"
	EventSnoozed      = "snoozed"
	EventDead         = "dead"
	EventRedriven     = "redriven"
)

// Roles of the actors in a history: the first word of their names. The name of a worker is that of its consumer.
const (
	ActorClient   = "client"
	ActorBridge   = "bridge"
	ActorWorker   = "worker"
	ActorOperator = "operator"
)

// Told is one change of state of one message, as recorded in the history of its queue. Fields that do not belong to the
// event, or were not known, are zero.
type Told struct {
	Entry    string    // ID of the entry; "" = the change was not about one
	At       time.Time // by the server's clock
	Event    string    // one of the Event constants
	ID       string    // of the message; "" = only its entry, or letter, is recorded
	Group    string
	Attempt  int
	Due      time.Time // EventReady: when the message was due; other events: its new due time
	Was      time.Time // EventRescheduled: the former due time
	Letter   string    // entry ID of the dead letter
	Reason   string
	Error    string
	Consumer string        // the consumer that held the entry, if it is not the actor in By
	Held     bool          // a consumer held the entry, and Idle is known
	Idle     time.Duration // the time since the entry was delivered to the consumer, or last extended
	By       string        // the actor that made the change; "" = not recorded
}

// Actor returns the name of this process in a history, for a role: "client web-1 4711", "operator ann@ops-1 99".
func Actor(role string) string {
	host, _ := os.Hostname()
	host = orDash(plainWord(host, maxHostBytes))
	if user := plainWord(os.Getenv("USER"), maxHostBytes); role == ActorOperator && user != "" {
		host = user + "@" + host
	}
	return role + " " + host + " " + strconv.Itoa(os.Getpid())
}

// Actor returns the name of the bridge in a history: "bridge ops-1 4711"; with its ULID if it has no host.
func (i Identity) Actor() string {
	if i.Host == "" {
		return ActorBridge + " " + i.ID
	}
	return ActorBridge + " " + plainWord(i.Host, maxHostBytes) + " " + strconv.Itoa(max(0, i.PID))
}

// toldTime parses a score as a time. It is zero for "", and for times that JSON cannot express: scores may be infinite.
func toldTime(score string) time.Time {
	if t := dueTime(score); score != "" && t.Year() <= 9999 && t.Year() >= 0 {
		return t
	}
	return time.Time{}
}

// change is a Told in JSON, as scripts write it.
type change struct {
	ID       string `json:"id"`
	Group    string `json:"group"`
	Attempt  string `json:"attempt"`
	Due      string `json:"due_ms"`
	Was      string `json:"was_ms"`
	Entry    string `json:"entry"`
	Letter   string `json:"letter"`
	Reason   string `json:"reason"`
	Error    string `json:"error"`
	Consumer string `json:"consumer"`
	Idle     string `json:"idle_ms"`
}

// ParseTold reads an entry of a history: its actor, and the change of each message. It skips fields whose value is not
// a change in JSON.
func ParseTold(entryID string, values []FieldValue) (told []Told) {
	at, by := EntryTime(entryID), ""
	for _, f := range values {
		if f.Field == "by" {
			by = f.Value
			continue
		}
		var c change
		if json.Unmarshal([]byte(f.Value), &c) != nil {
			continue
		}
		t := Told{At: at, Event: f.Field, By: by, ID: c.ID, Group: c.Group, Entry: c.Entry, Letter: c.Letter, Reason: c.Reason,
			Error: c.Error, Consumer: c.Consumer}
		t.Attempt, _ = strconv.Atoi(c.Attempt)
		t.Due, t.Was = toldTime(c.Due), toldTime(c.Was)
		idle, err := strconv.ParseInt(c.Idle, 10, 64)
		t.Held = err == nil
		t.Idle = duration(max(0, idle), time.Millisecond)
		told = append(told, t)
	}
	return told
}
