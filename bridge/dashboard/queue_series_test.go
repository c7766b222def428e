package dashboard

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// The chart must have the rates of the last looks, and never more than its limit. An earlier series must not change,
// because other viewers may still read it.
func TestSeriesOfRates(t *testing.T) {
	t.Parallel()
	rate := func(v float64) *float64 { return &v }
	var s queueSeries
	s = s.with(admin.QueueSample{}, time.Unix(1, 0), time.Second) // the first look has no rates
	redistest.Want(t, "a chart without points", s.Chart() == nil, true)
	now := admin.QueueSample{PerSecond: &admin.QueueRates{In: rate(1.26), Out: rate(math.NaN())}}
	s = s.with(now, time.Unix(2, 0), time.Second)
	redistest.Want(t, "a chart of one point", s.Chart() == nil, true)
	first := s
	last := admin.QueueSample{PerSecond: &admin.QueueRates{In: rate(-3), Done: rate(2.6)}}
	c := s.with(last, time.Unix(4, 0), 2*time.Second).Chart()
	redistest.Want(t, "highest", c.Highest, "2.6")
	redistest.Want(t, "scheduled", fmt.Sprint(c.Lines[0]), "{scheduled in -3.0 1.3 0.0,50.0 1000.0,98.0}")
	redistest.Want(t, "ready, which is not known", fmt.Sprint(c.Lines[1]), "{ready out – – }")
	redistest.Want(t, "done", fmt.Sprint(c.Lines[2]), "{done done 2.6 2.6 1000.0,2.0}")
	for i := range 2 * seriesPoints {
		s = s.with(now, time.Unix(int64(i+3), 0), time.Second)
	}
	redistest.Want(t, "points", len(s.At), seriesPoints)
	redistest.Want(t, "last point", s.At[seriesPoints-1], 2*seriesPoints+2)
	redistest.Want(t, "the earlier series", first.At[0], 2)
}

// The rates of the tiles must be means of half a minute, so that a slow queue does not seem to stand still.
func TestRatesAreMeansOfHalfAMinute(t *testing.T) {
	t.Parallel()
	redistest.Want(t, "no look", queueState{}.Rates().Done, "–")
	s := queueSeries{At: []int64{100, 200, 210, 220, 229}, Span: []float64{10, 10, 10, 10, 10},
		In:   []float64{900, 1, 1, 1, 3},
		Out:  []float64{900, math.NaN(), math.NaN(), math.NaN(), math.NaN()},
		Done: []float64{900, 0, 3, 0, 3}}
	rates := queueState{Series: s}.Rates()
	redistest.Want(t, "rates", fmt.Sprint(rates.In, " ", rates.Out, " ", rates.Done), "1.5 – 1.5")
	// 12 messages in 2 seconds, and none in the 10 seconds after them.
	s = queueSeries{At: []int64{2, 12}, Span: []float64{2, 10}, In: []float64{6, 0}, Out: []float64{6, 0},
		Done: []float64{6, 0}}
	redistest.Want(t, "mean of unequal spans", queueState{Series: s}.Rates().In, "1.0")
}
