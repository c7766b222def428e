package inspect

import (
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Flow is the release limits of a queue (rate and ready limit, in each partition), and whether its workers are paused.
type Flow struct {
	Rate        lua.Rate `json:"rate,omitempty"`
	ReadyLimit  int      `json:"ready_limit,omitempty"`
	HeldWorkers bool     `json:"held_workers,omitempty"`
}

// Limited reports whether due messages may have to wait.
func (f Flow) Limited() bool { return f.Rate != "" || f.ReadyLimit > 0 }

// FlowOf returns the Flow by a queue's settings.
func FlowOf(settings map[string]string) Flow {
	policies, _ := stream.ResolveAll([]string{""}, settings, nil)
	p := policies[""]
	return Flow{p.Rate, p.ReadyLimit, p.HeldWorkers}
}
