package sizes

import (
	"github.com/duestream/duestream/internal/policy"
	"github.com/duestream/duestream/lua"
)

// Flow holds the release limits of a queue, and whether its workers are paused. Each limit is for one partition.
type Flow struct {
	Rate        lua.Rate `json:"rate,omitempty"`
	ReadyLimit  int      `json:"ready_limit,omitempty"`
	HeldWorkers bool     `json:"held_workers,omitempty"`
}

// Limited reports whether due messages may have to wait.
func (f Flow) Limited() bool { return f.Rate != "" || f.ReadyLimit > 0 }

// FlowOf returns the Flow that a queue's settings give. A value that does not parse counts as not set.
func FlowOf(settings map[string]string) Flow {
	// Group "" stands for the settings of the whole queue.
	policies, _ := policy.Resolve([]string{""}, settings, nil)
	p := policies[""]
	return Flow{p.Rate, p.ReadyLimit, p.HeldWorkers}
}
