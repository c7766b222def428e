package dashboard

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// This file holds the page that lists dead letters, and the page of one.

// Bounds of a page of letters.
const (
	lettersOnPage = 50
	lettersTime   = 700 * time.Millisecond // of looking for letters that pass the filter
	errorInList   = 300                    // bytes of an error's first line in a list
)

// lettersView is the data of the page that lists letters.
type lettersView struct {
	Queue   string
	Filter  admin.LetterFilter
	Words   string // the filter in words
	Older   string // as it was typed
	Newer   string
	Reasons []string
	Page    admin.LetterPage
	Next    string // address of the next page; "" = none
	First   string // address of the first page; "" = this is the first page
	Redrive string // addresses of the changes of all letters that pass the filter
	Purge   string
	Total   int  // letters of the queue
	IsWrong bool // the filter has a fault
}

func showLetters(q *request) (any, error) {
	if err := lua.CheckQueue(q.queue()); err != nil {
		return nil, err
	}
	if err := q.op.CheckKnown(q.ctx, q.queue()); err != nil {
		return nil, err
	}
	f, err := q.letterFilter()
	letters := q.op.DeadLetters()
	v := lettersView{Queue: q.queue(), Filter: f, Words: filterWords(f), Reasons: admin.Reasons(),
		Older: q.query.Get(paramOlder), Newer: q.query.Get(paramNewer),
		Redrive: lettersAddress("dead-redrive", q.queue(), f), Purge: lettersAddress("dead-purge", q.queue(), f)}
	if err != nil { // the page shows the form with its faults, and no letters
		q.problem, v.IsWrong = err, true
		return v, nil
	}
	if v.Total, err = letters.Count(q.ctx, q.queue(), admin.LetterFilter{}); err != nil {
		return nil, err
	}
	first := lettersAddress("dead-letters", q.queue(), f)
	f.Limit, f.After = lettersOnPage, q.query.Get("after")
	if f.After != "" {
		v.First = first
	}
	err = q.readPayloads(func() (err error) {
		v.Page, err = letters.Page(q.ctx, q.queue(), f, lettersTime)
		return err
	})
	if err != nil {
		return nil, err
	}
	if v.Page.Next != "" {
		v.Next = first + "&after=" + url.QueryEscape(v.Page.Next)
	}
	return v, nil
}

// Title returns the title of the page.
func (v lettersView) Title() string { return "Dead letters of " + v.Queue }

// firstLine returns the first line of a text that a producer wrote, for a table.
func firstLine(text string) string {
	line, _, more := strings.Cut(strings.TrimSpace(text), "\n")
	if line = visible(cut(line, errorInList)); more && !strings.HasSuffix(line, "…") {
		line += " …"
	}
	return line
}

// letterView is the data of the page of a letter.
type letterView struct {
	Queue   string
	Letter  admin.Letter
	Payload payloadView
	Lost    bool   // the letter has no payload
	Page    string // address of this page
	File    string // address of the payload
	Like    string // address of the letters with the same group, reason and error
	Groups  []string
}

// Title returns the title of the page.
func (v letterView) Title() string { return "Dead letter " + visible(cut(v.Letter.ID, 60)) }

func showLetter(q *request) (any, error) {
	if err := lua.CheckQueue(q.queue()); err != nil {
		return nil, err
	}
	leave, err := q.takePayload()
	if err != nil {
		return nil, err
	}
	defer leave()
	l, err := q.letter(q.query.Get("letter"))
	if err != nil {
		return nil, err
	}
	v := letterView{Queue: q.queue(), Letter: l, Lost: l.Payload == nil}
	err = q.work(len(l.Payload), func() { v.Payload = viewPayload(l.Payload, q.query.Get("view")) })
	if err != nil {
		return nil, err
	}
	v.Letter.Payload = nil // the view has its beginning, and a page that waits to be rendered must hold little
	name := url.Values{"queue": {v.Queue}, "letter": {l.Letter}}.Encode()
	v.Page, v.File = "dead-letter?"+name, "dead-payload?"+name
	v.Like = lettersAddress("dead-letters", q.queue(), l.Like())
	v.Groups, err = q.groupsOf(q.queue())
	return v, err
}

// serveLetterPayload answers with the payload of a letter.
func serveLetterPayload(q *request) error {
	defer q.limit()()
	if err := lua.CheckQueue(q.queue()); err != nil {
		return err
	}
	var l admin.Letter
	err := q.readPayloads(func() (err error) {
		l, err = q.letter(q.query.Get("letter"))
		return err
	})
	switch {
	case err != nil:
		return err
	case l.Payload == nil: // an empty file would look like an empty payload
		return fmt.Errorf("payload of dead letter %s: %w: it is lost, or could not be kept", l.Letter, admin.ErrNotFound)
	}
	return q.writePayload(l.Payload, l.ID+".payload")
}

// letter returns a letter by its name, with its payload. The caller must hold a turn of takePayload.
func (q *request) letter(name string) (admin.Letter, error) {
	l, err := q.op.DeadLetters().Show(q.ctx, q.queue(), name)
	if errors.Is(err, admin.ErrNotFound) {
		err = fmt.Errorf("%w: somebody has redriven or purged it, or it never existed", err)
	}
	return l, err
}
