package lua

import (
	"encoding/json"
	"os"
	"strconv"
	"time"
)

// Events of a history: what became of a message.
const (
	EventScheduled    = "scheduled"
	EventRescheduled  = "rescheduled"
	EventCancelled    = "cancelled"
	EventCancelling   = "cancelling" // a consumer holds it, and is told
	EventReady        = "ready"
	EventAcknowledged = "acknowledged"
	EventRetried      = "retried"
	EventReleased     = "released"
	EventSnoozed      = "snoozed"
	EventDead         = "dead"
	EventRedriven     = "redriven"
)

// Parts that the actors of a history play: the first word of their names. The name of a worker is that of its consumer.
const (
	ActorClient   = "client"
	ActorBridge   = "bridge"
	ActorWorker   = "worker"
	ActorOperator = "operator"
)

// Told is one change of state of one message, as the history of its queue has it. What does not belong to its event, or was not
// known, is zero.
type Told struct {
	Entry    string    // ID of the entry; "" = the change was not about one
	At       time.Time // by the server's clock
	Event    string    // one of the Event constants
	ID       string    // of the message; "" = told by its entry, or letter, alone
	Group    string
	Attempt  int
	Due      time.Time // of ready: when it was due; of the others: when it is now
	Was      time.Time // of rescheduled: the due time before
	Letter   string    // entry ID of the dead letter
	Reason   string
	Error    string
	Consumer string        // who held the entry, where that is not who did it
	Idle     time.Duration // since it was delivered to the consumer, or last extended
	By       string        // who did it; "" = not told
}

// Actor is how a history names this process in the part that it plays: "client web-1 4711", "operator ann@ops-1 99".
func Actor(part string) string {
	host, _ := os.Hostname()
	host = orDash(plainWord(host, maxHostBytes))
	if user := plainWord(os.Getenv("USER"), maxHostBytes); part == ActorOperator && user != "" {
		host = user + "@" + host
	}
	return part + " " + host + " " + strconv.Itoa(os.Getpid())
}

// Actor is how a history names a bridge: "bridge ops-1 4711"; by its ULID when it does not tell where it runs.
func (i Identity) Actor() string {
	if i.Host == "" {
		return ActorBridge + " " + i.ID
	}
	return ActorBridge + " " + plainWord(i.Host, maxHostBytes) + " " + strconv.Itoa(max(0, i.PID))
}

// toldTime reads a point in time; none for "", and for one that JSON has no text for: scores may mean never.
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

// ParseTold reads an entry of a history: who did it, and what was done to each of some messages. What it does not know, and what
// is no change, it passes over.
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
		idle, _ := strconv.ParseInt(c.Idle, 10, 64)
		t.Idle = duration(max(0, idle), time.Millisecond)
		told = append(told, t)
	}
	return told
}
