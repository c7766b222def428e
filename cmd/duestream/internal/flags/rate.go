package flags

import (
	"strconv"
	"strings"

	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// ParseRate parses a rate like 50/s. It returns 0 for an empty text.
func ParseRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	rate, err := strconv.ParseFloat(strings.TrimSuffix(text, "/s"), 64)
	if err != nil || !(rate > 0 && rate <= 1e6) {
		return 0, usage.Errorf("rate %q: must be a number per second above 0 and up to 1000000, like 50/s", text)
	}
	return rate, nil
}
