package dashboard

import (
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
)

//go:embed templates
var templateFiles embed.FS

// templates holds one set for each page: the shared templates, templates/<name>.html, and templates/<name>-*.html.
var templates = parseTemplates()

func parseTemplates() map[string]*template.Template {
	shared := template.Must(template.New("").Funcs(functions).ParseFS(templateFiles, "templates/shared/*.html"))
	entries, err := templateFiles.ReadDir("templates")
	if err != nil {
		panic(err)
	}
	all := map[string]*template.Template{}
	for _, e := range entries {
		name, isTemplate := strings.CutSuffix(e.Name(), ".html")
		if isTemplate && !strings.Contains(name, "-") {
			files := []string{"templates/" + e.Name()}
			for _, part := range entries { // a part of a page is in a file of its own: <page>-<part>.html
				if strings.HasPrefix(part.Name(), name+"-") {
					files = append(files, "templates/"+part.Name())
				}
			}
			all[name] = template.Must(template.Must(shared.Clone()).ParseFS(templateFiles, files...))
		}
	}
	return all
}

// frame is the data of every template: the frame of the page, and the data of its content.
type frame struct {
	Title   string
	Page    string // path of the page, for the navigation
	Name    string // name of the viewer's token; "" before the login
	Version string
	Prefix  string
	Notice  string
	Live    string  // address of the page's updates; "" = none
	Back    string  // address of this page, for the forms on it
	Faults  []fault // of the form that the page shows again
	Data    any

	ReadOnly bool
	Private  bool // the viewer may not be read by others
	q        *request
}

// May reports whether to show a button: whether the viewer may do it.
func (f frame) May(verb access.Verb, queue string) bool { return f.q != nil && f.q.may(verb, queue) }

// Nav returns the entries of the navigation that the viewer may open.
func (f frame) Nav() []navItem {
	return slices.DeleteFunc(slices.Clone(navigation), func(n navItem) bool {
		return n.AllQueues && !f.May(access.Inspect, "")
	})
}

// Scope returns the patterns of the queues that the viewer's token shows; "" = all queues.
func (f frame) Scope() string {
	if f.q == nil || f.q.grant == nil || f.q.may(access.Inspect, "") {
		return ""
	}
	return strings.Join(f.q.grant.Queues(), ", ")
}

// MayPublish reports whether the viewer may create, cancel and move messages of a queue.
func (f frame) MayPublish(queue string) bool { return f.q != nil && f.q.mayPublish(queue) }

// RunningJobs returns how many jobs run that the viewer may see.
func (f frame) RunningJobs() (n int) {
	if f.q == nil || f.q.grant == nil {
		return 0
	}
	for _, v := range f.q.jobList() {
		if v.Running {
			n++
		}
	}
	return n
}

// With returns the frame with other data, for a template that is a part of a page.
func (f frame) With(data any) frame {
	f.Data = data
	return f
}

// frame returns the frame of a page with its data.
func (q *request) frame(p page, data any) frame {
	f := frame{Title: titleOf(p, data), Page: p.path, Version: q.cfg.Version, Prefix: q.cfg.Prefix, Data: data, q: q,
		Faults: faultsOf(q.problem), ReadOnly: q.cfg.ReadOnly}
	if q.grant != nil {
		f.Name = q.grant.Name()
	}
	query := ""
	f.Faults = faultsOf(q.problem)
	if q.r.Method != http.MethodGet { // the page of a form, again
		f.Back = safeNext(q.query.Get("back"))
		return f
	}
	if q.r.URL.RawQuery != "" {
		query = "?" + q.r.URL.RawQuery
	}
	f.Back = p.path + query
	if still, ok := data.(interface{ Still() bool }); p.live != nil && !(ok && still.Still()) {
		f.Live = "live-" + p.template + query
		if q.seen != "" {
			separator := "?"
			if query != "" {
				separator = "&"
			}
			f.Live += separator + seenParameter + "=" + q.seen
		}
	}
	return f
}

// titleOf returns the title of a page. The data of a page about one thing has a method Title with its name.
func titleOf(p page, data any) string {
	if named, ok := data.(interface{ Title() string }); ok {
		return named.Title()
	}
	return p.title
}

// render answers with a page.
func (q *request) render(status int, p page, data any) {
	f := q.frame(p, data)
	if q.grant != nil {
		f.Notice = q.takeNotice()
	}
	q.execute(status, p.template, f)
}

// renderLogin answers with the login page.
func (d *Dashboard) renderLogin(w http.ResponseWriter, status int, view loginView) {
	q := &request{Dashboard: d, w: w, r: &http.Request{URL: &url.URL{}}}
	q.execute(status, "login", frame{Title: "Log in", Version: d.cfg.Version, Prefix: d.cfg.Prefix, Data: view, q: nil})
}

// execute writes a page. It writes nothing but an error if the template fails. The pages of a token are rendered one
// after the other: its viewers could keep all cores busy, and the bridge of the same process needs them, too.
func (q *request) execute(status int, name string, f frame) {
	var out bytes.Buffer
	write := func() error { return templates[name].ExecuteTemplate(&out, "page", f) }
	var err error
	if q.grant == nil || name == failureTemplate || q.showsOnce { // the first two are small
		err = write()
	} else {
		err = q.hub.render(q.ctx, &q.hub.pageTime, q.grant.Name(), restOfPage, write)
	}
	if errors.Is(err, errBusyToken) {
		q.fail(q.w, q.r, q, err)
		return
	}
	if err != nil {
		q.log.Error("a page of the dashboard cannot be rendered", slog.String("page", name), slog.Any("error", err))
		http.Error(q.w, "the page cannot be rendered", http.StatusInternalServerError)
		return
	}
	leave := func() {}
	if !q.showsOnce && !q.inLine {
		leave, err = q.takeAnswer(out.Len(), out.Cap())
	}
	switch {
	case err != nil && name == failureTemplate: // its text is long
		http.Error(q.w, err.Error(), newFailure(err).Status)
		return
	case err != nil:
		q.fail(q.w, q.r, q, err)
		return
	}
	defer leave()
	h := q.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Vary", "Accept-Encoding")
	// The server ends the deadline with the request. Until then a viewer who does not read holds the page in memory.
	_ = http.NewResponseController(q.w).SetWriteDeadline(time.Now().Add(readTime(int64(out.Len()))))
	if !strings.Contains(q.r.Header.Get("Accept-Encoding"), "gzip") {
		q.w.WriteHeader(status)
		_, _ = out.WriteTo(q.w)
		return
	}
	h.Set("Content-Encoding", "gzip")
	q.w.WriteHeader(status)
	zipped := gzip.NewWriter(q.w)
	_, _ = out.WriteTo(zipped) // an error means that the viewer has gone
	_ = zipped.Close()
}

// work calls what may take long before a page is rendered, because it looks at all of so many bytes. Large work is done
// in the share of the token, like the rendering of its pages. The error is that of shares.do.
func (q *request) work(bytes int, work func()) error {
	if bytes <= shownBytes {
		work()
		return nil
	}
	return q.hub.render(q.ctx, &q.hub.pageTime, q.token(), restOfPage, func() error {
		work()
		return nil
	})
}

// functions are the functions of all templates.
var functions = template.FuncMap{
	"asset":    assetAddress,
	"href":     href,
	"number":   number,
	"bytes":    byteText,
	"size":     func(n int) string { return byteText(int64(n)) },
	"span":     span,
	"rfc":      func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"clock":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") },
	"isZero":   func(t time.Time) bool { return t.IsZero() },
	"list":     func(items ...any) []any { return items },
	"dict":     dict,
	"percent":  func(part, whole int64) int64 { return part * 100 / max(whole, 1) },
	"perSec":   perSecond,
	"contains": strings.Contains,
	"join":     strings.Join,
	"cut":      cut,
	"visible":  visible,
	"clipped":  clip,
	"plural":   plural,
	"points":   sparkPoints,

	"sortOrder": sortOrder,
	"firstLine": firstLine,
	"reason":    reasonText,
	"sentence":  sentence,
	"todo":      todo,
	"adviceOf":  adviceOf,
	"isLong":    func(t admin.Millis) bool { return time.Duration(t) >= 10*time.Second },
	"alive":     isAlive,
}

// sortOrder returns the order that a click on a column asks for: "down" or "". The first click on a column puts its
// largest value first, unless the column is the name.
func sortOrder(sorted string, down bool, column string) string {
	if (sorted == column && !down) || (sorted != column && column != "name") {
		return "down"
	}
	return ""
}

// sentence returns a text with a capital letter at the beginning.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

// sparkPoints returns the points of a line in a box of 80 to 20, for an SVG polyline. The top of the box is the highest
// value, but at least 100, so that a few milliseconds of lateness look as small as they are.
func sparkPoints(values []int64) string {
	var highest int64 = 100
	for _, v := range values {
		highest = max(highest, v)
	}
	step := 80 / float64(max(len(values)-1, 1))
	points := make([]string, len(values))
	for i, v := range values {
		points[i] = fmt.Sprintf("%.0f,%.0f", float64(i)*step, 19-18*float64(v)/float64(highest))
	}
	return strings.Join(points, " ")
}

// href returns the relative address of a page with parameters, given as names and values in turn. It leaves out a
// parameter whose value is empty.
func href(page string, parameters ...any) (string, error) {
	if len(parameters)%2 != 0 {
		return "", fmt.Errorf("href %s: a parameter has no value", page)
	}
	q := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		if value := fmt.Sprint(parameters[i+1]); value != "" {
			q.Set(fmt.Sprint(parameters[i]), value)
		}
	}
	if len(q) == 0 {
		return page, nil
	}
	return page + "?" + q.Encode(), nil
}

// dict returns a map of names and values in turn, for templates that take several values.
func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict: a name has no value")
	}
	all := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		all[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return all, nil
}

// number returns an integer of any type as text, with thin groups of three digits.
func number(n any) string {
	text := fmt.Sprint(n)
	digits := strings.TrimPrefix(text, "-")
	sign := text[:len(text)-len(digits)]
	if strings.ContainsFunc(digits, func(r rune) bool { return r < '0' || r > '9' }) {
		return text
	}
	var grouped strings.Builder
	for i, r := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			grouped.WriteByte(',')
		}
		grouped.WriteRune(r)
	}
	return sign + grouped.String()
}

// byteText returns a size as text: "1.5 MiB".
func byteText(n int64) string {
	value, unit := float64(n), "B"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, larger
	}
	if unit == "B" {
		return strconv.FormatInt(n, 10) + " B"
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + " " + unit
}

// span returns a duration as text with two units: "3m 20s". It takes a time.Duration, an admin.Millis or a pointer to
// one; nil gives "".
func span(v any) string {
	var d time.Duration
	switch v := v.(type) {
	case time.Duration:
		d = v
	case admin.Millis:
		d = time.Duration(v)
	case *admin.Millis:
		if v == nil {
			return ""
		}
		d = time.Duration(*v)
	default:
		return fmt.Sprint(v)
	}
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	switch {
	case d < time.Second:
		return sign + strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < time.Minute:
		return sign + strings.TrimSuffix(strconv.FormatFloat(d.Seconds(), 'f', 1, 64), ".0") + "s"
	}
	units := []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	for i, u := range units {
		if d >= u.length {
			text := fmt.Sprintf("%s%d%s", sign, d/u.length, u.name)
			if i+1 < len(units) {
				if rest := d % u.length / units[i+1].length; rest > 0 {
					text += fmt.Sprintf(" %d%s", rest, units[i+1].name)
				}
			}
			return text
		}
	}
	return ""
}

// perSecond returns a rate as text; nil, which means unknown, gives "–".
func perSecond(rate *float64) string {
	switch {
	case rate == nil || math.IsNaN(*rate) || math.IsInf(*rate, 0):
		return "–"
	case *rate != 0 && math.Abs(*rate) < 10:
		return strconv.FormatFloat(*rate, 'f', 1, 64)
	}
	return number(int64(math.Round(*rate)))
}

// plural returns "1 message" or "2 messages". It takes an integer of any type.
func plural(n any, one, many string) string {
	if fmt.Sprint(n) == "1" {
		return "1 " + one
	}
	return number(n) + " " + many
}
