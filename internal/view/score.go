package view

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

const latestDueMS = 1e15 // a member with a greater score is never due

// ScoreTime returns the due time that a score of the schedule stands for, rounded up to a millisecond. It is never
// before 0 and never after 1e15 ms.
func ScoreTime(score float64) time.Time {
	score, _ = lua.DueScore(score)
	return time.UnixMilli(int64(math.Ceil(max(0, min(score, latestDueMS)))))
}

// latestShown is the latest time of Shown, because JSON has no year after 9999 in any time zone.
var latestShown = time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC)

// Shown returns a time that JSON can express: at most latestShown, and zero for a time before the year 1. Another
// program may have stored any number.
func Shown(at time.Time) time.Time {
	switch {
	case at.After(latestShown):
		return latestShown
	case at.Year() < 1:
		return time.Time{}
	}
	return at
}

// EarliestDue is the least score that is a due time in milliseconds. A score below it means "now", so it tells nothing
// about lateness.
const EarliestDue = 1e12

// ScoresBetween returns the scores of members that are due at from or later, and before until, as the bounds of a range
// in a command. Due times are rounded up to milliseconds, so a member with a fractional score belongs to the
// millisecond after it; from and until are rounded down. A zero from has no lower bound, and a zero until no upper
// bound. Members that wait for their ordering keys are never in the range.
func ScoresBetween(from, until time.Time) (least, most string) {
	least, most = "-inf", "("+lua.ParkedFrom
	if !from.IsZero() {
		least = "(" + strconv.FormatInt(from.UnixMilli()-1, 10)
	}
	if !until.IsZero() && until.UnixMilli() < latestDueMS {
		most = strconv.FormatInt(until.UnixMilli()-1, 10)
	}
	return least, most
}

var escapeGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// EscapeGlob returns the pattern that matches a text and nothing else.
func EscapeGlob(text string) string { return escapeGlob.Replace(text) }
