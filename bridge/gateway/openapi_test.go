package gateway

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/duestream/duestream/internal/policy"
)

//go:generate env DUESTREAM_TEST_UPDATE=1 go test . -run ^TestSettingsInOpenAPIAreThoseOfTheTable$ -count=1

// The schemas Policy and PolicyChange of openapi.json list the settings of the table. DUESTREAM_TEST_UPDATE=1 writes
// them anew.
func TestSettingsInOpenAPIAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	var shown, changed, required []string
	for _, s := range policy.Settings() {
		kind := "string"
		switch s.Kind {
		case policy.Duration, policy.Count:
			kind = "integer"
		case policy.Switch:
			kind = "boolean"
		}
		shown = append(shown, fmt.Sprintf(`     "%s": {"type": "%s"}`, s.Name, kind))
		if !isPause(s) {
			changed = append(changed, fmt.Sprintf(`     "%s": {"type": ["%s", "null"]}`, s.Name, kind))
		}
		if !s.Optional {
			required = append(required, fmt.Sprintf("%q", s.Name))
		}
	}
	want := string(openAPI)
	replace := func(schema, from, to, text string) {
		head, rest, found := strings.Cut(want, "   \""+schema+"\": {\n")
		before, rest, found2 := strings.Cut(rest, from)
		_, rest, found3 := strings.Cut(rest, to)
		if !found || !found2 || !found3 {
			t.Fatalf("openapi.json has no %q after %q in %s", to, from, schema)
		}
		want = head + "   \"" + schema + "\": {\n" + before + from + text + to + rest
	}
	replace("Policy", "    \"properties\": {\n", "\n    }", strings.Join(shown, ",\n"))
	replace("Policy", "    \"required\": [", "]", strings.Join(required, ", "))
	replace("PolicyChange", "    \"properties\": {\n", "\n    }", strings.Join(changed, ",\n"))
	if want == string(openAPI) {
		return
	}
	if os.Getenv("DUESTREAM_TEST_UPDATE") == "" {
		t.Fatal("openapi.json does not list the settings of the table: make reference")
	}
	if err := os.WriteFile("openapi.json", []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
