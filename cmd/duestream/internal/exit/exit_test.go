package exit

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The exit codes in the help, the constants, the table of outcomes, README.md and the documents agree. A code that one
// of them misses, or that only one of them has, fails the test.
func TestExitCodesAreThoseOfTheDocuments(t *testing.T) {
	t.Parallel()
	codes := []int{OK, Failure, Invalid, NotFound, Duplicate, Unavailable, Partly, Full,
		NotDurable, Unwell, NotYet, Interrupted}
	var inHelp []int
	for _, m := range regexp.MustCompile(`(?m)^  (\d+) `).FindAllStringSubmatch(Help, -1) {
		n, _ := strconv.Atoi(m[1])
		inHelp = append(inHelp, n)
	}
	if fmt.Sprint(inHelp) != fmt.Sprint(codes) {
		t.Errorf("the help has %v, the program %v", inHelp, codes)
	}
	used := map[int]bool{OK: true, Failure: true, Invalid: true}
	for _, o := range outcomes {
		used[o.code] = true
		if !slices.Contains(codes, o.code) {
			t.Errorf("%v ends with %d, which is not documented", o.err, o.code)
		}
	}
	for _, code := range codes {
		if !used[code] {
			t.Errorf("nothing ends with %d", code)
		}
	}
	readme, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(readme), "Exit codes: ")
	list, _, _ = strings.Cut(list, "\n\n")
	var inReadme []int
	for part := range strings.SplitSeq(list, "·") {
		if n, err := strconv.Atoi(strings.Fields(part)[0]); err == nil {
			inReadme = append(inReadme, n)
		}
	}
	if fmt.Sprint(inReadme) != fmt.Sprint(codes) {
		t.Errorf("README.md has %v, the program %v", inReadme, codes)
	}
	pages, _ := filepath.Glob("../../../../docs/*.md")
	below, _ := filepath.Glob("../../../../docs/*/*.md")
	for _, file := range append(pages, below...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`[Ee]xit codes? (\d+)`).FindAllStringSubmatch(string(text), -1) {
			// 65 and 75 are exit codes of a worker's command.
			if n, _ := strconv.Atoi(m[1]); !slices.Contains(append(codes, 65, 75), n) {
				t.Errorf("%s speaks of an exit code %d", file, n)
			}
		}
	}
}
