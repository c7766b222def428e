package dashboard

import (
	"errors"

	"github.com/duestream/duestream/bridge/admin"
)

// This file holds the tab of the history: what became of the last messages.

// recentShown is the number of changes that the tab shows.
const recentShown = 200

// historyView is the data of the tab.
type historyView struct {
	NoHistory bool // the queue keeps no history
	admin.Recent
}

// Chapter returns what a change says.
func (historyView) Chapter(c admin.RecentChange) chapter { return chapterOf(c.Change) }

func showHistory(q *request, _ queueState) (any, error) {
	recent, err := q.op.Recent(q.ctx, q.queue(), recentShown)
	if errors.Is(err, admin.ErrNoHistory) {
		return historyView{NoHistory: true}, nil
	}
	return historyView{Recent: recent}, err
}
