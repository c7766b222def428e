package servers

import (
	"log/slog"
	"strings"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/notify"
)

// readyAfter is when a service manager is told "ready" although Redis does not answer yet. A bridge that waits for
// Redis has not failed.
const readyAfter = 5 * time.Second

// tell tells the service manager the state of this process: once that it is ready or stops, each time that it is
// alive, and a status text when the text changes.
func (r *reporter) tell(stopping bool) {
	if r.manager == nil {
		return
	}
	var states []string
	once := func(state string) {
		if !r.toldOnce[state] {
			r.toldOnce[state] = true
			states = append(states, state)
		}
	}
	if r.manager.Watchdog() > 0 && r.alive() == nil {
		states = append(states, notify.Alive)
	}
	text := "stops"
	if !stopping {
		trouble := r.ready()
		text = "serves"
		if broken := r.broken(); broken != nil {
			text += "; " + strings.ReplaceAll(broken.Error(), "\n", "; ")
		}
		if trouble != nil {
			text = strings.ReplaceAll(trouble.Error(), "\n", "; ")
		}
		if trouble == nil || time.Since(r.began) >= readyAfter {
			once(notify.Ready)
		}
	} else {
		once(notify.Stopping)
	}
	if text != r.status {
		r.status = text
		states = append(states, notify.Status(text))
	}
	err := r.manager.Tell(states...)
	if err != nil && !r.notifyFailed {
		r.log.Warn("cannot tell the service manager how this process is", slog.Any("error", err))
	}
	r.notifyFailed = err != nil
}
