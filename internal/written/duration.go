// Package written reads and writes values as people write them: durations with days, lists of delays, and settings of a
// policy.
package written

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// days matches a duration that begins with days. The standard library does not have this unit.
var days = regexp.MustCompile(`^([0-9]+)d(.*)$`)

// ParseDuration parses 500ms, 15m, 1h30m, 7d, 1d12h. It checks no limit except the range of time.Duration.
func ParseDuration(text string) (d time.Duration, err error) {
	if m := days.FindStringSubmatch(text); m != nil {
		var n int64
		if _, err := fmt.Sscan(m[1], &n); err != nil || n > 36500 {
			return 0, fmt.Errorf("%q is out of range", text)
		}
		d, text = time.Duration(n)*24*time.Hour, m[2]
	}
	if text == "" && d > 0 {
		return d, nil
	}
	rest, err := time.ParseDuration(text)
	if err != nil || rest < 0 && d > 0 {
		return 0, errors.New("must be a duration, like 500ms, 15m, 1h30m or 7d")
	}
	return d + rest, nil
}

// Duration formats a duration without rounding, in the form that ParseDuration parses: 30s, 1h30m, 7d, 1d12h.
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	text := ""
	if d >= day {
		text, d = fmt.Sprintf("%dd", d/day), d%day
		if d == 0 {
			return text
		}
	}
	return text + WithoutZeros(d)
}

// WithoutZeros formats 15m and 2h, where the standard library has 15m0s and 2h0m0s.
func WithoutZeros(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// ParseDelays parses a list like 1m,3m,5m. 0 is the empty list.
func ParseDelays(text string) (lua.Delays, error) {
	if text == "0" || text == "0s" {
		return "", nil
	}
	var all []time.Duration
	for word := range strings.SplitSeq(text, ",") {
		d, err := ParseDuration(word)
		if err != nil {
			return "", fmt.Errorf("must be delays separated by commas, like 1m,3m,5m, or 0: %q %w", word, err)
		}
		all = append(all, d)
	}
	list := lua.NewDelays(all...)
	return list, lua.CheckDelays(list)
}

// Delays formats a list in the form that ParseDelays parses.
func Delays(list lua.Delays) string {
	var words []string
	for _, one := range list.List() {
		words = append(words, Duration(one))
	}
	return strings.Join(words, ",")
}
