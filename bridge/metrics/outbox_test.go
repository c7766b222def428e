package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/duestream/duestream/bridge/metrics"
	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/internal/observe"
)

// The counts of the relays of one table are added up, also after a relay has ended, and the table is read once. The
// gauges of a table that cannot be read are absent.
func TestOutboxIsShown(t *testing.T) {
	t.Parallel()
	m := redistest.Must(metrics.New(metrics.Config{}))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	var away error
	reads := 0
	view := observe.RelayView{
		Table: "shop.outbox",
		Rows: func(context.Context) (observe.RelayRows, error) {
			reads++
			return observe.RelayRows{Waiting: 7, Failed: 2, Oldest: 1500 * time.Millisecond}, away
		},
		Counts: func() observe.RelayCounts {
			return observe.RelayCounts{Scheduled: 1, Cancelled: 2, Duplicates: 3, TooLate: 4, Refused: 5, PutOff: 6}
		},
	}
	want := func(values ...string) {
		t.Helper()
		var got []string
		for _, f := range redistest.Must(registry.Gather()) {
			name, ok := strings.CutPrefix(f.GetName(), "duestream_outbox_")
			if !ok {
				continue
			}
			for _, one := range f.GetMetric() {
				var labels []string
				for _, label := range one.GetLabel() {
					labels = append(labels, label.GetValue())
				}
				value := one.GetCounter().GetValue() + one.GetGauge().GetValue()
				got = append(got, fmt.Sprintf("%s%v=%v", name, labels, value))
			}
		}
		slices.Sort(got)
		redistest.Want(t, "metrics", strings.Join(got, ", "), strings.Join(values, ", "))
	}
	want()
	first, second := m.RelayStarted(view), m.RelayStarted(view)
	first()
	want("failed_rows[shop.outbox]=2", "handed_over_total[cancelled shop.outbox]=4",
		"handed_over_total[duplicate shop.outbox]=6", "handed_over_total[scheduled shop.outbox]=2",
		"handed_over_total[too_late shop.outbox]=8", "oldest_row_seconds[shop.outbox]=1.5",
		"put_off_total[shop.outbox]=12", "refused_total[shop.outbox]=10", "waiting_rows[shop.outbox]=7")
	redistest.Want(t, "reads", reads, 1)
	problems := redistest.Must(testutil.GatherAndLint(registry))
	redistest.Want(t, "problems", fmt.Sprint(problems), "[]")
	away = errors.New("away")
	m.RelayStarted(view)
	want("handed_over_total[cancelled shop.outbox]=6", "handed_over_total[duplicate shop.outbox]=9",
		"handed_over_total[scheduled shop.outbox]=3", "handed_over_total[too_late shop.outbox]=12",
		"put_off_total[shop.outbox]=18", "refused_total[shop.outbox]=15")
	second()
}
