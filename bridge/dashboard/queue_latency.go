package dashboard

import (
	"errors"

	"github.com/duestream/duestream/bridge/admin"
)

// This file holds the tab of waits: how long messages wait between their changes of state.

// latencyView is the data of the tab.
type latencyView struct {
	NoHistory bool // the queue keeps no history, so nothing is known
	admin.Latencies
	Waits []waits
}

// waits is a distribution with its rows.
type waits struct {
	Title, Hint string
	admin.Distribution
	Rows []waitRow
}

// waitRow is a bucket of a distribution.
type waitRow struct {
	Above, Most admin.Millis // a wait is longer than Above, and at most Most; Most 0 = without a bound
	N           int
	Percent     int // of the fullest bucket
}

func showLatency(q *request, _ queueState) (any, error) {
	l, err := q.op.Latencies(q.ctx, q.queue())
	if errors.Is(err, admin.ErrNoHistory) {
		return latencyView{NoHistory: true}, nil
	}
	if err != nil {
		return nil, err
	}
	v := latencyView{Latencies: l}
	v.add("From due to ready", "How late messages and retries became ready.", l.Late)
	for _, g := range l.Groups {
		done := "Until the message was acknowledged."
		if g.Start.Count == 0 {
			done += " No start of a delivery is recorded: acknowledgements do not tell it."
		} else {
			v.add("From ready to start, group "+visible(g.Name),
				"Of deliveries that failed, were snoozed or were given back: acknowledgements do not tell the start.",
				g.Start)
		}
		v.add("From ready to done, group "+visible(g.Name), done, g.Done)
	}
	return v, nil
}

// add adds a distribution, with its rows from the first bucket with waits to the last one.
func (v *latencyView) add(title, hint string, d admin.Distribution) {
	w := waits{Title: title, Hint: hint, Distribution: d}
	fullest := 0
	for _, n := range d.Buckets {
		fullest = max(fullest, n)
	}
	empty := 0 // buckets since the last one with waits
	for i, n := range d.Buckets {
		row := waitRow{N: n, Percent: n * 100 / max(fullest, 1)}
		if i > 0 {
			row.Above = v.Bounds[i-1]
		}
		if i < len(v.Bounds) {
			row.Most = v.Bounds[i]
		}
		if n > 0 {
			empty = 0
			row.Percent = max(1, row.Percent)
		} else {
			empty++
		}
		if n > 0 || len(w.Rows) > 0 {
			w.Rows = append(w.Rows, row)
		}
	}
	w.Rows = w.Rows[:max(0, len(w.Rows)-empty)]
	v.Waits = append(v.Waits, w)
}
