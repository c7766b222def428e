package lua

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Limits of a release rate.
const (
	MaxRate  = 1_000_000 // messages in its unit
	MaxBurst = 1_000_000
)

// Rate is how many messages become ready in a second, a minute or an hour, as a policy has it: `500/s`, `30/m`, `1/h`; without a
// unit it is a second. Empty is no limit.
type Rate string

var rateText = regexp.MustCompile(`^([1-9][0-9]{0,6})(/[smh])?$`)

// CheckRate refuses what is no rate. The empty one passes.
func CheckRate(r Rate) error {
	if n, _ := r.parse(); r != "" && n == 0 {
		return Invalid("rate", string(r), "must be a whole number between 1 and %d, and /s, /m or /h: 500/s", MaxRate)
	}
	return nil
}

// Interval is the time that one message takes; 0 without a limit.
func (r Rate) Interval() time.Duration {
	n, per := r.parse()
	if n == 0 {
		return 0
	}
	return per / time.Duration(n)
}

// PerSecond is how many messages that are; 0 without a limit.
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

// Normal is the rate with its unit.
func (r Rate) Normal() Rate {
	if n, _ := r.parse(); n == 0 || strings.Contains(string(r), "/") {
		return r
	}
	return r + "/s"
}

// DefaultBurst is how many messages may become ready at once where the policy says nothing: a tenth of a second's, at least one.
func (r Rate) DefaultBurst() int {
	if n, _ := r.parse(); n == 0 {
		return 0
	}
	return max(1, int(r.PerSecond()/10))
}
