package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"math"
	"slices"
	"time"
)

// runs are the IDs and ordering keys with rows for which the last batch had no room. The search for rows may walk past
// many rows that wait for an earlier one. So the relay goes on with these IDs and keys for perSearch times the duration
// of the search. It does not search a long run again for each batch.
type runs struct {
	later    []*row        // their next rows
	searched time.Duration // how long the last search took
	since    time.Time     // when it ended
}

// perSearch is the time for which a relay goes on with rows that it knows, as a multiple of the duration of the last
// search.
const perSearch = 4

// search tells where the next search for rows begins. Rows that must wait may stand before rows that may be taken: they
// are behind an earlier row of their ID or ordering key, or another relay holds them. A search through all rows could
// take longer than a pass may. So one search looks at one window of each queue, and the next one goes on behind it,
// until all rows were looked at. If a search behind the first window finds a row, the next one begins with the first
// rows again.
type search struct {
	behind map[string]int64 // by queue: the rows up to this number were looked at; math.MaxInt64 = all rows
	onward bool             // the next search goes on behind these rows
	found  bool             // a row was found since behind was reset
	goesOn bool             // the next search may find a row, so the relay does not pause

	rest []window // of this search: windows that were not looked at yet, if there are more windows than rows in a batch
	seen []window // of this search: windows that were looked at
	took bool     // a row of them was taken
}

// A search looks at windowBatches times the rows of a full batch, but not at less than windowRows. The windows of all
// queues share this number.
const (
	windowBatches = 5
	windowRows    = 500
)

// window is a part of the rows of a queue.
type window struct {
	Queue  string `json:"queue"`
	Behind int64  `json:"behind"` // the number before its first row
	Until  int64  `json:"until"`  // the number of its last row; math.MaxInt64 = no row is left behind it
}

// note remembers that the rows of some windows were looked at. found tells whether one of these rows was taken.
func (s *search) note(windows []window, found bool) {
	if s.behind == nil {
		s.behind = map[string]int64{}
	}
	isMore := false
	for _, one := range windows {
		s.behind[one.Queue] = max(s.behind[one.Queue], one.Until)
		isMore = isMore || s.behind[one.Queue] < math.MaxInt64
	}
	s.found = s.found || found
	s.goesOn = isMore || s.found
	s.onward = isMore && !(s.onward && found)
	if !isMore {
		s.behind, s.found = nil, false
	}
}

// lockFirst locks and returns rows that are the first of their ID and of their ordering key.
func (r *Relay) lockFirst(ctx context.Context, tx *sql.Tx) ([]*row, error) {
	waiting := r.leftOut()
	later := slices.DeleteFunc(r.runs.later, func(one *row) bool { return slices.Contains(waiting, one.queue) })
	r.runs.later = nil
	if len(later) > 0 && time.Since(r.runs.since) < perSearch*r.runs.searched {
		rows, err := r.rowsOf(ctx, tx, false, r.cfg.Outbox.sql.resume, numbersOf(later))
		if err != nil || len(rows) > 0 {
			return rows, err
		}
	}
	begin := time.Now()
	rows, err := r.lockInWindows(ctx, tx, waiting)
	r.runs.searched, r.runs.since = time.Since(begin), time.Now()
	return rows, err
}

// lockInWindows looks at the next window of each queue that is not left out. If there are more windows than a batch may
// have rows, the next passes look at the other windows. SQLite has no windows.
func (r *Relay) lockInWindows(ctx context.Context, tx *sql.Tx, waiting []string) (rows []*row, err error) {
	leftOut, err := json.Marshal(waiting)
	if err != nil {
		return nil, err
	}
	if r.cfg.Outbox.sql.dialect == SQLite {
		return r.rowsOf(ctx, tx, false, r.cfg.Outbox.sql.take, string(leftOut), r.cfg.Batch)
	}
	s := &r.search
	s.rest = slices.DeleteFunc(s.rest, func(one window) bool { return slices.Contains(waiting, one.Queue) })
	if len(s.rest) == 0 && len(s.seen) == 0 {
		if s.rest, err = r.windows(ctx, tx, string(leftOut)); err != nil {
			return nil, err
		}
	}
	windows := s.rest[:min(len(s.rest), r.cfg.Batch)]
	if len(windows) > 0 {
		text, err := json.Marshal(windows)
		if err != nil {
			return nil, err
		}
		share := r.cfg.Batch / len(windows)
		rows, err = r.rowsOf(ctx, tx, false, r.cfg.Outbox.sql.take, string(text), share)
		if err != nil {
			return nil, err
		}
		shorten(windows, rows, share)
	}
	s.looked(len(windows), len(rows) > 0)
	return rows, nil
}

// looked remembers that the first n windows of the rest were looked at. found tells whether a row was taken.
func (s *search) looked(n int, found bool) {
	s.seen, s.rest, s.took = append(s.seen, s.rest[:n]...), s.rest[n:], s.took || found
	if s.goesOn = true; len(s.rest) == 0 {
		s.note(s.seen, s.took)
		s.seen, s.took = nil, false
	}
}

// shorten ends each window from which share rows were taken at the last of these rows, because the window may have more
// free rows. The rows of a queue are in the order of their numbers.
func shorten(windows []window, rows []*row, share int) {
	taken, last := map[string]int{}, map[string]int64{}
	for _, one := range rows {
		taken[one.queue]++
		last[one.queue] = one.seq
	}
	for i := range windows {
		if one := &windows[i]; taken[one.Queue] >= share {
			one.Until = last[one.Queue]
		}
	}
}

func (r *Relay) windows(ctx context.Context, tx *sql.Tx, leftOut string) (all []window, err error) {
	behind := []byte("{}")
	if r.search.onward {
		if behind, err = json.Marshal(r.search.behind); err != nil {
			return nil, err
		}
	}
	size := max(windowRows, windowBatches*r.cfg.Batch)
	found, err := tx.QueryContext(ctx, r.cfg.Outbox.sql.windows, leftOut, string(behind), size)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	for found.Next() {
		var one window
		if err := found.Scan(&one.Queue, &one.Behind, &one.Until); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, found.Err()
}
