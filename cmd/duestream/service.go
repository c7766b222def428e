package main

import (
	"log/slog"
	"strings"
	"time"

	"github.com/duestream/duestream/cmd/duestream/internal/notify"
)

// patient is how long a service manager that waits for us to be ready waits when Redis is away: a bridge waits for it, and is
// no failure.
const patient = 5 * time.Second

// tell tells the service manager how this process is: once that it is ready, each time that it lives, and in words how it does
// when that changes.
func (r *reporter) tell(stopping bool) {
	if r.manager == nil {
		return
	}
	var states []string
	once := func(state string) {
		if !r.told[state] {
			r.told[state] = true
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
		if trouble == nil || time.Since(r.began) >= patient {
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
	if err != nil && !r.deaf {
		r.log.Warn("cannot tell the service manager how this process is", slog.Any("error", err))
	}
	r.deaf = err != nil
}
