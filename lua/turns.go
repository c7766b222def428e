package lua

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// parked is added to the due time of a message that waits for its ordering key: the sum is the message's score in the
// schedule.
const parked = 4e15

// DueScore returns the due time, in Unix ms, that a score of the schedule stands for. waits reports whether the message
// waits for its ordering key, because another message with this key is in flight.
func DueScore(score float64) (due float64, waits bool) {
	if score >= parked && score < 2*parked {
		return score - parked, true
	}
	return score, false
}

// ParkedFrom and ParkedTo bound the scores of messages that wait for their keys, in the form of ZCOUNT.
const (
	ParkedFrom = "4e15"
	ParkedTo   = "(8e15"
)

// Place returns the member of the sorted set turns for a message that waits for its key. member is its name in the
// schedule; due is in Unix ms.
func Place(key string, due float64, member string) string {
	return strings.Join([]string{key, "wait", fmt.Sprintf("%016.0f", due), member}, Separator)
}

// ParsePlace parses a member of the sorted set turns. It returns the member of the schedule that waits there, and its
// due time, Unix ms. ok is false for a message in flight.
func ParsePlace(place string) (member string, due float64, ok bool) {
	parts := strings.SplitN(place, Separator, 4)
	if len(parts) < 4 || parts[1] != "wait" {
		return "", 0, false
	}
	due, err := strconv.ParseFloat(parts[2], 64)
	return parts[3], due, err == nil
}

// TurnsPassed is the result of one PassTurns, and where the next call continues. The call scans three lists, each with
// a position of its own: keys, waiting members, and places in line. A scan is complete when Cursor is "", Rank is 0, or
// Place is "".
type TurnsPassed struct {
	Cursor  string // the last key that was examined
	Rank    int    // how many waiting members were examined
	Place   string // the last place in line that was examined
	Freed   int    // entries and retries that held a key and are gone; one more if the call stopped at a key
	Moved   int    // waiting messages that became due
	Cleared int    // places removed, because no message waits there
}

var passTurnsScript = load("pass_turns", []string{"stream", "due", "meta", "wake", "turns"},
	[]string{"cursor", "rank", "limit", "place"}, nil)

// PassTurns examines up to limit message keys, waiting members, and places in line, from where an earlier call ended.
// If the message that held a key is gone, or every group has acknowledged it, the key's next message becomes due. Ack
// and Retry also make the next message due, so this matters only where a worker calls neither. PassTurns also removes
// the places in line of messages that were cancelled, or moved, by plain commands.
func PassTurns(ctx context.Context, c rueidis.Client, k Keys, from TurnsPassed, limit int) (TurnsPassed, error) {
	reply, err := passTurnsScript.list(ctx, c, []string{k.Stream, k.Due, k.Meta, k.Wake, k.Turns},
		[]string{from.Cursor, strconv.Itoa(from.Rank), strconv.Itoa(limit), from.Place}, 6)
	if err != nil {
		return TurnsPassed{}, err
	}
	var t TurnsPassed
	if t.Cursor, err = reply[0].ToString(); err != nil {
		return t, passTurnsScript.unexpected(err)
	}
	if t.Place, err = reply[4].ToString(); err != nil {
		return t, passTurnsScript.unexpected(err)
	}
	for i, n := range map[int]*int{1: &t.Rank, 2: &t.Freed, 3: &t.Moved, 5: &t.Cleared} {
		v, err := reply[i].AsInt64()
		if err != nil {
			return t, passTurnsScript.unexpected(err)
		}
		*n = int(v)
	}
	return t, nil
}
