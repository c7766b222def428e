package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Faults of a mature system are where two features meet, so docs/design/pairs.md decides each pair of features.
func TestEachPairOfFeaturesIsDecided(t *testing.T) {
	text, err := os.ReadFile("../../docs/design/pairs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(text), "\n## ")
	var features []string
	rows := map[string][][]string{}
	for section := range strings.SplitSeq(body, "\n## ") {
		feature, table, _ := strings.Cut(section, "\n")
		features = append(features, feature)
		for line := range strings.Lines(table) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			if len(cells) != 4 || strings.Contains(line, "---") || strings.Contains(line, "what holds") {
				continue
			}
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows[feature] = append(rows[feature], cells)
		}
	}
	if len(features) < 24 {
		t.Fatalf("%d features", len(features))
	}
	known := testNames(t)
	for i, feature := range features {
		later := features[i+1:]
		if len(rows[feature]) != len(later) {
			t.Errorf("%s: %d rows, want %d", feature, len(rows[feature]), len(later))
			continue
		}
		for j, row := range rows[feature] {
			if row[0] != later[j] {
				t.Errorf("%s: row %d is about %q, want %q", feature, j+1, row[0], later[j])
			}
			checkPair(t, feature, row, known)
		}
	}
}

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

func checkPair(t *testing.T, feature string, row []string, known map[string]bool) {
	t.Helper()
	pair, kind, holds, tests := feature+" with "+row[0], row[1], row[2], row[3]
	switch kind {
	case "holds", "refused", "independent":
		if holds == "" {
			t.Errorf("%s: nothing is said", pair)
		}
		if tests == "" && kind != "independent" {
			t.Errorf("%s: no test is named", pair)
		}
	default:
		t.Errorf("%s: %q is none of holds, refused, independent", pair, kind)
	}
	for name := range strings.SplitSeq(tests, ",") {
		if name = strings.Trim(strings.TrimSpace(name), "`"); name == "" {
			continue
		}
		if !known[name] {
			t.Errorf("%s: there is no test %q", pair, name)
		}
	}
}

// testNames returns all tests of the module, each as "directory.TestName", where directory is the last part of the package's
// path.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		full, err := filepath.Abs(filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, found := range testFunction.FindAllSubmatch(text, -1) {
			names[filepath.Base(full)+"."+string(found[1])] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
