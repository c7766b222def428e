package campaign

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/duestream/duestream/lua"
)

// The two queues. Only the second one is hit by destructive commands of operators.
const (
	queueMain = "main"
	queueSide = "sacrificial"
)

// Groups of both queues. Group a has only Go workers and the holder, group b also plain workers.
var groups = []string{"a", "b"}

// The plan of a message is in its ID, so that every worker, and the auditor, know the same plan:
//
//	<producer>-<number>-<queue><kind><n>     p0.3-1742-md2
const (
	kindOK     = 'o' // acknowledged at once
	kindSlow   = 's' // acknowledged by a slow handler
	kindFail   = 'f' // fails n times at once, then is acknowledged
	kindLate   = 'g' // fails n times slowly, then is acknowledged
	kindDoomed = 'd' // max_attempts n, and fails all of them at once
	kindDying  = 'e' // max_attempts n, and fails all of them slowly
	kindBury   = 'x' // a slow handler dead-letters it
	kindLong   = 'l' // runs longer than the visibility timeout
	kindParted = 'p' // fails once slowly in group a, while group b holds the same entry for long
	kindCancel = 'c' // its producer cancels it
	kindMove   = 'r' // its producer reschedules it
	kindWindow = 'w' // has a dedup window; its producer sends it twice
	kindHeld   = 'h' // taken by the holder, in its group, and held to the end
)

// slowMin and slowMax bound the time of a slow handler. It varies by message and attempt.
const slowMin, slowMax = 150 * time.Millisecond, 700 * time.Millisecond

// dedupWindow is shorter than the time at rest at the end of a run, so that the audit can look for expired windows.
const dedupWindow = 20 * time.Second

// plan is the parsed ID of a message.
type plan struct {
	queue string
	kind  byte
	n     int // its meaning depends on the kind, such as a number of failures
}

func (p plan) id(producer string, number uint64) string {
	suffix := ""
	if p.n > 0 {
		suffix = strconv.Itoa(p.n)
	}
	return fmt.Sprintf("%s-%d-%c%c%s", producer, number, p.queue[0], p.kind, suffix)
}

// planOf parses an ID. It returns false for an ID of another form.
func planOf(id string) (p plan, ok bool) {
	id, _, _ = strings.Cut(id, "@") // suffix of an occurrence
	id, _, _ = strings.Cut(id, "!") // suffix of a version
	text := id[strings.LastIndexByte(id, '-')+1:]
	if len(text) < 2 {
		return p, false
	}
	p.kind = text[1]
	switch text[0] {
	case queueMain[0]:
		p.queue = queueMain
	case queueSide[0]:
		p.queue = queueSide
	default:
		return p, false
	}
	if len(text) > 2 {
		n, err := strconv.Atoi(text[2:])
		if err != nil {
			return p, false
		}
		p.n = n
	}
	return p, true
}

// maxAttempts returns max_attempts of the message; 0 = not set.
func (p plan) maxAttempts() int {
	if p.kind == kindDoomed || p.kind == kindDying || p.kind == kindHang {
		return p.n
	}
	return 0
}

// dies reports whether the message must end as a dead letter.
func (p plan) dies() bool {
	return p.kind == kindDoomed || p.kind == kindDying || p.kind == kindBury || p.kind == kindHang || p.letterOf() != ""
}

// letterOf returns the reason of the dead letter as which a message of kindAge must end, and "" for all other kinds.
func (p plan) letterOf() string {
	if p.kind == kindAge {
		return lua.ReasonRetryFor
	}
	return ""
}

// handling returns the work of a handler: its duration, how it ends, and whether it stops when its context ends
// (heeds).
func (p plan) handling(id, group string, attempt int, visibility time.Duration) (takes time.Duration, end string,
	heeds bool) {
	part := rand.New(rand.NewPCG(hash(id), uint64(attempt))).Float64() // the same number in each process
	slow := slowMin + time.Duration(part*float64(slowMax-slowMin))
	switch p.kind {
	case kindSlow:
		return slow, endOK, false
	case kindFail, kindLate:
		if p.kind == kindFail {
			slow = 0
		}
		if attempt <= p.n {
			return slow, endFail, false
		}
		return slow, endOK, false
	case kindParted:
		if group != groups[0] {
			return 2*visibility + time.Duration(part*float64(visibility)), endOK, true
		}
		if attempt == 1 {
			return 2 * slow, endFail, false
		}
		return 0, endOK, false
	case kindDoomed:
		return 0, endFail, false
	case kindDying:
		return slow, endFail, false
	case kindBury:
		return slow, endDead, false
	case kindHalt:
		return haltTakes * slow, endOK, true
	case kindLong:
		return visibility + time.Duration(part*float64(visibility)), endOK, true
	}
	return 0, endOK, false
}

func hash(s string) uint64 { // FNV-1a
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// weighted is how often a kind is drawn.
type weighted struct {
	kind   byte
	weight float64 // in thousandths of all messages
	most   int     // n is drawn from 1 to most; 0 = the kind has no n
}

// draw returns the plan of a producer's next message. For patience see weights.
func draw(random *rand.Rand, patience float64) plan {
	p := plan{queue: queueMain}
	if random.IntN(100) < sidePercent {
		p.queue = queueSide
	}
	at := random.Float64() * 1000
	for _, w := range weights(patience) {
		if at -= w.weight; at < 0 {
			p.kind = w.kind
			if w.most > 0 {
				p.n = 1 + random.IntN(w.most)
			}
			if p.kind == kindVersion {
				p.n++ // at least two versions
			}
			return p
		}
	}
	p.kind = kindOK
	return p
}

// sidePercent is the share of messages for the second queue.
const sidePercent = 8

// weights returns how often each kind is drawn, except kindOK. patience multiplies the weights of the kinds with slow
// handlers.
func weights(patience float64) []weighted {
	return append([]weighted{
		{kindSlow, 8 * patience, 0}, {kindLate, 25 * patience, 2}, {kindDying, 10 * patience, 3}, {kindBury, 3 * patience, 0},
		{kindLong, 1.5 * patience, 0},
		{kindParted, 20 * patience, 0}, {kindFail, 25, 2}, {kindDoomed, 10, 3},
		{kindCancel, 20, 0}, {kindMove, 20, 0}, {kindWindow, 15, 0},
	}, featureKinds...)
}
