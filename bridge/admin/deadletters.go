package admin

import (
	"github.com/duestream/duestream/internal/view"
	"github.com/duestream/duestream/stream/deadletter"
)

// LetterGroup counts the dead letters of one group with one reason and one error: see [deadletter.LetterGroup].
type LetterGroup = deadletter.LetterGroup

// LetterSurvey groups the newest dead letters in steps: see [deadletter.Survey].
type LetterSurvey = deadletter.Survey

// LetterSummary is the result of a LetterSurvey so far: see [deadletter.Summary].
type LetterSummary = deadletter.Summary

// TrendHours is the number of hours of a LetterSurvey's trend.
const TrendHours = deadletter.TrendHours

// LetterPage is a part of a listing of dead letters: see [deadletter.Page].
type LetterPage = deadletter.Page

// LetterLine is a dead letter of a LetterPage: see [deadletter.Line].
type LetterLine = deadletter.Line

// DeadLetters reads, redrives and purges the dead letters of queues: see [deadletter.DeadLetters].
type DeadLetters = deadletter.DeadLetters

// DeadLetters returns a handle on the dead letters of the prefix. Redis is not touched.
func (a *Admin) DeadLetters() *DeadLetters {
	return deadletter.New(a.redis.Client, a.prefix).Observed(a.observer)
}

// Letter is a dead letter, which exists until it is redriven or purged: see [deadletter.Letter].
type Letter = deadletter.Letter

// LetterFilter selects dead letters; the zero value selects all of a queue: see [deadletter.Filter].
type LetterFilter = deadletter.Filter

// RedriveOptions control a redrive; the zero value is valid: see [deadletter.RedriveOptions].
type RedriveOptions = deadletter.RedriveOptions

// RedriveResult counts the results of a redrive: see [deadletter.RedriveResult].
type RedriveResult = deadletter.RedriveResult

// Payload is the payload of a message; in JSON a string or an object {"base64": …}: see [view.Payload].
type Payload = view.Payload
