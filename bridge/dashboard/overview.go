package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
)

func overviewSection() section {
	return section{
		nav:   []navItem{{Path: "", Title: "Overview", Key: "o"}},
		pages: []page{{title: "Overview", template: "overview", show: showOverview, live: liveOverview}},
	}
}

// systemSample is the state of all queues, of the bridges and of the server.
type systemSample struct {
	queues   []admin.QueueSample
	bridges  []admin.Heartbeat
	server   admin.ServerLoad
	findings []doctor.Finding
	lateness map[string][]int64 // the last latenesses of each queue in ms, oldest first
}

// latenessPoints is the number of points of a queue's line of lateness.
const latenessPoints = 40

// liveSystem returns the look that all views of the whole system share.
func (q *request) liveSystem(part string, data func(systemSample) (any, error)) *live {
	op, examiner, adviser := q.shared(), q.examiner, q.adviser
	watcher := op.Watcher()
	lateness := map[string][]int64{}
	return &live{topic: "system", part: part,
		look: func(ctx context.Context) (sample, error) {
			s, err := lookAtSystem(ctx, op, adviser, watcher, lateness)
			return sample{value: s, mark: s.mark() + examiner.mark()}, err
		},
		data: func(value any) (any, error) { return data(value.(systemSample)) },
	}
}

// lookAtSystem reads the system. It adds the latenesses to those of earlier looks, and copies them into the sample.
func lookAtSystem(
	ctx context.Context, op *admin.Admin, adviser *admin.Adviser, w *admin.Watcher, lateness map[string][]int64,
) (systemSample, error) {
	var s systemSample
	var err error
	if s.queues, err = w.Look(ctx); err != nil {
		return s, err
	}
	s.bridges, err = op.Bridges(ctx)
	bridgesFailed := err != nil
	if s.server, err = op.ServerLoad(ctx); err != nil {
		return s, err
	}
	s.findings = adviser.Advise(ctx, admin.Seen{
		Samples: s.queues, Bridges: s.bridges, BridgesFailed: bridgesFailed, Server: s.server,
	})
	s.lateness = make(map[string][]int64, len(s.queues))
	for _, one := range s.queues {
		line := lateness[one.Queue]
		if line == nil {
			line = make([]int64, latenessPoints)
		}
		s.lateness[one.Queue] = append(slices.Clone(line[1:]), int64(latenessOf(one)))
	}
	clear(lateness)
	maps.Copy(lateness, s.lateness)
	return s, nil
}

// markOf returns a text that is equal for two samples of a queue that look the same on a page. It holds ages above a
// minute in whole minutes. With exact ages, each look would differ and a page would never rest.
func markOf(q admin.QueueSample) string {
	var text strings.Builder
	text.WriteString(contentsOf(q))
	fmt.Fprintln(&text, latenessOf(q))
	for _, g := range q.Groups {
		fmt.Fprintln(&text, g.WaitingApprox)
		for _, age := range []*admin.Millis{g.Waiting, g.OldestHeld} {
			if age != nil {
				fmt.Fprintln(&text, wholeMinutes(*age))
			}
		}
	}
	return text.String()
}

// contentsOf returns a text that is equal for two samples of a queue between which nothing happened. It has no ages.
func contentsOf(q admin.QueueSample) string {
	var text strings.Builder
	fmt.Fprintln(&text, q.Queue, q.Partitions, q.Err, q.Held, q.Flow, q.Scheduled, q.Overdue, q.Ready, q.ReadyApprox,
		q.Entries, q.Dead, ratesOf(q), q.MoreGroups)
	for _, g := range q.Groups {
		fmt.Fprintln(&text, g.Name, g.Lag, g.LagApprox, g.Pending, g.Retrying, g.RetryingMore, g.Consumers, g.Alive,
			g.AliveApprox, g.Holder, perSecond(g.Done))
	}
	return text.String()
}

// mark returns a text that is equal for two samples that look the same on a page. Ages are in it as far as they are in
// markOf. The clients and commands of the servers are left out: they differ at each look.
func (s systemSample) mark() string {
	var text strings.Builder
	for _, q := range s.queues {
		text.WriteString(markOf(q))
		fmt.Fprintln(&text, s.lateness[q.Queue])
	}
	for _, b := range s.bridges {
		fmt.Fprintln(&text, b.Bridge, isAlive(b))
	}
	for _, f := range s.findings {
		fmt.Fprintln(&text, f.Code, f.Queue, f.Group, f.Count)
	}
	for _, m := range s.server.Masters() {
		fmt.Fprintln(&text, m.Address, m.Product, m.Version, memoryOf(m), m.MaxMemory, m.MaxMemoryPolicy, m.AOF, m.AOFFailed,
			m.Saved.Unix(), m.SaveFailed, m.Replicas)
	}
	return text.String()
}

// memoryOf returns the memory in use so roughly that it is the same at each look at an idle server: in percent of the
// limit, or without a limit in MiB.
func memoryOf(m admin.Master) int64 {
	if m.MaxMemory > 0 {
		return m.UsedMemory * 100 / m.MaxMemory
	}
	return m.UsedMemory >> 20
}

// ratesOf returns the rates of a queue as the overview shows them.
func ratesOf(q admin.QueueSample) string {
	if q.PerSecond == nil {
		return ""
	}
	return perSecond(q.PerSecond.In) + " " + perSecond(q.PerSecond.Out)
}

// aliveFor is the greatest age of the last heartbeat of a bridge that keeps its queues.
const aliveFor = 3 * time.Second

// isAlive reports whether a bridge has sent a heartbeat lately.
func isAlive(b admin.Heartbeat) bool { return b.Age < aliveFor }

// latenessOf returns how late the queue's messages become ready; 0 = unknown or in time. Above a minute it is in whole
// minutes, so that a queue that stands still does not look different at each look.
func latenessOf(s admin.QueueSample) admin.Millis {
	late := s.BehindMS
	if s.Late != nil {
		late = max(late, *s.Late)
	}
	return wholeMinutes(late)
}

// wholeMinutes cuts a time above a minute to whole minutes.
func wholeMinutes(t admin.Millis) admin.Millis {
	if d := time.Duration(t); d > time.Minute {
		return admin.Millis(d.Truncate(time.Minute))
	}
	return t
}

// overviewView is the data of the overview.
type overviewView struct {
	Rows    []queueRow
	Hidden  int // queues that the filter hides
	Total   totals
	Advice  []advice
	Bridges []admin.Heartbeat
	Server  admin.ServerLoad
	Filter  string
	Sort    string
	Down    bool // the order is descending
	Columns []column
	All     bool // the viewer may inspect all queues, so bridges and server are shown
}

// queueRow is a queue of the table.
type queueRow struct {
	admin.QueueSample
	Pending, Retrying int64
	Lateness          admin.Millis // between the due time and the time when a message becomes ready
	Waiting           admin.Millis // the longest time that an entry has waited for a group to read it
	WaitingApprox     bool         // it is a lower bound
	Waits             bool         // an entry waits
	RetryingMore      bool         // Retrying is a lower bound
	Line              []int64
}

// workersSummary tells about the workers of the rows.
type workersSummary struct {
	Groups, Alive, Pending int64
	Longest                *workerRow // the group with the delivery that is held for the longest time; nil = none is held
}

// Workers returns the summary of the workers.
func (v overviewView) Workers() (s workersSummary) {
	var longest admin.Millis
	for _, row := range v.Rows {
		for _, g := range row.Groups {
			s.Groups++
			s.Alive += g.Alive
			s.Pending += g.Pending
			if g.OldestHeld == nil || s.Longest != nil && *g.OldestHeld <= longest {
				continue
			}
			longest = *g.OldestHeld
			held := wholeMinutes(longest)
			g.OldestHeld = &held
			s.Longest = &workerRow{Queue: row.Queue, GroupSample: g}
		}
	}
	return s
}

// totals are the sums of the rows.
type totals struct {
	Queues, Scheduled, Overdue, Ready, Pending, Retrying, Dead int64

	ReadyApprox, RetryingMore bool // the sum is a lower bound

	Filter string // of the page, for links that sort it
	Hidden int    // queues that the filter hides
}

// AllQueues returns the number of queues that the viewer may see.
func (t totals) AllQueues() int64 { return t.Queues + int64(t.Hidden) }

// column is a column of the table, by which the rows can be sorted.
type column struct {
	Key, Title string
	Wide       bool                   // a phone does not show it
	value      func(queueRow) float64 // nil for the name
}

var queueColumns = []column{
	{"name", "Queue", false, nil},
	{"scheduled", "Scheduled", false, func(r queueRow) float64 { return float64(r.Scheduled) }},
	{"overdue", "Overdue", false, func(r queueRow) float64 { return float64(r.Overdue) }},
	{"ready", "Ready", false, func(r queueRow) float64 { return float64(r.Ready) }},
	{"pending", "Pending", true, func(r queueRow) float64 { return float64(r.Pending) }},
	{"retrying", "Retrying", true, func(r queueRow) float64 { return float64(r.Retrying) }},
	{"dead", "Dead", false, func(r queueRow) float64 { return float64(r.Dead) }},
	{"in", "Scheduled/s", true, func(r queueRow) float64 {
		return rate(r, func(p *admin.QueueRates) *float64 { return p.In })
	}},
	{"out", "Ready/s", true, func(r queueRow) float64 {
		return rate(r, func(p *admin.QueueRates) *float64 { return p.Out })
	}},
	{"late", "Late to ready", false, func(r queueRow) float64 { return float64(r.Lateness) }},
	{"waits", "Waits for workers", false, func(r queueRow) float64 { return float64(r.Waiting) }},
}

func rate(r queueRow, of func(*admin.QueueRates) *float64) float64 {
	if r.PerSecond == nil || of(r.PerSecond) == nil {
		return 0
	}
	return *of(r.PerSecond)
}

func liveOverview(q *request) (*live, error) {
	l := q.liveSystem("overview-live", func(s systemSample) (any, error) { return q.overview(s), nil })
	l.pieces = func(view any) []piece { return view.(overviewView).pieces() }
	return l, nil
}

// pieces returns the elements of the overview that change.
func (v overviewView) pieces() []piece {
	all := []piece{{"overview-totals", "overview-totals", v.Total}, {"overview-advice", "overview-advice", v.Advice},
		{"overview-workers", "overview-workers", v.Workers()}, {"overview-bridges", "overview-bridges", v}}
	for _, row := range v.Rows {
		all = append(all, piece{"queue-" + row.Queue, "overview-row", row})
	}
	return all
}

func showOverview(q *request) (any, error) {
	l, err := liveOverview(q)
	if err != nil {
		return nil, err
	}
	value, err := q.sample(l)
	if err != nil {
		return nil, fmt.Errorf("read the queues: %w", err)
	}
	return l.data(value)
}

// overview returns the rows that the viewer may inspect, filtered and sorted as the address says.
func (q *request) overview(s systemSample) overviewView {
	v := overviewView{Filter: q.query.Get("filter"), Sort: cmp.Or(q.query.Get("sort"), "name"),
		Down: q.query.Get("order") == "down", Columns: queueColumns, All: q.may(access.Inspect, "")}
	if v.All {
		v.Bridges, v.Server = s.bridges, s.server
	}
	v.Advice = adviceOf(q.findings(s.findings))
	v.Total.Filter = v.Filter
	for _, one := range s.queues {
		if !q.may(access.Inspect, one.Queue) {
			continue
		}
		row := queueRow{QueueSample: one, Lateness: latenessOf(one), Line: s.lateness[one.Queue]}
		for _, g := range one.Groups {
			row.Pending += g.Pending
			row.Retrying += g.Retrying
			row.RetryingMore = row.RetryingMore || g.RetryingMore
			if g.Waiting != nil {
				row.Waits, row.WaitingApprox = true, row.WaitingApprox || g.WaitingApprox
				row.Waiting = max(row.Waiting, wholeMinutes(*g.Waiting))
			}
		}
		if !strings.Contains(strings.ToLower(one.Queue), strings.ToLower(v.Filter)) {
			v.Hidden++
			continue
		}
		v.Rows = append(v.Rows, row)
		v.Total.add(row)
	}
	v.Total.Hidden = v.Hidden
	sortRows(v.Rows, v.Sort, v.Down)
	return v
}

func (t *totals) add(r queueRow) {
	t.Queues++
	t.Scheduled += r.Scheduled
	t.Overdue += r.Overdue
	t.Ready += r.Ready
	t.Pending += r.Pending
	t.Retrying += r.Retrying
	t.Dead += r.Dead
	t.ReadyApprox = t.ReadyApprox || r.ReadyApprox
	t.RetryingMore = t.RetryingMore || r.RetryingMore
}

// sortRows sorts by a column, and by name within the same value. A column that does not exist means the name.
func sortRows(rows []queueRow, key string, down bool) {
	at := slices.IndexFunc(queueColumns, func(c column) bool { return c.Key == key })
	slices.SortStableFunc(rows, func(a, b queueRow) int {
		order := 0
		if at > 0 {
			order = cmp.Compare(queueColumns[at].value(a), queueColumns[at].value(b))
		} else {
			order = cmp.Compare(a.Queue, b.Queue)
		}
		if down {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(a.Queue, b.Queue))
	})
}
