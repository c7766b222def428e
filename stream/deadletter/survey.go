package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/duestream/duestream/internal/view"
)

// TrendHours is the number of hours of a Survey's trend.
const TrendHours = 24

// surveyErrors is the number of errors that a Survey distinguishes. Further ones are counted as OtherErrors.
const surveyErrors = 1000

// Survey groups the letters of a queue like Summarize, but newest first and in steps: the caller decides how long each
// step reads, and may use the summary of what was read so far. It does not see letters added after its first step. It
// is not safe for concurrent use.
type Survey struct {
	d       *DeadLetters
	queue   string
	filter  Filter // After is the last letter that was read
	tally   *tally
	summary Summary // without Groups
	begun   bool
}

// Summary is the result of a Survey so far.
type Summary struct {
	Groups   []LetterGroup // the most frequent first
	Letters  int           // letters in the groups
	Looked   int           // letters read, with those that do not pass the filter
	Total    int           // letters of the queue when the survey began
	Complete bool          // all letters were read
	Oldest   time.Time     // when the last letter that was read died; zero = none was read

	// TrendEnd is the end of the last hour of LetterGroup.Hourly. It is the beginning of the survey, or the time of the
	// newest letter if that is older than TrendHours.
	TrendEnd time.Time
}

// Survey returns a survey of the letters that pass the filter. Its Newest and Limit are ignored. Redis is not touched.
func (d *DeadLetters) Survey(queue string, f Filter) *Survey {
	f.Newest, f.Limit = true, 0
	return &Survey{d: d, queue: queue, filter: f, tally: newTally(surveyErrors)}
}

// Read reads further letters for about the time of the step, or 100 letters if that takes longer. Each round trip reads
// about 256 KiB. After an error the survey keeps what it has read, and Read may be repeated.
func (s *Survey) Read(ctx context.Context, step time.Duration) error {
	if s.summary.Complete {
		return nil
	}
	if err := s.read(ctx, step); err != nil {
		return fmt.Errorf("survey dead letters of %s: %w", s.queue, err)
	}
	return nil
}

func (s *Survey) read(ctx context.Context, step time.Duration) error {
	if err := errors.Join(s.d.check(s.queue), s.filter.validate()); err != nil {
		return err
	}
	if !s.begun {
		total, err := s.d.length(ctx, s.queue)
		if err != nil {
			return err
		}
		if s.summary.TrendEnd, err = view.ServerTime(ctx, s.d.client); err != nil {
			return err
		}
		s.summary.Total, s.begun = total, true
	}
	b := budget{end: time.Now().Add(step)}
	for stored, err := range s.d.Stored(ctx, s.queue, s.filter) {
		if err != nil {
			return err
		}
		letter := letterOf(stored.Partition, stored.Entry)
		s.filter.After = letter.Letter
		s.add(letter)
		if b.read(letter); b.isUsedUp() {
			return nil
		}
	}
	s.summary.Complete = true
	return nil
}

func (s *Survey) add(l Letter) {
	if s.summary.Looked == 0 && !l.Dead.IsZero() && s.summary.TrendEnd.Sub(l.Dead) >= TrendHours*time.Hour {
		s.summary.TrendEnd = l.Dead
	}
	s.summary.Looked++
	s.summary.Oldest = l.Dead
	if !s.filter.matches(l) {
		return
	}
	s.summary.Letters++
	g := s.tally.add(l)
	if g.Hourly == nil {
		g.Hourly = make([]int, TrendHours)
	}
	if age := s.summary.TrendEnd.Sub(l.Dead); age >= 0 && age < TrendHours*time.Hour {
		g.Hourly[TrendHours-1-int(age/time.Hour)]++
	}
}

// Summary returns the groups of the letters that were read so far.
func (s *Survey) Summary() Summary {
	now := s.summary
	now.Groups = s.tally.groups()
	return now
}
