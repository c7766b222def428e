package campaign

import (
	"slices"
	"strconv"
)

// promise is what became of a message on its producer's side.
type promise struct {
	tried, taken, maybe, refused bool
	first                        int64 // µs of the first try
	heard                        int64 // µs at which its producer first heard that it was taken, or gave up
	due                          int64 // ms: never before this; 0 = not known
	cancelled                    int64 // µs of a confirmed cancel
	maybeCancelled               bool
	moved                        int64 // µs at which a reschedule was asked for that was confirmed
	halted                       int64 // µs at which its producer heard that it is cancelled wherever it is
	maybeHalted                  bool
	wasHeld                      bool // when it was halted
	twice                        bool
	again                        bool  // it was taken a second time, when its dedup window was over
	accepted                     int64 // ms by the server's clock
	overHTTP                     bool  // a gateway took it, or was to
	tries                        int
	unsure                       bool // of a try nobody knows whether, and when, it was carried out
}

func promiseOf(records []record) promise {
	var p promise
	asked, changed, delay := int64(0), false, int64(0)
	for _, r := range records {
		switch r.verb {
		case verbTry:
			p.tries++
			if !p.tried {
				p.tried, p.first = true, r.at
			}
			delay, _ = strconv.ParseInt(r.word, 10, 64)
		case verbTaken:
			switch at := r.due - delay; {
			case !p.taken:
				p.heard, p.accepted = r.at, at
			case at-p.accepted >= dedupWindow.Milliseconds():
				p.again = true
			default:
				p.twice = true
			}
			if !p.taken && !changed { // an operator may have moved it before its producer heard that it was taken
				p.due = r.due
			}
			p.taken, p.overHTTP = true, r.by.role == roleHTTPProducer
		case verbDup:
			p.maybe = p.maybe || !p.taken // its own earlier try, whose reply was lost
		case verbMaybe:
			p.maybe, p.unsure = true, true
			if !p.taken {
				p.heard, p.overHTTP = r.at, r.by.role == roleHTTPProducer
			}
		case verbRefuse:
			p.refused = true
		case verbCancel, verbOver:
			switch r.word {
			case changeAsked, changeMaybe:
				p.maybeCancelled = true
			case changeOK:
				p.cancelled, p.maybeCancelled = r.at, false
			case changeNo:
				p.maybeCancelled = false
			}
		case verbHalt:
			switch r.word {
			case changeAsked, changeMaybe:
				p.maybeHalted = true
			case changeOK, changeRunning:
				p.halted, p.maybeHalted, p.wasHeld = r.at, false, r.word == changeRunning
			case changeNo:
				p.maybeHalted = false
			}
		case verbMove:
			switch r.word {
			case changeAsked:
				asked = r.at
			case changeOK:
				p.moved, p.due, changed = asked, r.due, true
			case changeMaybe:
				p.due, changed = 0, true
			}
		}
	}
	if asked > 0 && p.moved == 0 && !slices.ContainsFunc(records, func(r record) bool {
		return r.verb == verbMove &&
			r.word == changeNo
	}) {
		p.due = 0 // its process was killed before it heard
	}
	return p
}
