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

// text returns the painted line, cut to width; 0 = not cut. A line that was cut ends in "…".
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

// bodyLine is the line of a queue or of one of its groups.
type bodyLine struct {
	line  line
	queue string
	group bool
}

// Frame draws the state for a terminal of a given size. Height 0 means as many lines as needed, width 0 as wide as
// needed. most is how many lines it can scroll.
func (s *State) Frame(width, height int, p term.Paint) (lines []string, most int) {
	top, foot := s.head(width), s.foot()
	nameWidth := s.nameWidth(width)
	top = append(top, columns(nameWidth, "QUEUE", queueColumns), columns(nameWidth, "  GROUP", groupColumns))
	body := s.body(nameWidth)
	shown, offset := len(body), 0
	if room := max(1, height-len(top)-len(foot)); height > 0 && len(body) > room {
		shown = max(1, room-1) // one line of the room says how much is left out
		most = len(body) - shown
		offset = min(max(0, s.offset), most)
	}
	all := top
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
	return lines, most
}

// leftOut describes how many queues and groups of the body are not shown.
func leftOut(body []bodyLine, offset, shown int) string {
	count := func(lines []bodyLine, group bool) (n int) {
		for _, b := range lines {
			if b.group == group {
				n++
			}
		}
		return n
	}
	more := func(n int, what string) string {
		if n != 1 {
			what += "s"
		}
		return fmt.Sprintf("%d more %s", n, what)
	}
	var parts []string
	above, below := body[:offset], body[offset+shown:]
	if n := count(above, false); n > 0 {
		parts = append(parts, more(n, "queue")+" above")
	}
	cut := 0 // hidden groups of the last queue that is shown
	for cut < len(below) && below[cut].group {
		cut++
	}
	if cut > 0 {
		parts = append(parts, more(cut, "group")+" of "+below[0].queue)
	}
	if n := count(below, false); n > 0 {
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
		used := fmt.Sprintf("memory %s", size(s.server.UsedMemory))
		look := term.Plain
		if s.server.MaxMemory > 0 {
			used += " of " + size(s.server.MaxMemory)
			if s.server.UsedMemory > s.server.MaxMemory/10*9 {
				look = term.Bad
			}
		}
		rest := fmt.Sprintf("  clients %s  %s ops/s", human.Thousands(s.server.Clients), human.Thousands(s.server.OpsPerSecond))
		if s.server.Servers > 1 {
			rest += fmt.Sprintf("  %d servers", s.server.Servers)
		}
		lines = append(lines, line{{look, used}, {term.Plain, rest}})
	}
	lines = append(lines, s.bridgeLine())
	if !s.since.IsZero() {
		text := fmt.Sprintf("disconnected since %s (%s): %s", s.since.Format(time.TimeOnly),
			human.Short(max(0, s.Now.Sub(s.since)).Truncate(time.Second)), s.reason)
		lines = append(lines, line{{term.Bad, human.OneLine(text, 400)}})
	} else if len(s.advice) > 0 {
		lines = append(lines, adviceLines(s.advice, width)...)
	}
	return lines
}

// adviceLines shows the worst finding and the next step to take. The next step gets a line of its own if both do not
// fit. The number of further findings comes first, because the end of a line may be cut.
func adviceLines(advice []doctor.Finding, width int) []line {
	worst, text := advice[0], "! "
	if more := len(advice) - 1; more > 0 {
		text = fmt.Sprintf("! (+%d: duestream doctor) ", more)
	}
	look := term.Alert
	if worst.Severity == doctor.Error {
		look = term.Bad
	}
	text += human.OneLine(worst.Line(), 400)
	const next = " Next: "
	at := strings.LastIndex(text, next)
	if width <= 0 || utf8.RuneCountInString(text) <= width || at < 0 {
		return []line{{{look, text}}}
	}
	return []line{{{look, text[:at]}}, {{look, " " + text[at:]}}}
}

// withClock puts the clock at the end of a line. The line is cut if both do not fit. Width 0 means that both always
// fit.
func withClock(l line, clock string, width int) line {
	room := width - len(clock) - 2
	if width > 0 && room > 0 {
		if text := l.text(0, false); utf8.RuneCountInString(text) > room {
			l = line{l[0], {term.Plain, left(strings.TrimPrefix(text, l[0].text),
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
	if !s.live {
		return nil
	}
	keys := line{{term.Faint, "q quit  s sort: "}, {term.Plain, s.sort}, {term.Faint, "  p pause  ↑↓ scroll  +/- every "},
		{term.Plain, human.Short(s.every)}}
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

func columns(nameWidth int, name string, all []column) line {
	l := line{{term.Strong, left(name, nameWidth)}}
	for _, c := range all {
		l = append(l, span{term.Strong, " " + right(c.title, c.width)})
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
		title := term.Plain
		if q.Held {
			title = term.Alert
		}
		l := line{{title, left(queueTitle(q), nameWidth)}}
		rates := admin.QueueRates{}
		if q.PerSecond != nil {
			rates = *q.PerSecond
		}
		cells := []span{
			{term.Plain, count(q.Scheduled, false)}, {some(q.Overdue, term.Alert), count(q.Overdue, false)},
			{term.Plain, count(q.Ready, q.ReadyApprox)},
			{term.Plain, perSecond(rates.In)}, {term.Plain, perSecond(rates.Out)}, {term.Plain, perSecond(rates.Done)},
			{some(q.Overdue, term.Alert), lateness(q.Behind, q.Overdue > 0)},
			{term.Plain, lateness(deref(q.Late), q.Late != nil)}, {some(q.Dead, term.Bad), count(q.Dead, false)},
		}
		for i, c := range cells {
			l = append(l, span{term.Plain, " "}, span{c.style, right(c.text, queueColumns[i].width)})
		}
		if q.Err != nil { // unread queue: the cells are not its figures
			l = l[:1]
		}
		all = append(all, bodyLine{l, q.Queue, false})
		note := func(look term.Style, text string) {
			all = append(all, bodyLine{line{{look, "  " + text}}, q.Queue, true})
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

func groupLine(g admin.GroupSample, nameWidth int) line {
	workers, look := strconv.FormatInt(g.Alive, 10), term.Plain
	switch {
	case g.AliveApprox:
		workers = "~" + workers
	case g.Alive < g.Consumers:
		workers += "/" + strconv.FormatInt(g.Consumers, 10)
	}
	if g.Alive == 0 && g.Lag > 0 {
		look = term.Alert
	}
	retrying := count(g.Retrying, false)
	if g.RetryingMore {
		retrying += "+"
	}
	l := line{{term.Plain, left("  "+human.OneLine(g.Name, 256), nameWidth)}}
	for i, c := range []span{
		{look, count(g.Lag, g.LagApprox)}, {term.Plain, count(g.Pending, false)},
		{term.Plain, lateness(deref(g.OldestHeld), g.OldestHeld != nil)}, {look, workers},
		{term.Plain, retrying}, {term.Plain, perSecond(g.Done)},
	} {
		l = append(l, span{term.Plain, " "}, span{c.style, right(c.text, groupColumns[i].width)})
	}
	return l
}
