package dashboard

import (
	"slices"
	"strings"

	"github.com/duestream/duestream/bridge/admin/doctor"
)

// This file puts the findings of the doctor into words and links of the dashboard.

// advice is a finding of the doctor about one or several queues.
type advice struct {
	doctor.Finding          // of the first queue
	Queues         []string // queues with this finding; one "" for a finding about no queue
	Others         []string // what was found in the other queues, each with its name
}

// adviceOf puts the findings of one check about several queues together, if they have the same reason and group. Two
// findings about one queue stay apart: they are about different keys.
func adviceOf(findings []doctor.Finding) []advice {
	var all []advice
	for _, f := range findings {
		same := slices.IndexFunc(all, func(a advice) bool {
			return f.Queue != "" && a.Queue != "" && !slices.Contains(a.Queues, f.Queue) &&
				a.Name == f.Name && a.Why == f.Why && a.Group == f.Group && a.Repair == f.Repair
		})
		if same < 0 {
			all = append(all, advice{Finding: f, Queues: []string{f.Queue}})
			continue
		}
		all[same].Queues = append(all[same].Queues, f.Queue)
		all[same].Others = append(all[same].Others, f.Queue+": "+f.Found)
	}
	return all
}

// remedy is the page where a viewer can look into a finding, or mend it.
type remedy struct{ Href, Title string }

// remedies maps the name of a check to the page for its finding: page, tab of the page, and title. The page of a queue
// shows its advice on the first tab, so no remedy leads there.
var remedies = map[string][3]string{
	"many-dead":       {"dead", "", "Open the dead letters"},
	"old-dead":        {"dead", "", "Open the dead letters"},
	"fresh-dead":      {"dead", "", "Open the dead letters"},
	"overdue":         {"queue", "due", "Open the due times"},
	"limited":         {"queue", "settings", "Open the settings"},
	"bad-setting":     {"queue", "settings", "Open the settings"},
	"unknown-setting": {"queue", "settings", "Open the settings"},
	"gives-up-early":  {"queue", "settings", "Open the settings"},
	"no-group":        {"queue", "consumers", "Open the consumers"},
	"no-consumer":     {"queue", "consumers", "Open the consumers"},
	"not-read":        {"queue", "consumers", "Open the consumers"},
	"target-behind":   {"callbacks", "", "Open the callbacks"},
	"slow-workers":    {"queue", "consumers", "Open the consumers"},
	"far-behind":      {"queue", "consumers", "Open the consumers"},
	"old-pending":     {"queue", "consumers", "Open the consumers"},
	"held-long":       {"queue", "consumers", "Open the consumers"},
	"full":            {"servers#memory", "", "See which queue holds the most"},
	"nearly-full":     {"servers#memory", "", "See which queue holds the most"},
}

// Remedy returns the page for a finding; nil = there is none.
func (a advice) Remedy() (*remedy, error) {
	page, ok := remedies[a.Name]
	if ok && strings.HasPrefix(page[0], "servers") { // about no queue
		return &remedy{page[0], page[2]}, nil
	}
	if !ok || len(a.Queues) != 1 || a.Queue == "" {
		return nil, nil
	}
	address, err := href(page[0], "queue", a.Queue, "tab", page[1])
	return &remedy{address, page[2]}, err
}

// todo returns what to do about a finding: a sentence, or a command as it is typed.
func todo(text string) string {
	for _, program := range []string{"duestream ", "redis-cli "} {
		if strings.HasPrefix(text, program) {
			return text
		}
	}
	return sentence(text) + "."
}
