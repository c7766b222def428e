package deadletter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// DefaultPage is the number of letters of a Page whose filter has no Limit.
const DefaultPage = 100

// When its time is up, a page or a step of a Survey still goes on to 100 letters or 1 MiB, whichever comes first.
// Otherwise a slow server would make every page empty.
const (
	leastLetters = 100
	leastBytes   = 1 << 20
)

// budget is how much a page or a step may still read.
type budget struct {
	end            time.Time
	letters, bytes int // read so far
}

// read counts a letter.
func (b *budget) read(l Letter) {
	b.letters++
	b.bytes += len(l.Payload)
}

// isUsedUp reports whether no further letter may be read.
func (b *budget) isUsedUp() bool {
	return (b.letters >= leastLetters || b.bytes >= leastBytes) && !time.Now().Before(b.end)
}

// lineBytes is how many bytes of a payload a Line keeps.
const lineBytes = 256

// Line is a letter of a Page. Its Payload is only the beginning of the payload.
type Line struct {
	Letter
	PayloadBytes int // of the whole payload
}

// PayloadLost reports whether the letter has no payload, because the body was lost or could not be kept.
func (l Line) PayloadLost() bool { return l.Payload == nil }

// Page is a part of a listing.
type Page struct {
	Lines  []Line
	Looked int // letters read, with those that do not pass the filter
	// Next, as Filter.After, gives the page after this one; "" = there is none.
	Next string
}

// Page returns the next letters that pass the filter, at most Limit (DefaultPage if that is 0), in the order of List.
// It reads for about the given time, or 100 letters if that takes longer, so a page may have fewer letters, or none,
// although further ones pass. Letters that are added meanwhile do not change the pages after the present one.
func (d *DeadLetters) Page(ctx context.Context, queue string, f Filter, most time.Duration) (Page, error) {
	var p Page
	err := errors.Join(d.check(queue), f.validate())
	if err == nil {
		err = d.page(ctx, queue, f, budget{end: time.Now().Add(most)}, &p)
	}
	if err != nil {
		return p, fmt.Errorf("list dead letters of %s: %w", queue, err)
	}
	return p, nil
}

func (d *DeadLetters) page(ctx context.Context, queue string, f Filter, b budget, p *Page) error {
	if f.Limit == 0 {
		f.Limit = DefaultPage
	}
	last := "" // the letter that was read last
	for stored, err := range d.Stored(ctx, queue, f) {
		if err != nil {
			return err
		}
		if len(p.Lines) == f.Limit || b.isUsedUp() { // this letter is for the next page
			p.Next = last
			return nil
		}
		letter := letterOf(stored.Partition, stored.Entry)
		last = letter.Letter
		b.read(letter)
		p.Looked++
		if !f.matches(letter) {
			continue
		}
		line := Line{Letter: letter, PayloadBytes: len(letter.Payload)}
		if len(line.Payload) > lineBytes {
			line.Payload = bytes.Clone(line.Payload[:lineBytes])
		}
		p.Lines = append(p.Lines, line)
	}
	return nil
}
