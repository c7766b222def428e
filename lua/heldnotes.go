package lua

import (
	"strconv"
	"strings"
	"time"
)

// heldField begins the names of the fields in which bridges record since when a group's deliveries are held.
const heldField = "held:"

// HeldField returns the field of the hash calm that holds the HeldNotes of a group.
func HeldField(group string) string { return heldField + group }

// HeldNotes says since when the oldest deliveries of a group are held, by entry, as bridges have recorded it. The zero
// value is empty.
type HeldNotes struct {
	Usual time.Duration // how long recent deliveries took, the mean of about eight; negative = none has ended yet
	since map[string]heldNote
}

type heldNote struct {
	since  time.Time
	holder string
}

// ParseHeldNotes reads a field that lua/lib/held.lua wrote. It leaves out words that do not parse.
func ParseHeldNotes(text string) HeldNotes {
	n := HeldNotes{Usual: -1, since: map[string]heldNote{}}
	words := strings.Fields(text)
	if len(words) == 0 {
		return n
	}
	if usual, err := strconv.ParseInt(words[0], 10, 64); err == nil && usual >= 0 {
		n.Usual = time.Duration(usual) * time.Millisecond
	}
	for _, word := range words[1:] {
		entry, rest, _ := strings.Cut(word, "=")
		since, holder, _ := strings.Cut(rest, "/")
		if at, err := strconv.ParseInt(since, 10, 64); err == nil {
			n.since[entry] = heldNote{time.UnixMilli(at), holder}
		}
	}
	return n
}

// Since returns since when a consumer holds an entry. It uses the note of this delivery. If there is no note, it
// returns now less idle, which is when the entry was delivered or last extended. now is the server's clock. The result
// is not before the entry became ready.
func (n HeldNotes) Since(entry, consumer string, now time.Time, idle time.Duration) time.Time {
	since := now.Add(-idle)
	if note, ok := n.since[entry]; ok && note.holder == sha1Hex(consumer)[:8] && !note.since.After(now) {
		since = note.since
	}
	// since may be before the entry became ready, because a lease that is shorter than the visibility timeout starts
	// with an idle time above 0. After the clock was set back, there are entries whose time is after now; they do not
	// count.
	if ready := EntryTime(entry); ready.After(since) && !ready.After(now) {
		return ready
	}
	return since
}
