package campaign

import (
	"slices"
	"strconv"
)

// promise is what the producer of a message, and operators, were told about the message. "Taken" means that a try was
// accepted. Every time that is not known is 0.
type promise struct {
	tried          bool  // the producer sent it
	taken          bool  // an answer said that a try was accepted
	maybe          bool  // a try may have been accepted, although no answer said so
	refused        bool  // an answer said that a try was refused
	first          int64 // Unix µs of the first try
	heard          int64 // Unix µs at which its producer first heard that it was taken, or gave up
	due            int64 // Unix ms: it must not be delivered earlier
	cancelled      int64 // Unix µs of a confirmed cancel, or replacement, of the scheduled message
	maybeCancelled bool  // a cancel, or replacement, was requested, and its result is unknown
	moved          int64 // Unix µs at which a confirmed reschedule was requested
	halted         int64 // Unix µs of a confirmed cancel in any state: also ready, or running (wasHeld)
	maybeHalted    bool  // a cancel in any state was requested, and its result is unknown
	wasHeld        bool  // a worker held it when it was halted
	twice          bool  // it was taken a second time within its dedup window: a fault
	again          bool  // it was taken a second time after its dedup window, as is allowed
	accepted       int64 // Unix ms by the server's clock
	overHTTP       bool  // sent through a gateway
	tries          int
	unsure         bool // the result of a try is unknown: it may have been executed, and at any time
}

// promiseOf returns the promise of a message from all records about the message, sorted by time.
func promiseOf(records []record) promise {
	var p promise
	moveAsked := int64(0) // Unix µs of the last request to move it
	changed := false      // due is decided by a move
	delay := int64(0)     // of the last try, in ms
	for _, r := range records {
		switch r.verb {
		case verbTry:
			p.tries++
			if !p.tried {
				p.tried, p.first = true, r.at
			}
			delay, _ = strconv.ParseInt(r.word, 10, 64) // the argument of a try
		case verbTaken:
			// The server computed the due time from the delay, so the difference is the time by its clock.
			switch accepted := r.due - delay; {
			case !p.taken:
				p.heard, p.accepted = r.at, accepted
			case accepted-p.accepted >= dedupWindow.Milliseconds():
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
		case verbCancel, verbReplace:
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
				moveAsked = r.at
			case changeOK:
				p.moved, p.due, changed = moveAsked, r.due, true
			case changeMaybe:
				p.due, changed = 0, true
			}
		}
	}
	moveRefused := slices.ContainsFunc(records, func(r record) bool { return r.verb == verbMove && r.word == changeNo })
	if moveAsked > 0 && p.moved == 0 && !moveRefused {
		// No answer says whether it was moved, for example because the process that asked was killed.
		p.due = 0
	}
	return p
}
