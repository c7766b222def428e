package inspect

import (
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/stream"
)

// Flow is what the policy of a queue limits what becomes ready by, in each partition, and whether it has workers rest.
type Flow struct {
	Rate        lua.Rate `json:"rate,omitempty"`
	ReadyLimit  int      `json:"ready_limit,omitempty"`
	HeldWorkers bool     `json:"held_workers,omitempty"`
}

// Limited says whether what is due may have to wait.
func (f Flow) Limited() bool { return f.Rate != "" || f.ReadyLimit > 0 }

// FlowOf reads the settings of a queue.
func FlowOf(settings map[string]string) Flow {
	policies, _ := stream.ResolveAll([]string{""}, settings, nil)
	p := policies[""]
	return Flow{p.Rate, p.ReadyLimit, p.HeldWorkers}
}
