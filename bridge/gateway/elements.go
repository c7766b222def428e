package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/lua"
)

// elements counts the elements of an array, or the members of an object, in the body of a request. A key that occurs
// again counts on: JSON allows a key twice, and the decoder joins two objects.
type elements struct {
	key    string // in the object around it
	field  string // in the answer, if there are too many
	most   int    // 0 = any number
	rule   string // for most
	inside []*elements

	n int
}

// newElements returns the counts of a body of a search or an action. An element of three bytes, such as {} and a comma,
// takes hundreds of bytes after it is decoded, so the elements are counted before.
func newElements() *elements {
	const inHits = "must be at most %d in all hits together"
	return &elements{inside: []*elements{
		{key: "hits", field: "hits", most: mostChosen, rule: chosenRule, inside: []*elements{
			{key: "groups", field: "groups", most: mostInHits, rule: inHits},
			{key: "headers", field: "headers", most: mostInHits, rule: inHits},
		}},
		{key: "filter", inside: []*elements{
			{key: "queues", field: "queues", most: mostQueues, rule: "must be at most %d"},
			{key: "states", field: "states", most: len(admin.States()), rule: "must be at most %d"},
			{key: "ids", field: "ids", most: admin.MaxSearchIDs, rule: "must be at most %d"},
			{key: "headers", field: "headers", most: lua.MaxHeaders, rule: "must be at most %d"},
		}},
	}}
}

// newMessageElements returns the counts of a message or a recurrence.
func newMessageElements() *elements {
	return &elements{inside: []*elements{
		{key: "headers", field: "headers", most: lua.MaxHeaders, rule: "must be at most %d"},
		{key: "retry_delays_ms", field: "retry_delays_ms", most: lua.MaxDelays, rule: "must be at most %d numbers"},
	}}
}

// checkElements returns an error that names each field of a body with too many elements. The body must be valid JSON.
// checkElements allocates no memory for an element, unless its key has an escape.
func checkElements(body []byte, counts *elements) error {
	w := walker{text: body}
	w.value(counts)
	return counts.check()
}

func (e *elements) check() error {
	var errs []error
	if e.most > 0 && e.n > e.most {
		errs = append(errs, lua.Invalid(e.field, strconv.Itoa(e.n), e.rule, e.most))
	}
	for _, one := range e.inside {
		errs = append(errs, one.check())
	}
	return errors.Join(errs...)
}

// member returns the counts for a key of the object, or nil. The key has its quotes. Like the decoder, member takes
// capitals for small letters.
func (e *elements) member(key []byte) *elements {
	if e == nil || len(e.inside) == 0 {
		return nil
	}
	const longest = 64 // bytes of a known key, in quotes, with each letter as \u0061
	if len(key) > longest {
		return nil
	}
	name := key[1 : len(key)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		var unescaped string
		if json.Unmarshal(key, &unescaped) != nil {
			return nil
		}
		name = []byte(unescaped)
	}
	for _, one := range e.inside {
		if bytes.EqualFold(name, []byte(one.key)) {
			return one
		}
	}
	return nil
}

// walker walks over a text of valid JSON, which is nested at most 10,000 deep.
type walker struct {
	text []byte
	at   int
}

// next steps over white space, and returns the byte after it.
func (w *walker) next() byte {
	for bytes.IndexByte([]byte(" \t\r\n"), w.text[w.at]) >= 0 {
		w.at++
	}
	return w.text[w.at]
}

// value steps over a value. It adds the elements of an array or an object to counts, unless counts is nil.
func (w *walker) value(counts *elements) {
	switch w.next() {
	case '{':
		w.object(counts)
	case '[':
		w.array(counts)
	case '"':
		w.quoted()
	default: // a number, true, false or null
		for w.at < len(w.text) && bytes.IndexByte([]byte(",]} \t\r\n"), w.text[w.at]) < 0 {
			w.at++
		}
	}
}

func (w *walker) object(counts *elements) {
	for w.at++; w.next() != '}'; {
		if w.next() == ',' {
			w.at++
			w.next()
		}
		member := counts.member(w.quoted())
		w.next()
		w.at++ // the colon
		counts.add()
		w.value(member)
	}
	w.at++
}

// array adds the elements to counts. The members of an element that is an object have the counts inside it.
func (w *walker) array(counts *elements) {
	var element *elements
	if counts != nil && len(counts.inside) > 0 {
		element = &elements{inside: counts.inside}
	}
	for w.at++; w.next() != ']'; {
		if w.next() == ',' {
			w.at++
		}
		counts.add()
		w.value(element)
	}
	w.at++
}

func (e *elements) add() {
	if e != nil {
		e.n++
	}
}

// quoted steps over a string, and returns it with its quotes.
func (w *walker) quoted() []byte {
	begin := w.at
	for w.at++; w.text[w.at] != '"'; w.at++ {
		if w.text[w.at] == '\\' {
			w.at++
		}
	}
	w.at++
	return w.text[begin:w.at]
}
