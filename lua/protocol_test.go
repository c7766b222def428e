package lua

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/reference/protocol.md has a row for each key, each field of entries and dead letters, each reason of a dead
// letter, and each event of a history.
func TestProtocolHasARowForEachName(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/reference/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n## ")
	row := func(section int, name string) {
		t.Helper()
		if !regexp.MustCompile("(?m)^\\|[^|]*`" + regexp.QuoteMeta(name) + "`[^|]*\\|").MatchString(sections[section]) {
			t.Errorf("section %d has no row for %s", section, name)
		}
	}
	shared := NewGlobals(DefaultPrefix)
	for _, key := range append(NewKeys(DefaultPrefix, "emails").All(), shared.Queues, shared.Defaults, shared.Bridges,
		shared.Wake, shared.Tokens, shared.Bucket("<SHA-256>")) {
		row(3, key)
	}
	for _, name := range constants("fields.go", "Reason") {
		row(10, name)
	}
	for _, name := range constants("history.go", "Event") {
		row(11, name)
	}
	ofLetters := []string{FieldGroup, FieldReason, FieldDead, FieldEntry, FieldMeta, FieldRaw}
	for _, name := range constants("fields.go", "Field") {
		section := 5
		if slices.Contains(ofLetters, name) {
			section = 10
		}
		row(section, name)
	}
}

// constants returns the values of the string constants of a file whose names begin with kind.
func constants(file, kind string) (values []string) {
	source, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\t`+kind+`[A-Z]\w* += "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		values = append(values, m[1])
	}
	if len(values) < 6 {
		panic("no constants " + kind + " in " + file)
	}
	return values
}
