package lua

import (
	"context"
	"encoding/base64"

	"github.com/redis/rueidis"
)

// MaxProgressBytes is the size limit of the progress of an attempt.
const MaxProgressBytes = 4096

const progressAsBase64 = "b64:" + FieldProgress

var saveProgressScript = load("save_progress", []string{"stream", "progress"},
	[]string{"group", "consumer", "entry", "id", "cursor"}, nil)

// SaveProgress stores how far the work on a pending entry has come. An empty cursor means that the next attempt begins
// anew. The retry or the dead letter of the entry gets the cursor, also if a bridge reclaims the entry. Nothing is
// stored unless the result is StillHeld. It may be repeated. One round trip.
func SaveProgress(ctx context.Context, c rueidis.Client, k Keys, group, consumer string, held Held,
	cursor []byte) (Extended, error) {
	n, err := saveProgressScript.integer(ctx, c, []string{k.Stream, k.Progress},
		[]string{group, consumer, held.Entry, held.ID, string(cursor)})
	return Extended(n), err
}

// TakeProgress removes the progress of the attempt before from the fields of an entry, and returns it; nil if there is
// none. Only a retry has progress: a producer cannot give any to the first attempt.
func (e *Entry) TakeProgress() []byte {
	text, isText := e.Extra[FieldProgress]
	coded, isCoded := e.Extra[progressAsBase64]
	if !isText && !isCoded {
		return nil
	}
	delete(e.Extra, FieldProgress)
	delete(e.Extra, progressAsBase64)
	if len(e.Extra) == 0 {
		e.Extra = nil
	}
	if e.For == "" || len(text) > MaxProgressBytes {
		return nil
	}
	if isText {
		return []byte(text)
	}
	cursor, err := base64.StdEncoding.DecodeString(coded)
	if err != nil || len(cursor) > MaxProgressBytes {
		return nil
	}
	return cursor
}

// IsProgress reports whether a field of an entry or a letter is the progress of its attempt, in either form.
func IsProgress(field string) bool { return field == FieldProgress || field == progressAsBase64 }

// progressField returns the field of Keys.Progress for an entry and a group.
func progressField(entry, group string) string { return entry + Separator + group }
