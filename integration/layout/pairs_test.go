package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Faults of a mature system are where two features meet, so two pages of docs/design decide each pair of features.
func TestEachPairOfFeaturesIsDecided(t *testing.T) {
	var features []string
	rows := map[string][][]string{}
	short := map[string]string{} // short names of tests
	for _, page := range []string{"pairs.md", "pairs-delivery.md"} {
		text, err := os.ReadFile(filepath.Join("../../docs/design", page))
		if err != nil {
			t.Fatal(err)
		}
		head, body, _ := strings.Cut(string(text), "\n## ")
		for _, row := range regexp.MustCompile("(?m)^\\| ([a-z ]+) \\| `(\\S+)` \\|").FindAllStringSubmatch(head, -1) {
			short[row[1]] = row[2]
		}
		for section := range strings.SplitSeq(body, "\n## ") {
			feature, table, _ := strings.Cut(section, "\n")
			if feature == "Notes" {
				continue
			}
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
	}
	if len(features) < 25 {
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
			checkPair(t, feature, row, known, short)
		}
	}
}

// A page of its own decides each feature of the Go SDK with each other feature, once. The next page does the same for
// the commands of newer servers and for single messages. A row of these pages may be about several features.
func TestEachPairOfTheSDKIsDecided(t *testing.T) {
	t.Parallel()
	short := map[string]string{}
	var others []string
	for _, page := range []string{"pairs.md", "pairs-delivery.md"} {
		text, err := os.ReadFile(filepath.Join("../../docs/design", page))
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile("(?m)^\\| ([a-z ]+) \\| `(\\S+)` \\|")
		for _, row := range names.FindAllStringSubmatch(string(text), -1) {
			short[row[1]] = row[2]
		}
		for _, section := range regexp.MustCompile("(?m)^## (.*)$").FindAllStringSubmatch(string(text), -1) {
			if section[1] != "Notes" {
				others = append(others, section[1])
			}
		}
	}
	known := testNames(t)
	for _, page := range []string{"pairs-sdk.md", "pairs-commands.md"} {
		others = append(others, checkPage(t, page, others, known, short)...)
	}
}

// checkPage checks that a page decides each of its own features with each other feature of the page, and with each
// feature of the earlier pages. others: the features of the earlier pages. It returns the page's own features.
func checkPage(t *testing.T, page string, others []string, known map[string]bool, short map[string]string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/design", page))
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n## ")[1:]
	var own []string
	for _, section := range sections {
		feature, _, _ := strings.Cut(section, "\n")
		own = append(own, feature)
	}
	for i, section := range sections {
		feature, table, _ := strings.Cut(section, "\n")
		want := slices.Concat(others, own[i+1:])
		var got []string
		for line := range strings.Lines(table) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			if len(cells) != 4 || strings.Contains(line, "---") || strings.Contains(line, "what holds") {
				continue
			}
			for j := range cells {
				cells[j] = strings.TrimSpace(cells[j])
			}
			got = append(got, strings.Split(cells[0], ", ")...)
			checkPair(t, feature, cells, known, short)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s is decided with\n%q, want\n%q", feature, got, want)
		}
	}
	return own
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

func checkPair(t *testing.T, feature string, row []string, known map[string]bool, short map[string]string) {
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
		if full := short[name]; full != "" {
			name = full
		}
		if !known[name] {
			t.Errorf("%s: there is no test %q", pair, name)
		}
	}
}

// testNames returns all tests of the module, each as "directory.TestName", where directory is the last part of the
// package's path. Tests of the command have the name "duestream.TestName" as well.
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
			if strings.HasPrefix(filepath.ToSlash(path), "../../cmd/duestream/") {
				names["duestream."+string(found[1])] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Documents about the design and its history name tests, as `TestName` or `package.TestName`. Each test exists.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	known := testNames(t)
	bare := map[string]bool{}
	for name := range known {
		bare[name[strings.Index(name, ".")+1:]] = true
	}
	named := regexp.MustCompile("`(?:(\\w+)\\.)?((?:Test|Fuzz)[A-Z]\\w+)`")
	for folder, least := range map[string]int{"design": 100, "history": 200} {
		pages, err := filepath.Glob(filepath.Join("../../docs", folder, "*.md"))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, hit := range named.FindAllStringSubmatch(string(text), -1) {
				found++
				if hit[1] == "" && !bare[hit[2]] || hit[1] != "" && !known[hit[1]+"."+hit[2]] {
					t.Errorf("%s: there is no test %s", page, hit[0])
				}
			}
		}
		if found < least {
			t.Errorf("docs/%s names %d tests", folder, found)
		}
	}
}
