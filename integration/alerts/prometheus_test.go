package alerts

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/integration/redistest"
)

const patience = 30 * time.Second

// watcher is a Prometheus that the test runs.
type watcher struct {
	t    testing.TB
	base string
}

// freeAddr returns an unused address.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// watch starts a Prometheus with these rules, and waits until it is ready. It scrapes the addresses of each job every
// second.
func watch(t testing.TB, program, rules string, jobs map[string][]string) *watcher {
	t.Helper()
	dir := t.TempDir()
	config := "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\n" +
		"scrape_configs:\n"
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		config += fmt.Sprintf("- {job_name: %s, static_configs: [{targets: ['%s']}]}\n", job, strings.Join(jobs[job], "', '"))
	}
	for name, text := range map[string]string{"rules.yml": rules, "prometheus.yml": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := freeAddr(t)
	start(t, os.Environ(), program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--web.listen-address="+addr,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--log.level=warn")
	w := &watcher{t, "http://" + addr}
	redistest.Eventually(t, patience, func() (bool, string) {
		reply, err := http.Get(w.base + "/-/ready")
		if err != nil {
			return false, err.Error()
		}
		_ = reply.Body.Close()
		return reply.StatusCode == http.StatusOK, reply.Status
	})
	return w
}

// start runs a program until the returned function kills it, or the test ends.
func start(t testing.TB, env []string, program string, args ...string) (kill func()) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stderr = env, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s (apt-get install prometheus, or DUESTREAM_PROMETHEUS=path): %v", program, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	kill = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	t.Cleanup(kill)
	return kill
}

// ask sends a request to the API of Prometheus, and decodes the data of its response.
func (w *watcher) ask(path string, values url.Values, data any) error {
	reply, err := http.PostForm(w.base+"/api/v1/"+path, values)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s %s", values.Get("query"), answer.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, data)
}

// line is a series of a range query: its values, with NaN for gaps.
type line struct {
	labels map[string]string
	values []float64
}

// over evaluates a query at each step from one time to another. It returns the series that have at least one value.
func (w *watcher) over(query string, from, to time.Time, step time.Duration) []line {
	w.t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string
			Values [][2]any
		}
	}
	seconds := func(at time.Time) string { return strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64) }
	if err := w.ask("query_range", url.Values{"query": {query}, "start": {seconds(from)}, "end": {seconds(to)},
		"step": {fmt.Sprint(step.Seconds())}}, &data); err != nil {
		w.t.Fatal(err)
	}
	var lines []line
	for _, one := range data.Result {
		l := line{one.Metric, make([]float64, int(to.Sub(from)/step)+1)}
		for i := range l.values {
			l.values[i] = math.NaN()
		}
		for _, pair := range one.Values {
			at := pair[0].(float64) - float64(from.UnixMilli())/1000
			v, err := strconv.ParseFloat(pair[1].(string), 64)
			if i := int(math.Round(at / step.Seconds())); err == nil && i >= 0 && i < len(l.values) && !math.IsInf(v, 0) {
				l.values[i] = v
			}
		}
		if slices.ContainsFunc(l.values, func(v float64) bool { return !math.IsNaN(v) }) {
			lines = append(lines, l)
		}
	}
	return lines
}

// firing returns the firing alerts: their summaries by name.
func (w *watcher) firing() (map[string]string, error) {
	// GET, because this part of the API refuses POST.
	reply, err := http.Get(w.base + "/api/v1/alerts")
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	var answer struct {
		Data struct {
			Alerts []struct {
				State               string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			all[a.Labels["alertname"]] = a.Annotations["summary"]
		}
	}
	return all, nil
}

// scale is the factor by which the windows of the rules are shortened in the staged run.
const scale = 30

var (
	// windows matches the windows of the rules: how long an alert waits, ranges and offsets.
	windows = regexp.MustCompile(`(for: |\[|offset )(\d+)([mh])\b`)
	// limits shortens the limits of half an hour and of an hour, in seconds, that some rules compare a metric with.
	limits = strings.NewReplacer("> 1800", "> "+strconv.Itoa(1800/scale), "> 3600", "> "+strconv.Itoa(3600/scale))
)

// shortened returns the rules with shortened windows and time limits.
func shortened(rules string) string {
	return limits.Replace(windows.ReplaceAllStringFunc(rules, func(window string) string {
		m := windows.FindStringSubmatch(window)
		n, _ := strconv.Atoi(m[2])
		d := time.Duration(n) * map[string]time.Duration{"m": time.Minute, "h": time.Hour}[m[3]] / scale
		return m[1] + strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	}))
}
