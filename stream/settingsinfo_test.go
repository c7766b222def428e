package stream

import (
	"os"
	"regexp"
	"testing"
)

func TestEverySettingIsDescribed(t *testing.T) {
	t.Parallel()
	described := Settings()
	if len(described) != len(settings) {
		t.Fatalf("%d settings are described, and there are %d", len(described), len(settings))
	}
	for i, s := range settings {
		info, p := described[i], DefaultPolicy()
		if info.Name != s.name || info.Meaning == "" || info.Limits == "" || info.WholeQueue != s.whole {
			t.Errorf("%s is described as %+v", s.name, info)
		}
		if err := s.read(&p, info.Default); err != nil || p != DefaultPolicy() {
			t.Errorf("%s: the built-in value %q gives %+v, %v", s.name, info.Default, p, err)
		}
	}
}

// docs/reference/protocol.md, section 11, has a row for each setting, with the built-in value.
func TestEverySettingIsInTheProtocol(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/reference/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Settings() {
		if !regexp.MustCompile("(?m)^\\| `" + s.Name + "` \\| `?" + s.Default + "`? \\| ").Match(text) {
			t.Errorf("%s has no row with the built-in value %s", s.Name, s.Default)
		}
	}
}
