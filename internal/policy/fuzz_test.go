package policy

import (
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// FuzzPolicy: for any contents of the hashes, the policy in force is within its limits, each setting is the first valid
// one, and invalid ones are named.
func FuzzPolicy(f *testing.F) {
	f.Add("g", "visibility_ms", "30000", "group:g:visibility_ms", "100", "visibility_ms", "5000")
	f.Add("g/ü", "group:g%2F%C3%BC:max_attempts", "3", "max_attempts", "0", "max_attempts", "7")
	f.Add("g", "retry_min_ms", "5000", "retry_max_ms", "1", "held", "1")
	f.Add("g", "held", "1", "group:g:held", "0", "retry_max_ms", "9223372036854775808")
	f.Add("", "max_attempts", "1e3", "group::max_attempts", "+5", "visibility_ms", " 100")
	f.Add("g", "retry_delays_ms", "60000,180000", "group:g:retry_delays_ms", "0", "retry_for_ms", "0")
	f.Add("g", "retry_delays_ms", "1,", "retry_delays_ms", "1, 2", "retry_delays_ms", "01,315360000000")
	// n1, v1, n2 and v2 are the names and values of fields of the queue; n3 and v3 are a field of the defaults.
	f.Fuzz(func(t *testing.T, group, n1, v1, n2, v2, n3, v3 string) {
		queue, defaults := map[string]string{n1: v1, n2: v2}, map[string]string{n3: v3}
		p, warning := resolveGroup(group, maps.Clone(queue), maps.Clone(defaults))
		for _, s := range settings {
			if err := s.check(s.get(&p)); err != nil {
				t.Errorf("%v in force", err)
			}
			if s.Kind == Rate || s.Kind == Word {
				continue
			}
			own := "group:" + strings.ReplaceAll(url.QueryEscape(group), "+", "%20") + ":" + s.Name
			// The first valid value counts: that of the group, of the queue, of the defaults.
			levels := []string{queue[own], queue[s.Name], defaults[s.Name]}
			if s.WholeQueue {
				levels = []string{queue[s.Name]}
			}
			wanted := s.Default()
			for _, value := range levels {
				n, err := strconv.ParseInt(value, 10, 64)
				if s.Kind != Delays && err == nil && n >= s.Low && n <= s.High {
					wanted = strconv.FormatInt(n, 10)
					break
				}
				valid := value == none || lua.CheckDelays(lua.Delays(value)) == nil
				if s.Kind == Delays && delayList.MatchString(value) && valid {
					wanted = value
					break
				}
				if value != "" && (warning == nil || !strings.Contains(warning.Error(), s.Name)) {
					t.Errorf("%s=%q is passed over without a word: %v", s.Name, value, warning)
				}
			}
			if s.Name == SettingRetryMax { // is never below retry_min_ms
				n, _ := strconv.ParseInt(wanted, 10, 64)
				wanted = strconv.FormatInt(max(n, p.RetryMin.Milliseconds()), 10)
			}
			redistest.Want(t, s.Name, s.stored(s.get(&p)), wanted)
		}
		text, err := json.Marshal(p)
		var again Policy
		if err != nil || json.Unmarshal(text, &again) != nil || again != p {
			t.Errorf("%+v as JSON %s: %+v, %v", p, text, again, err)
		}
	})
}

var delayList = regexp.MustCompile(`^[0-9]+(,[0-9]+)*$`)

var plainField = regexp.MustCompile(`^group:[A-Za-z0-9._~%-]*:max_attempts$`)

// FuzzGroupSetting: the percent-encoding of a group's name is plain ASCII without a colon, and unique to the group.
func FuzzGroupSetting(f *testing.F) {
	f.Add("g", "g ")
	f.Add("a b", "a+b")
	f.Add("a%20b", "a b")
	f.Add("a:b", "a%3Ab")
	f.Add("\xff", "\x00\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		encoded := groupSetting(a, SettingMaxAttempts)
		if !plainField.MatchString(encoded) {
			t.Errorf("%q is encoded as %q", a, encoded)
		}
		if name, err := url.PathUnescape(strings.Split(encoded, ":")[1]); err != nil || name != a {
			t.Errorf("%q comes back as %q, %v", a, name, err)
		}
		if a != b && encoded == groupSetting(b, SettingMaxAttempts) {
			t.Errorf("%q and %q share %q", a, b, encoded)
		}
	})
}
