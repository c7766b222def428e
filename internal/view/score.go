package view

import (
	"math"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// ScoreTime returns a score of the schedule as a time, rounded up to a millisecond, and cut to 0 to 1e15 ms. For a
// message that waits for its key, it is the due time.
func ScoreTime(score float64) time.Time {
	score, _ = lua.DueScore(score)
	return time.UnixMilli(int64(math.Ceil(max(0, min(score, 1e15)))))
}

var escapeGlob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// EscapeGlob returns the pattern that matches a text and nothing else.
func EscapeGlob(text string) string { return escapeGlob.Replace(text) }
