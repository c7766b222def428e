package lua

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Limits of a release rate.
const (
	MaxRate  = 1_000_000 // messages per unit
	MaxBurst = 1_000_000
)

// Rate is how many messages become ready per second, minute or hour, as a policy has it: `500/s`, `30/m`, `1/h`. A
// number without a unit is per second. The empty text is no limit.
type Rate string

var rateText = regexp.MustCompile(`^([1-9][0-9]{0,6})(/[smh])?$`)

// CheckRate refuses an invalid rate. The empty rate passes.
func CheckRate(r Rate) error {
	if n, _ := r.parse(); r != "" && n == 0 {
		return Invalid("rate", string(r), "must be a whole number between 1 and %d, and /s, /m or /h: 500/s", MaxRate)
	}
	return nil
}

// Interval returns the time per message; 0 without a limit.
func (r Rate) Interval() time.Duration {
	n, per := r.parse()
	if n == 0 {
		return 0
	}
	return per / time.Duration(n)
}

// PerSecond returns the number of messages per second; 0 without a limit.
func (r Rate) PerSecond() float64 {
	n, per := r.parse()
	if n == 0 {
		return 0
	}
	return float64(n) / per.Seconds()
}

func (r Rate) parse() (n int, per time.Duration) {
	m := rateText.FindStringSubmatch(string(r))
	if m == nil {
		return 0, 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil || n > MaxRate {
		return 0, 0
	}
	return n, map[string]time.Duration{"": time.Second, "/s": time.Second, "/m": time.Minute, "/h": time.Hour}[m[2]]
}

// Normal returns the rate with its unit.
func (r Rate) Normal() Rate {
	if n, _ := r.parse(); n == 0 || strings.Contains(string(r), "/") {
		return r
	}
	return r + "/s"
}

// DefaultBurst returns how many messages may become ready at once if the policy has no burst: the messages of a tenth
// of a second, at least one; 0 if the rate is no limit.
func (r Rate) DefaultBurst() int {
	if n, _ := r.parse(); n == 0 {
		return 0
	}
	return max(1, int(r.PerSecond()/10))
}
