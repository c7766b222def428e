package campaign

import (
	"strings"
	"time"
)

// Language runs producers and workers of a campaign with a package in another language. Its program gets the part, as
// JSON, in the variable that envPart names. It writes the same ledger as the test binary does. It handles SIGTERM
// before it opens the ledger, and exits with 0, or with 4 if handlers did not return in time.
type Language struct {
	Name    string   // of lower-case letters
	Command []string // with absolute paths
}

// Rules are what a program in another language needs to follow the plans of messages. Durations are in ms.
type Rules struct {
	Kinds                                             []Draw
	SidePercent                                       int // share of the second queue
	SlowMin, SlowMax, DedupWindow, SnoozeFor, Oldest  int64
	AgeGap, Spread, HangLimit, HangFor, AbandonAfter  int64
	Gaps                                              []int64
	Keys, Patient                                     int
	Tick, CatchUp, RetryTimeout, Shutdown, StopWithin int64
	Lines                                             int
}

// Draw is a kind of messages: its letter, how many of a thousand messages are of this kind, and the largest n.
type Draw struct {
	Kind   string
	Weight float64
	Most   int
}

// rulesOf returns the rules for a part. The packages cannot cancel a message that a worker holds, so their producers
// send none of kindHalt.
func rulesOf(patience float64) *Rules {
	r := &Rules{
		SidePercent: sidePercent, SlowMin: slowMin.Milliseconds(), SlowMax: slowMax.Milliseconds(),
		DedupWindow: dedupWindow.Milliseconds(), SnoozeFor: snoozeFor.Milliseconds(), Oldest: oldest.Milliseconds(),
		AgeGap: ageGap.Milliseconds(), Spread: spread.Milliseconds(), HangLimit: hangLimit.Milliseconds(),
		HangFor: hangFor.Milliseconds(), AbandonAfter: abandonAfter.Milliseconds(), Keys: keys, Patient: patient,
		Tick: producerTick.Milliseconds(), CatchUp: maxCatchUp.Milliseconds(),
		RetryTimeout: producerTries.Milliseconds(), Shutdown: shutdownTimeout.Milliseconds(),
		StopWithin: cancelGrace.Milliseconds(), Lines: producerLines,
	}
	for _, gap := range gaps {
		r.Gaps = append(r.Gaps, gap.Milliseconds())
	}
	for _, w := range weights(patience) {
		if w.kind != kindHalt {
			r.Kinds = append(r.Kinds, Draw{string(w.kind), w.weight, w.most})
		}
	}
	return r
}

// ofLanguage separates the name of a language from the rest of the name of a process.
const ofLanguage = "_"

// language returns the language of a process that runs a package in another language, or "".
func (w *writer) language() string {
	name, _, found := strings.Cut(w.name, ofLanguage)
	if !found {
		return ""
	}
	return name
}

// assignLanguage returns the program of a part in another language, or nil, and gives the part a name and its rules.
// The first part of each role and group stays a Go program, and each further one is in the next language.
func (c *controller) assignLanguage(p *part) (command []string) {
	if n := len(c.cfg.Languages); n > 0 && p.Index > 0 && (p.Role == roleWorker || p.Role == roleProducer) {
		l := c.cfg.Languages[(p.Index-1)%n]
		p.Name, p.Rules = l.Name+ofLanguage+p.Name, rulesOf(p.Patience)
		return l.Command
	}
	return nil
}

// languageNames returns the names of the languages that take part.
func (c *controller) languageNames() (names []string) {
	for _, l := range c.cfg.Languages {
		names = append(names, l.Name)
	}
	return names
}

// languageWork counts what the processes of each language did.
type languageWork struct{ accepted, deliveries map[string]int }

func (t *languageWork) count(records []record) {
	if t.accepted == nil {
		t.accepted, t.deliveries = map[string]int{}, map[string]int{}
	}
	took := false
	for _, one := range records {
		switch language := one.by.language(); {
		case language == "":
		case one.verb == verbTaken && !took:
			took = true
			t.accepted[language]++
		case one.verb == verbStart:
			t.deliveries[language]++
		}
	}
}

// unused names languages whose packages did no work.
func (t *languageWork) unused(languages []string) (text string) {
	for _, language := range languages {
		if t.accepted[language] == 0 {
			text += ", none accepted from a producer in " + language
		}
		if t.deliveries[language] == 0 {
			text += ", none delivered to a worker in " + language
		}
	}
	return text
}

// isName reports whether a denied command only gives a connection the name of its client library. Libraries go on
// without it.
func isName(command string) bool { return command == "client" || command == "client|setinfo" }

// Limits of a worker that stops.
const shutdownTimeout, cancelGrace = time.Second, 2 * time.Second
