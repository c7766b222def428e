package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const helmChart = "deploy/helm/duestream"

func fileOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The Helm chart has the alert rules and the board of deploy, byte for byte, and the version of the newest release.
// `make helm-check` renders the chart.
func TestHelmChartIsUpToDate(t *testing.T) {
	t.Parallel()
	for original, copied := range map[string]string{"deploy/prometheus/rules.yml": "files/rules.yml",
		"deploy/grafana/duestream.json": "files/board.json"} {
		if fileOf(t, original) != fileOf(t, filepath.Join(helmChart, copied)) {
			t.Errorf("the chart's %s is not %s: run `make helm-files`", copied, original)
		}
	}
	newest := regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+)`).FindStringSubmatch(fileOf(t, "CHANGELOG.md"))
	if newest == nil || !strings.Contains(fileOf(t, helmChart+"/Chart.yaml"), "\nappVersion: \""+newest[1]+"\"\n") {
		t.Errorf("CHANGELOG.md has the version %q, Chart.yaml another", newest)
	}
}

// notInTheChart are variables that the chart leaves out: in a pod no file for a first token survives, push runners are
// a Deployment of their own, and passwords come from a Secret as variables.
var notInTheChart = []string{"DUESTREAM_HTTP_FIRST_TOKEN_FILE", "DUESTREAM_PUSH", "DUESTREAM_REDIS_PASSWORD_FILE",
	"DUESTREAM_SENTINEL_PASSWORD_FILE"}

// The Helm chart sets each variable of serve and gateway, or lets users set it, and names no other variable.
func TestHelmChartKnowsTheVariables(t *testing.T) {
	t.Parallel()
	page, _, found := strings.Cut(fileOf(t, "docs/reference/configuration.md"), "\n### migrate\n")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(DUESTREAM_[A-Z_]+)` \\|").FindAllStringSubmatch(page, -1) {
		documented = append(documented, row[1])
	}
	if !found || len(documented) < 30 {
		t.Fatalf("docs/reference/configuration.md has %d variables", len(documented))
	}
	templates, err := filepath.Glob(filepath.Join("../..", helmChart, "templates", "*"))
	if err != nil {
		t.Fatal(err)
	}
	text := fileOf(t, helmChart+"/values.schema.json")
	for _, path := range templates {
		if filepath.Ext(path) != "" {
			text += fileOf(t, strings.TrimPrefix(path, "../../"))
		}
	}
	named := regexp.MustCompile(`DUESTREAM_[A-Z]+(_[A-Z]+)*`).FindAllString(text, -1)
	for _, name := range documented {
		if slices.Contains(named, name) == slices.Contains(notInTheChart, name) {
			t.Errorf("%s: either the chart has it, or it is left out on purpose", name)
		}
	}
	for _, name := range named {
		if !slices.Contains(documented, name) {
			t.Errorf("the chart has %s, which is no variable of serve or gateway", name)
		}
	}
}
