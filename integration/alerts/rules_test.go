// Package alerts checks the alert rules and the board in deploy against the metrics and the runbooks. A staged run of
// some minutes also checks them with a real Prometheus and real outages (`make staged-alerts`).
package alerts

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/yaml.v2"

	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const (
	rulesPath  = "deploy/prometheus/rules.yml"
	alertsPage = "docs/operations/alerts.md"
	runbooks   = "https://github.com/duestream/duestream/blob/main/" + alertsPage + "#"
)

// rule is an alert rule.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// file returns the content of a file of this repository.
func file(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rules returns the alert rules of deploy.
func rules(t testing.TB) []rule {
	t.Helper()
	var parsed struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	if err := yaml.UnmarshalStrict([]byte(file(t, rulesPath)), &parsed); err != nil {
		t.Fatal(err)
	}
	if len(parsed.Groups) != 1 || len(parsed.Groups[0].Rules) < 10 {
		t.Fatalf("%d groups", len(parsed.Groups))
	}
	return parsed.Groups[0].Rules
}

// Every rule has a severity, a summary that names its queue or group, the next step, and an existing runbook.
func TestEveryAlertHasARunbook(t *testing.T) {
	t.Parallel()
	page := file(t, alertsPage)
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (Duestream\w*)$`).FindAllStringSubmatch(page, -1) {
		headings[m[1]] = true
	}
	for _, r := range rules(t) {
		if !headings[r.Alert] || r.Annotations["runbook_url"] != runbooks+strings.ToLower(r.Alert) {
			t.Errorf("%s has the runbook %s, and %s a heading for it: %t", r.Alert, r.Annotations["runbook_url"], alertsPage,
				headings[r.Alert])
		}
		delete(headings, r.Alert)
		severity := r.Labels["severity"]
		_, runbook, _ := strings.Cut(page, "\n## "+r.Alert+"\n\n*")
		if severity != "critical" && severity != "warning" || !strings.HasPrefix(strings.ToLower(runbook), severity+".*") {
			t.Errorf("%s has severity %q, and its runbook begins otherwise", r.Alert, severity)
		}
		if !strings.Contains(r.Annotations["description"], "Next: ") {
			t.Errorf("%s does not say what to do next: %q", r.Alert, r.Annotations["description"])
		}
		// Anybody who may create a group chooses its name. The name must not get into a shell when somebody copies a
		// command from an alert.
		if strings.Contains(r.Annotations["description"], "$labels.group") {
			t.Errorf("%s has the group in a command", r.Alert)
		}
		for _, label := range []string{"queue", "group", "node", "reason"} {
			by := regexp.MustCompile(`by \([^)]*\b` + label + `\b`).MatchString(r.Expr)
			if named := strings.Contains(r.Annotations["summary"], "$labels."+label); by != named {
				t.Errorf("%s is grouped by %s: %t, and its summary names it: %t", r.Alert, label, by, named)
			}
		}
	}
	for name := range headings {
		t.Errorf("there is a runbook for %s, and no such alert", name)
	}
}

// For each alert, deploy/prometheus/rules_test.yml has a case for promtool in which it fires. In one more case, "a
// healthy hour", no alert fires.
func TestEveryAlertHasACase(t *testing.T) {
	t.Parallel()
	cases := file(t, "deploy/prometheus/rules_test.yml")
	fires := map[string]bool{}
	for _, m := range regexp.MustCompile(`ALERTS\{alertname="(\w+)", alertstate="firing"`).FindAllStringSubmatch(cases, -1) {
		fires[m[1]] = true
	}
	for _, r := range rules(t) {
		if !fires[r.Alert] {
			t.Errorf("%s fires in no case", r.Alert)
		}
		delete(fires, r.Alert)
	}
	for name := range fires {
		t.Errorf("%s fires in a case, and is no alert", name)
	}
	if !strings.Contains(cases, "- name: a healthy hour") {
		t.Error("there is no healthy case")
	}
}

// The table of scenes in docs/operations/alerts.md names the scenes of TestStagedOutages and the alerts that fire in
// each, and every alert fires in a scene. The scenes are read from the source of that test.
func TestScenesAreDocumented(t *testing.T) {
	t.Parallel()
	page, staged := file(t, alertsPage), file(t, "integration/alerts/staged_test.go")
	number := 0
	for _, m := range regexp.MustCompile(`(?m)^\ts\.scene\("([^"]+)", ([^\n]*)`).FindAllStringSubmatch(staged, -1) {
		number++
		row := regexp.MustCompile(`(?m)^\| ` + strconv.Itoa(number) + ` \| (.*)$`).FindString(page)
		var want []string
		for _, name := range regexp.MustCompile(`Duestream\w+`).FindAllString(m[2], -1) {
			want = append(want, "`"+name+"`")
		}
		begins, _, _ := strings.Cut(m[1], ",")
		if !strings.Contains(row, begins) || !strings.Contains(row, strings.Join(want, ", ")) ||
			strings.Count(row, "Duestream") != len(want) {
			t.Errorf("scene %d, %s, fires %v; %s says %s", number, m[1], want, alertsPage, row)
		}
	}
	for _, r := range rules(t) {
		if !strings.Contains(staged, `"`+r.Alert+`"`) {
			t.Errorf("%s has no scene", r.Alert)
		}
	}
}

// metric describes a metric that duestream exports.
type metric struct {
	labels    []string
	histogram bool
}

// exported returns the metrics of bridge/metrics, by name. Which of them are histograms is read from
// docs/reference/metrics.md.
func exported(t testing.TB) map[string]metric {
	t.Helper()
	histograms := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(duestream_[a-z_]+)` \\| histogram \\|").
		FindAllStringSubmatch(file(t, "docs/reference/metrics.md"), -1) {
		histograms[row[1]] = true
	}
	described := regexp.MustCompile(`fqName: "([^"]*)".*variableLabels: \{([^}]*)\}`)
	descs := make(chan *prometheus.Desc, 200)
	redistest.Must(metrics.New(metrics.Config{})).Describe(descs)
	close(descs)
	all := map[string]metric{}
	for d := range descs {
		found := described.FindStringSubmatch(d.String())
		if found == nil {
			t.Fatal("a description of another form: ", d)
		}
		labels := append(strings.FieldsFunc(found[2], func(r rune) bool { return r == ',' }), "job", "instance")
		all[found[1]] = metric{labels, histograms[found[1]]}
	}
	return all
}

var (
	metricName = regexp.MustCompile(`\bduestream_[a-z_]+`)
	labelLists = regexp.MustCompile(`\b(?:by|on|without|ignoring) \(([^)]*)\)`)
	matchers   = regexp.MustCompile(`\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)"`)
)

// checkQuery checks that the metrics in a query exist, and that each label in the query is one of a metric in the
// query.
func checkQuery(t *testing.T, where, query string, all map[string]metric) {
	t.Helper()
	names := metricName.FindAllString(query, -1)
	if len(names) == 0 {
		t.Errorf("%s asks for no metric of ours: %s", where, query)
	}
	var labels []string
	for _, name := range names {
		m, there := all[name]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(name, suffix); cut && all[base].histogram {
				m, there = all[base], true
				if suffix == "_bucket" {
					labels = append(labels, "le")
				}
			}
		}
		if !there {
			t.Errorf("%s asks for %s, which nobody exports", where, name)
		}
		labels = append(labels, m.labels...)
	}
	asked := map[string]bool{}
	for _, m := range labelLists.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			asked[strings.TrimSpace(label)] = true
		}
	}
	for _, m := range matchers.FindAllStringSubmatch(query, -1) {
		for _, label := range matcher.FindAllStringSubmatch(m[1], -1) {
			asked[label[1]] = true
		}
	}
	for _, label := range slices.Sorted(maps.Keys(asked)) {
		if !slices.Contains(labels, label) {
			t.Errorf("%s asks for label %s, which its metrics do not have: %s", where, label, query)
		}
	}
}

// The alert rules use only metrics and labels that duestream exports.
func TestRulesAskForWhatIsThere(t *testing.T) {
	t.Parallel()
	all := exported(t)
	for _, r := range rules(t) {
		checkQuery(t, r.Alert, r.Expr, all)
	}
}

// No query selects one bucket of a histogram, because the label le of the same bucket is "30" in Prometheus 2 and
// "30.0" in Prometheus 3, and native histograms have no buckets.
func TestNobodyAsksForOneBucket(t *testing.T) {
	t.Parallel()
	for _, path := range []string{rulesPath, boardPath} {
		if strings.Contains(file(t, path), "le=") {
			t.Errorf("%s asks for a bucket by its limit", path)
		}
	}
}
