package policy

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// CheckSettings names the fields of a hash of settings that have no effect: those with an invalid value, and unknown
// ones.
func TestCheckSettingsNamesWhatDoesNotCount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fields   string
		defaults bool   // the fields are the defaults of all queues
		want     string // the fields without effect; an unknown one has a ? before it
	}{
		{"visibility_ms=100, max_attempts=1000000, retry_min_ms=1, retry_max_ms=1, held=1", false, ""},
		{"group:a%20b%3A:visibility_ms=100, group:g:retry_max_ms=5", false, ""},
		{"visibility_ms=99, max_attempts=0, retry_min_ms=x, retry_max_ms=, held=2", false,
			"held, max_attempts, retry_max_ms, retry_min_ms, visibility_ms"},
		{"retry_min_ms=2, retry_max_ms=1, group:g:retry_min_ms=2, group:g:retry_max_ms=1", false,
			"group:g:retry_max_ms, retry_max_ms"},
		// Two settings of different levels: then the larger one is used for both.
		{"retry_min_ms=2, group:g:retry_max_ms=1", false, ""},
		{"visibility=100, Held=1, group:g:held=1, group:g=1, group:a b:max_attempts=1, group:a:b:max_attempts=1, " +
			"group::max_attempts=1", false,
			"?Held, ?group::max_attempts, ?group:a b:max_attempts, ?group:a:b:max_attempts, ?group:g, ?group:g:held, ?visibility"},
		{"retry_delays_ms=0, group:g:retry_delays_ms=60000_180000, retry_for_ms=0", false, "group:g:retry_delays_ms"},
		{"retry_delays_ms=60000, retry_for_ms=1d", true, "retry_for_ms"},
		{"visibility_ms=100", true, ""},
		{"held=0, group:g:max_attempts=1", true, "?group:g:max_attempts, ?held"},
	} {
		fields := map[string]string{}
		for one := range strings.SplitSeq(c.fields, ", ") {
			field, value, _ := strings.Cut(one, "=")
			fields[field] = value
		}
		bad, unknown := CheckSettings(fields, c.defaults)
		got := slices.Sorted(maps.Keys(bad))
		for _, field := range unknown {
			got = append(got, "?"+field)
		}
		slices.Sort(got)
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s:\n%v, want\n%s", c.fields, strings.Join(got, ", "), c.want)
		}
	}
}
