package settings_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

// Any value of any variable gives an error that names the variable, or a policy within its limits.
func FuzzSettings(f *testing.F) {
	var names []string
	settings.PolicyVariables(func(name, _, _, _ string) { names = append(names, name) })
	names = append(names, settings.Variables(&settings.Serve{})...)
	for i := range names {
		f.Add(uint8(i), "")
		f.Add(uint8(i), "30")
		f.Add(uint8(i), "1h30m")
		f.Add(uint8(i), "-1s")
		f.Add(uint8(i), "true")
		f.Add(uint8(i), "9223372036854775808")
		f.Add(uint8(i), "\xff\n")
		f.Add(uint8(i), "info+9223372036854775807")
	}
	f.Fuzz(func(t *testing.T, which uint8, value string) {
		if strings.ContainsRune(value, 0) {
			return // no variable can hold it
		}
		name := names[int(which)%len(names)]
		t.Setenv(name, value)
		s, policy, err := settings.Read()
		if err != nil {
			if !strings.Contains(err.Error(), name) || !utf8.ValidString(err.Error()) {
				t.Errorf("%s=%q is refused with %q", name, value, err)
			}
			return
		}
		if err := policy.Validate(); err != nil || s.ShutdownTimeout <= 0 || value == "" {
			t.Errorf("%s=%q gives %+v: %v", name, value, s, err)
		}
	})
}

// A variable with our prefix is known, matches a pattern of foreign variables, or is refused by name.
func FuzzForeignVariable(f *testing.F) {
	for _, seed := range []string{
		"DUESTREAM_MAX_ATEMPTS=3", "DUESTREAM_=", "DUESTREAM_PREFIX", "PATH=x", "duestream_prefix=x",
		"DUESTREAM_TEST_X=\xff", "DUESTREAM_\n=1", "=", "DUESTREAM_A_PORT_1_TCP=x",
	} {
		f.Add(seed)
	}
	var known []string
	settings.Each(func(name, _, _, _ string) { known = append(known, name) })
	f.Fuzz(func(t *testing.T, entry string) {
		name, _, _ := strings.Cut(entry, "=")
		err := settings.CheckNames([]string{entry})
		if err != nil && (!strings.HasPrefix(name, "DUESTREAM_") ||
			!strings.Contains(err.Error(), name+" is not a setting")) {
			t.Errorf("%q is refused with %q", entry, err)
		}
		for _, one := range known {
			if name == one && err != nil {
				t.Errorf("%q is refused with %q", entry, err)
			}
			if err == nil && name != one && strings.EqualFold(name, one) && strings.HasPrefix(name, "DUESTREAM_") {
				t.Errorf("%q is taken for nobody's", entry)
			}
		}
	})
}
