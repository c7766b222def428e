package loop

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/duestream/duestream/integration/queuetest"
	"github.com/duestream/duestream/integration/redistest"
)

// Within a window, only the first floodLines log lines with the same message are written. When the window ends, one
// line says how many were left out. Before Floods, a thousand queue messages that failed within a second wrote a
// thousand lines.
func TestFloodsAreSampledAndCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log queuetest.LogBook
		var f Floods
		write := func(n int, text string) {
			for range n {
				f.Log(log.Logger(), slog.LevelWarn, text, slog.String("id", "a"))
			}
		}
		write(1000, "dead-lettered")
		write(3, "handler panicked")
		redistest.Want(t, "lines at once", log.Count("id=a"), floodLines+3)
		time.Sleep(floodWindow - time.Millisecond)
		redistest.Want(t, "before the window ends", log.Count("left_out"), 0)
		time.Sleep(time.Second)
		synctest.Wait()
		redistest.Want(t, "at the window's end", log.Count("level=WARN msg=dead-lettered left_out=990 within=10s"), 1)
		redistest.Want(t, "lines that count: only the first message had lines left out", log.Count("left_out"), 1)
		write(floodLines+1, "dead-lettered")
		redistest.Want(t, "in the next window", log.Count("id=a"), 2*floodLines+3)
		f.Close()
		redistest.Want(t, "when it is closed", log.Count("left_out=1 within=0s"), 1)
		time.Sleep(time.Hour)
		redistest.Want(t, "no window is counted twice", log.Count("left_out"), 2)
		quiet := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		var quietFloods Floods
		for range 1000 {
			quietFloods.Log(quiet, slog.LevelWarn, "nobody reads this")
		}
		quietFloods.Close()
		redistest.Want(t, "below the level", log.Count("nobody reads this"), 0)
	})
}
