package gateway

import (
	"math"
	"strconv"
	"time"

	"github.com/duestream/duestream/lua"
)

// integer reads a whole number between least and most. If the query has no such parameter, integer returns otherwise.
func (q query) integer(name string, otherwise, least, most int64) (int64, error) {
	text, is := q[name]
	if !is {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, lua.Invalid(name, text, "must be a whole number from %d to %d", least, most)
	}
	return n, nil
}

// millis reads a duration in milliseconds. If the query has no such parameter, millis returns 0.
func (q query) millis(name string) (time.Duration, error) {
	n, err := q.integer(name, 0, 0, lua.MaxDelay.Milliseconds())
	return time.Duration(n) * time.Millisecond, err
}

// flag reads true or false. If the query has no such parameter, flag returns false.
func (q query) flag(name string) (bool, error) {
	switch text, is := q[name]; {
	case !is, text == "false":
		return false, nil
	case text == "true":
		return true, nil
	default:
		return false, lua.Invalid(name, text, "must be true or false")
	}
}

// rate reads a number of messages per second. If the query has no such parameter, rate returns 0, which is no limit.
func (q query) rate(name string) (float64, error) {
	text, is := q[name]
	if !is {
		return 0, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || f <= 0 || f > 1e6 {
		return 0, lua.Invalid(name, text, "must be a number above 0, up to 1000000")
	}
	return f, nil
}
