package dashboard

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/duestream/duestream/bridge/admin"
)

// This file keeps the rates of a queue while somebody watches it, for the chart of the overview.

// seriesPoints is the greatest number of points of a chart.
const seriesPoints = 180

// queueSeries are the rates of a queue at the last looks, oldest first. It is not changed after it was made.
type queueSeries struct {
	At            []int64   // Unix seconds
	Span          []float64 // seconds since the look before, over which the rates are means
	In, Out, Done []float64
}

// with returns the series with the rates of another look, a span after the look before it. A look without rates adds
// nothing.
func (s queueSeries) with(now admin.QueueSample, at time.Time, span time.Duration) queueSeries {
	if now.PerSecond == nil || now.Err != nil {
		return s
	}
	return queueSeries{
		At: lastOf(s.At, at.Unix()), Span: lastOf(s.Span, span.Seconds()), In: lastOf(s.In, roundRate(now.PerSecond.In)),
		Out: lastOf(s.Out, roundRate(now.PerSecond.Out)), Done: lastOf(s.Done, roundRate(now.PerSecond.Done)),
	}
}

// lastOf returns a copy of the last values, with another one at its end.
func lastOf[T any](all []T, next T) []T {
	kept := all[max(0, len(all)-seriesPoints+1):]
	return append(append(make([]T, 0, len(kept)+1), kept...), next)
}

// roundRate returns a rate with one decimal; NaN if it is unknown. Cancelled messages count as negative arrivals.
func roundRate(rate *float64) float64 {
	if rate == nil || math.IsInf(*rate, 0) {
		return math.NaN()
	}
	return math.Round(*rate*10) / 10
}

// highest returns the greatest known rate; NaN if none is known.
func highest(rates []float64) float64 {
	most := math.NaN()
	for _, v := range rates {
		if math.IsNaN(most) || v > most {
			most = v
		}
	}
	return most
}

// meanRates are the rates of the last half minute.
type meanRates struct{ In, Out, Done, Title string }

// meanFor is the time over which the mean of rates is taken. A single look sees too few messages of a slow queue.
const meanFor = 30 * time.Second

// Rates returns the mean rates of the last half minute, as text.
func (s queueState) Rates() meanRates {
	at := s.Series.At
	if len(at) == 0 {
		return meanRates{"–", "–", "–", "Known after the second look, in about two seconds"}
	}
	first := len(at) - 1
	for first > 0 && at[len(at)-1]-at[first-1] < int64(meanFor/time.Second) {
		first--
	}
	mean := func(all []float64) string { // a rate counts by its time: the looks at a quiet queue are far apart
		sum, known := 0.0, 0.0
		for i, v := range all[first:] {
			if span := s.Series.Span[first+i]; !math.IsNaN(v) {
				sum, known = sum+v*span, known+span
			}
		}
		return rateText(sum / known) // NaN if none is known
	}
	return meanRates{mean(s.Series.In), mean(s.Series.Out), mean(s.Series.Done), "Mean of the last half minute"}
}

// rateChart is the chart of a series.
type rateChart struct {
	From, Until time.Time
	Highest     string // value at the top
	Lines       []rateLine
}

// rateLine is a line of the chart, in a box of 1000 to 100.
type rateLine struct {
	Title, Class, Now, Highest string
	Points                     string // for an SVG polyline
}

// Chart returns the chart; nil while there are less than two points in time.
func (s queueSeries) Chart() *rateChart {
	n := len(s.At)
	if n < 2 || s.At[n-1] == s.At[0] {
		return nil
	}
	top := highest([]float64{1, highest(s.In), highest(s.Out), highest(s.Done)})
	c := &rateChart{From: time.Unix(s.At[0], 0), Until: time.Unix(s.At[n-1], 0), Highest: rateText(top)}
	for _, line := range []struct {
		title, class string
		values       []float64
	}{{"scheduled", "in", s.In}, {"ready", "out", s.Out}, {"done", "done", s.Done}} {
		var points []string
		for i, v := range line.values {
			if !math.IsNaN(v) {
				x := 1000 * float64(s.At[i]-s.At[0]) / float64(s.At[n-1]-s.At[0])
				points = append(points, fmt.Sprintf("%.1f,%.1f", x, 98-96*max(0, v)/top))
			}
		}
		c.Lines = append(c.Lines, rateLine{line.title, line.class, rateText(line.values[n-1]),
			rateText(highest(line.values)), strings.Join(points, " ")})
	}
	return c
}

func rateText(v float64) string { return perSecond(&v) }
