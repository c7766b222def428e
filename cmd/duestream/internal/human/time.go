package human

import (
	"fmt"
	"time"

	"github.com/duestream/duestream/internal/written"
)

// Relative formats the distance of t from now: "in 14m59s", "3s ago", "now".
func Relative(t, now time.Time) string {
	d := t.Sub(now)
	switch text := Short(max(d, -d)); {
	case text == "0s":
		return "now"
	case d > 0:
		return "in " + text
	default:
		return text + " ago"
	}
}

// Short formats a duration, rounded for people: 250ms, 14m59s, 15m, 26h3m, 12d4h.
func Short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d >= 2*day:
		d = d.Round(time.Hour)
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		d = d.Round(time.Minute)
	}
	return written.WithoutZeros(d.Round(time.Second))
}

// Clock formats a time for people: RFC 3339 in local time, followed by its distance from now.
func Clock(t, now time.Time) string {
	return t.Local().Format(time.RFC3339) + " (" + Relative(t, now) + ")"
}

// Ago is like Relative, and returns "-" for an unknown (zero) time.
func Ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return Relative(t, now)
}
