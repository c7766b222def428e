package doctor_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/admin/doctor"
)

// The tables of codes in docs/operations/doctor.md agree with Checks. Each code and each name is used once.
func TestDocumentedChecks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/operations/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	codes, names := map[string]bool{}, map[string]bool{}
	for _, c := range doctor.Checks() {
		if codes[c.Code] || names[c.Name] || c.Finds == "" || c.Why == "" || c.Do == "" {
			t.Errorf("%+v", c)
		}
		codes[c.Code], names[c.Name] = true, true
		mends := c.Mends
		if mends == "" {
			mends = "–"
		}
		want = append(want, fmt.Sprintf("| %s `%s` | %s | %s | %s | %s |", c.Code, c.Name, c.Severity, c.Finds, c.Why, mends))
	}
	got := regexp.MustCompile(`(?m)^\| D\d{3} .*$`).FindAllString(string(text), -1)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("docs/operations/doctor.md should have\n%s", strings.Join(want, "\n"))
	}
}
