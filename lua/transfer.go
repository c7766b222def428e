package lua

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Exported is a member of the schedule, with its payload and meta.
type Exported struct {
	Member, Score string // the score as Redis writes it
	Payload       []byte // never nil
	Meta          string // "" = none
}

var exportScript = load("export", []string{"due", "payload", "meta"}, []string{"score", "member", "limit", "max_bytes"}, nil)

// Export reads a page of the schedule, in the order of due time and member. It begins after last, which is the last
// member of the previous page; the zero value begins at the start. A page has at most limit members, and about
// maxBytes. If a page is empty, the schedule has no further members.
func Export(ctx context.Context, c rueidis.Client, k Keys, last Exported, limit, maxBytes int) ([]Exported, error) {
	reply, err := exportScript.list(ctx, c, []string{k.Due, k.Payload, k.Meta},
		[]string{last.Score, last.Member, strconv.Itoa(limit), strconv.Itoa(maxBytes)}, 0)
	if err != nil {
		return nil, err
	}
	all, err := textsOf(reply)
	if err != nil {
		return nil, exportScript.unexpected(err)
	}
	page := make([]Exported, len(all)/4)
	for i := range page {
		page[i] = Exported{Member: all[4*i], Score: all[4*i+1], Payload: bytesOf(all[4*i+2]), Meta: all[4*i+3]}
	}
	return page, nil
}

// Restore is one dead letter to write again.
type Restore struct {
	Name   string // unique among all letters that may be restored here
	Entry  string // the letter's ID in the dead-letter stream from which it was exported
	Fields []FieldValue
}

// fieldList encodes fields and values for a script, each with its length in front.
func fieldList(values []FieldValue) string {
	var list strings.Builder
	for _, f := range values {
		for _, text := range []string{f.Field, f.Value} {
			list.WriteString(strconv.Itoa(len(text)))
			list.WriteByte(':')
			list.WriteString(text)
		}
	}
	return list.String()
}

// Restored is the result of one Restore.
type Restored int

// Outcomes of RestoreDead.
const (
	RestoreMalformed Restored = -1 // the letter has no fields, or too many
	RestoreKnown     Restored = 0  // the letter exists, or was restored before
	RestoreDone      Restored = 1
)

var restoreScript = load("restore",
	[]string{"dead", "seen", "policy", "history"}, []string{"window_ms"}, []string{"name", "entry", "fields"})

// RestoreDead writes dead letters, in order. Each letter gets its old ID, unless the stream already has a later ID, or
// the old ID is more than a minute ahead of the clock. Each is remembered for window, so that it is not restored twice.
// ErrFull: the server refused the call.
func RestoreDead(ctx context.Context, c rueidis.Client, k Keys, window time.Duration, letters []Restore) ([]Restored, error) {
	reply, err := inParts(letters, func(letters []Restore) ([]int64, error) {
		args := append(make([]string, 0, 2+3*len(letters)), millis(window))
		for _, l := range letters {
			args = append(args, l.Name, l.Entry, fieldList(l.Fields))
		}
		return restoreScript.integers(ctx, c, []string{k.Dead, k.Seen, k.Policy, k.History}, append(args, k.Actor), len(letters),
			Durability{})
	})
	if err != nil {
		return nil, err
	}
	out := make([]Restored, len(reply))
	for i, n := range reply {
		out[i] = Restored(n)
	}
	return out, nil
}
