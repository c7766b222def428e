package live

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/bridge/admin/doctor"
	"github.com/duestream/duestream/cmd/duestream/internal/heartbeat"
	"github.com/duestream/duestream/cmd/duestream/internal/human"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
)

// span is a part of a line with one style.
type span struct {
	style term.Style
	text  string
}

type line []span

// text returns the painted line, cut to width. A line that was cut ends in "…". If width is 0, nothing is cut.
func (l line) text(width int, p term.Paint) string {
	total := 0
	for _, s := range l {
		total += utf8.RuneCountInString(s.text)
	}
	room, cut := total, width > 0 && total > width
	if cut {
		room = width - 1
	}
	var b strings.Builder
	for _, s := range l {
		text := []rune(s.text)
		text = text[:min(room, len(text))]
		room -= len(text)
		b.WriteString(p.Text(s.style, string(text)))
	}
	if cut {
		b.WriteString("…")
	}
	return b.String()
}

// bodyLine is the line of a queue, or a line below it: a group or a note.
type bodyLine struct {
	line  line
	queue string
	below bool // the line stands below the line of its queue
}

// Frame draws the state for a terminal of a given size. Height 0 means as many lines as needed, width 0 as wide as
// needed. maxOffset is the number of lines by which the frame can be scrolled.
func (s *State) Frame(width, height int, p term.Paint) (lines []string, maxOffset int) {
	head, foot := s.head(width), s.foot()
	nameWidth := s.nameWidth(width)
	head = append(head, titleLine(nameWidth, "QUEUE", queueColumns), titleLine(nameWidth, "  GROUP", groupColumns))
	body := s.body(nameWidth)
	shown, offset := len(body), 0
	if room := max(1, height-len(head)-len(foot)); height > 0 && len(body) > room {
		shown = max(1, room-1) // one line of the room says how much is left out
		maxOffset = len(body) - shown
		offset = min(max(0, s.offset), maxOffset)
	}
	all := head
	for _, b := range body[offset : offset+shown] {
		all = append(all, b.line)
	}
	if shown < len(body) {
		all = append(all, line{{term.Faint, leftOut(body, offset, shown)}})
	}
	if len(body) == 0 {
		all = append(all, line{{term.Plain, "no queues: a queue is known once something was scheduled to it"}})
	}
	if height > 0 {
		all = all[:min(len(all), max(0, height-len(foot)))]
	}
	for _, l := range append(all, foot...) {
		lines = append(lines, strings.TrimRight(l.text(width, p), " "))
	}
	return lines, maxOffset
}

// leftOut describes how many queues and groups of the body are not shown.
func leftOut(body []bodyLine, offset, shown int) string {
	queues := func(lines []bodyLine) (n int) {
		for _, b := range lines {
			if !b.below {
				n++
			}
		}
		return n
	}
	more := func(n int, noun string) string {
		if n != 1 {
			noun += "s"
		}
		return fmt.Sprintf("%d more %s", n, noun)
	}
	var parts []string
	above, under := body[:offset], body[offset+shown:]
	if n := queues(above); n > 0 {
		parts = append(parts, more(n, "queue")+" above")
	}
	groups := 0 // hidden groups of the last queue that is shown
	for groups < len(under) && under[groups].below {
		groups++
	}
	if groups > 0 {
		parts = append(parts, more(groups, "group")+" of "+under[0].queue)
	}
	if n := queues(under); n > 0 {
		parts = append(parts, more(n, "queue"))
	}
	if len(parts) == 0 {
		return "…"
	}
	return "… and " + strings.Join(parts, ", ")
}

func (s *State) head(width int) []line {
	title := line{{term.Strong, "duestream top"}}
	if s.server.Product != "" {
		title = append(title, span{term.Plain, "  " + s.server.Product + " " + s.server.Version})
	}
	title = append(title, span{term.Plain, "  " + s.host + "  prefix " + s.prefix})
	title = withClock(title, s.Now.Format(time.TimeOnly), width)
	lines := []line{title}
	if s.server.Servers > 0 {
		lines = append(lines, serverLine(s.server))
	}
	lines = append(lines, s.bridgeLine())
	if !s.lostAt.IsZero() {
		text := fmt.Sprintf("disconnected since %s (%s): %s", s.lostAt.Format(time.TimeOnly),
			human.Short(max(0, s.Now.Sub(s.lostAt)).Truncate(time.Second)), s.lostReason)
		lines = append(lines, line{{term.Bad, human.OneLine(text, 400)}})
	} else if len(s.advice) > 0 {
		lines = append(lines, adviceLines(s.advice, width)...)
	}
	return lines
}

// serverLine shows the load of the server. Its memory is Bad above 90 % of maxmemory.
func serverLine(server admin.ServerLoad) line {
	memory, style := fmt.Sprintf("memory %s", size(server.UsedMemory)), term.Plain
	if server.MaxMemory > 0 {
		memory += " of " + size(server.MaxMemory)
		if server.UsedMemory > server.MaxMemory/10*9 {
			style = term.Bad
		}
	}
	load := fmt.Sprintf("  clients %s  %s ops/s", human.Thousands(server.Clients), human.Thousands(server.OpsPerSecond))
	if server.Servers > 1 {
		load += fmt.Sprintf("  %d servers", server.Servers)
	}
	return line{{style, memory}, {term.Plain, load}}
}

// adviceLines shows the worst finding and the next step to take. The next step gets a line of its own if both do not
// fit. The number of further findings comes first, because the end of a line may be cut.
func adviceLines(advice []doctor.Finding, width int) []line {
	worst, text := advice[0], "! "
	if more := len(advice) - 1; more > 0 {
		text = fmt.Sprintf("! (+%d: duestream doctor) ", more)
	}
	style := term.Alert
	if worst.Severity == doctor.Error {
		style = term.Bad
	}
	text += human.OneLine(worst.Line(), 400)
	nextStep := strings.LastIndex(text, " Next: ")
	if width <= 0 || utf8.RuneCountInString(text) <= width || nextStep < 0 {
		return []line{{{style, text}}}
	}
	return []line{{{style, text[:nextStep]}}, {{style, " " + text[nextStep:]}}}
}

// withClock puts the clock at the end of a line. The line is cut if both do not fit. Width 0 means that both always
// fit.
func withClock(l line, clock string, width int) line {
	room := width - len(clock) - 2
	if width > 0 && room > 0 {
		if text := l.text(0, false); utf8.RuneCountInString(text) > room {
			l = line{l[0], {term.Plain, alignLeft(strings.TrimPrefix(text, l[0].text),
				max(1, room-utf8.RuneCountInString(l[0].text)))}}
		}
	}
	gap := max(2, width-utf8.RuneCountInString(l.text(0, false))-len(clock))
	return append(l, span{term.Plain, strings.Repeat(" ", gap) + clock})
}

func (s *State) bridgeLine() line {
	text, alive := heartbeat.Alive(s.bridges, true)
	switch {
	case s.bridgesFailed:
		return line{{term.Alert, "bridges: not known, their key cannot be read"}}
	case alive:
		return line{{term.Plain, text}}
	}
	return line{{term.Bad, text}}
}

func (s *State) foot() []line {
	if !s.hasKeys {
		return nil
	}
	keys := line{{term.Faint, "q quit  s sort: "}, {term.Plain, s.sort}, {term.Faint, "  p pause  ↑↓ scroll  +/- every "},
		{term.Plain, human.Short(s.interval)}}
	if s.paused {
		keys = append(keys, span{term.Alert, "  PAUSED"})
	}
	return []line{keys}
}

// column is a column that queues and groups share.
type column struct {
	title string
	width int
}

var queueColumns = []column{{"SCHED", 6}, {"OVERDUE", 7}, {"READY", 6}, {"IN/S", 7}, {"OUT/S", 6}, {"DONE/S", 6}, {"BEHIND", 6},
	{"LATE", 6}, {"DEAD", 5}}

var groupColumns = []column{{"LAG", 6}, {"PENDING", 7}, {"HELD", 6}, {"WORKERS", 7}, {"RETRY", 6}, {"DONE/S", 6}}

func titleLine(nameWidth int, name string, columns []column) line {
	l := line{{term.Strong, alignLeft(name, nameWidth)}}
	for _, c := range columns {
		l = append(l, span{term.Strong, " " + alignRight(c.title, c.width)})
	}
	return l
}

// withCells adds a cell for each column to a line.
func (l line) withCells(columns []column, cells []span) line {
	for i, c := range cells {
		l = append(l, span{term.Plain, " "}, span{c.style, alignRight(c.text, columns[i].width)})
	}
	return l
}

// nameWidth returns the width that the other columns leave for names.
func (s *State) nameWidth(width int) int {
	longest := len("QUEUE / GROUP")
	for _, q := range s.queues {
		longest = max(longest, utf8.RuneCountInString(queueTitle(q)))
		for _, g := range q.Groups {
			longest = max(longest, 2+utf8.RuneCountInString(g.Name))
		}
	}
	if width == 0 {
		return longest
	}
	for _, c := range queueColumns {
		width -= c.width + 1
	}
	return min(max(width, 12), longest)
}

func queueTitle(q admin.QueueSample) string {
	name := q.Queue
	if q.Partitions > 1 {
		name += fmt.Sprintf(" ×%d", q.Partitions)
	}
	if q.Held {
		name += " paused"
	}
	if q.Rate != "" {
		name += " " + string(q.Rate)
	}
	if q.ReadyLimit > 0 {
		name += fmt.Sprintf(" ≤%d", q.ReadyLimit)
	}
	return name
}

func (s *State) body(nameWidth int) []bodyLine {
	var all []bodyLine
	for _, q := range s.sorted() {
		all = append(all, bodyLine{queueLine(q, nameWidth), q.Queue, false})
		note := func(style term.Style, text string) {
			all = append(all, bodyLine{line{{style, "  " + text}}, q.Queue, true})
		}
		if q.Err != nil {
			note(term.Bad, "! "+human.OneLine(q.Err.Error(), 200))
		}
		for _, g := range q.Groups {
			all = append(all, bodyLine{groupLine(g, nameWidth), q.Queue, true})
		}
		if q.MoreGroups > 0 {
			note(term.Faint, fmt.Sprintf("… and %s: see `duestream stats %s`",
				human.Counted(q.MoreGroups, "more group"), q.Queue))
		}
		if len(q.Groups) == 0 && q.Entries > 0 {
			note(term.Alert, "! no consumer group: what is ready waits for one")
		}
	}
	return all
}

// queueLine shows the title and the figures of a queue, or only the title if the queue could not be read.
func queueLine(q admin.QueueSample, nameWidth int) line {
	titleStyle := term.Plain
	if q.Held {
		titleStyle = term.Alert
	}
	l := line{{titleStyle, alignLeft(queueTitle(q), nameWidth)}}
	if q.Err != nil {
		return l
	}
	rates := orZero(q.PerSecond)
	return l.withCells(queueColumns, []span{
		{term.Plain, count(q.Scheduled, false)}, {styleIfSome(q.Overdue, term.Alert), count(q.Overdue, false)},
		{term.Plain, count(q.Ready, q.ReadyApprox)},
		{term.Plain, perSecond(rates.In)}, {term.Plain, perSecond(rates.Out)}, {term.Plain, perSecond(rates.Done)},
		{styleIfSome(q.Overdue, term.Alert), lateness(q.Behind, q.Overdue > 0)},
		{term.Plain, lateness(orZero(q.Late), q.Late != nil)},
		{styleIfSome(q.Dead, term.Bad), count(q.Dead, false)},
	})
}

func groupLine(g admin.GroupSample, nameWidth int) line {
	workers, style := strconv.FormatInt(g.Alive, 10), term.Plain
	switch {
	case g.AliveApprox:
		workers = "~" + workers
	case g.Alive < g.Consumers:
		workers += "/" + strconv.FormatInt(g.Consumers, 10)
	}
	if g.Alive == 0 && g.Lag > 0 {
		style = term.Alert
	}
	retrying := count(g.Retrying, false)
	if g.RetryingMore {
		retrying += "+"
	}
	l := line{{term.Plain, alignLeft("  "+human.OneLine(g.Name, 256), nameWidth)}}
	return l.withCells(groupColumns, []span{
		{style, count(g.Lag, g.LagApprox)}, {term.Plain, count(g.Pending, false)},
		{term.Plain, lateness(orZero(g.OldestHeld), g.OldestHeld != nil)}, {style, workers},
		{term.Plain, retrying}, {term.Plain, perSecond(g.Done)},
	})
}
