package campaign

import (
	"slices"
	"strconv"
)

// promise is the result of a message for its producer.
type promise struct {
	tried, taken, maybe, refused bool
	first                        int64 // Unix µs of the first try
	heard                        int64 // Unix µs at which its producer first heard that it was taken, or gave up
	due                          int64 // Unix ms: never before this; 0 = unknown
	cancelled                    int64 // Unix µs of a confirmed cancel
	maybeCancelled               bool
	moved                        int64 // Unix µs at which a confirmed reschedule was requested
	halted                       int64 // Unix µs at which its producer heard of its cancel in any state
	maybeHalted                  bool
	wasHeld                      bool // a worker held it when it was halted
	twice                        bool
	again                        bool  // it was taken a second time, after its dedup window
	accepted                     int64 // Unix ms by the server's clock
	overHTTP                     bool  // sent through a gateway
	tries                        int
	unsure                       bool // it is unknown whether, and when, a try was executed
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
		p.due = 0 // the mover was killed before it heard the result
	}
	return p
}
