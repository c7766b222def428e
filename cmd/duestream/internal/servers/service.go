package servers

import (
	"log/slog"
	"strings"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/notify"
)

// readyAfter is the time after which a service manager is told "ready" even if Redis does not answer yet, because a
// bridge that waits for Redis has not failed.
const readyAfter = 5 * time.Second

// tell tells the service manager the state of this process. It tells "ready" and "stopping" once, "alive" each time,
// and a status text when the text changes.
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
