package lua

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

// parked is added to the due time of a message that waits for its key. It stays a member of the schedule, with this score.
const parked = 4e15

// DueScore returns the due time, in Unix ms, that a score of the schedule stands for, and whether its message waits for its key:
// another message with this key is in flight.
func DueScore(score float64) (due float64, waits bool) {
	if score >= parked && score < 2*parked {
		return score - parked, true
	}
	return score, false
}

// ParkedFrom and ParkedTo are the lowest score of a message that waits for its key, and one above the highest, as ZCOUNT takes
// them.
const (
	ParkedFrom = "4e15"
	ParkedTo   = "(8e15"
)

// TurnsPassed says what one PassTurns did. Cursor is "" when it came round.
type TurnsPassed struct {
	Cursor string
	Rank   int
	Freed  int // entries and retries that held a key, and are gone
	Moved  int // messages that waited and go on
}

var passTurnsScript = load("pass_turns", []string{"stream", "due", "meta", "wake", "turns"},
	[]string{"cursor", "rank", "limit"}, nil)

// PassTurns looks at limit keys of messages, from a cursor on, for those whose message is gone, or done with in every group: the
// next one of the key goes on. Who acknowledges by Ack, or fails by Retry, needs no such look.
func PassTurns(ctx context.Context, c rueidis.Client, k Keys, cursor string, rank, limit int) (TurnsPassed, error) {
	reply, err := passTurnsScript.list(ctx, c, []string{k.Stream, k.Due, k.Meta, k.Wake, k.Turns},
		[]string{cursor, strconv.Itoa(rank), strconv.Itoa(limit)}, 4)
	if err != nil {
		return TurnsPassed{}, err
	}
	var t TurnsPassed
	if t.Cursor, err = reply[0].ToString(); err != nil {
		return t, passTurnsScript.unexpected(err)
	}
	for i, n := range []*int{&t.Rank, &t.Freed, &t.Moved} {
		v, err := reply[i+1].AsInt64()
		if err != nil {
			return t, passTurnsScript.unexpected(err)
		}
		*n = int(v)
	}
	return t, nil
}
