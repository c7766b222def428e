package gateway

import (
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/duestream/duestream/lua"
)

// integer reads a whole number between least and most. Without the parameter it returns otherwise.
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

// millis reads a duration in milliseconds.
func (q query) millis(name string) (time.Duration, error) {
	n, err := q.integer(name, 0, 0, lua.MaxDelay.Milliseconds())
	return time.Duration(n) * time.Millisecond, err
}

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

// rate reads a number of messages per second; 0 = no limit.
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

// withErrors returns a value and the errors of parsing its parts, joined.
func withErrors[T any](value T, errs ...error) (T, error) { return value, errors.Join(errs...) }
