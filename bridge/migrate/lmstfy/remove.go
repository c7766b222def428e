package lmstfy

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/migrate"
)

// Remove implements migrate.Source. It deletes jobs in any state: the job's own key first, as an acknowledgement does,
// because lmstfy ignores a job without that key. Then it removes the job from the structure in which Scan found it.
func (s *Source) Remove(ctx context.Context, name string, jobs []migrate.Job) ([]bool, error) {
	queue, b := queueOf(name), s.c.B()
	var cmds rueidis.Commands
	removed := make([]bool, len(jobs))
	for i, job := range jobs {
		removed[i] = true
		cmds = append(cmds, b.Del().Key(jobKey(queue, job.ID)).Build())
		switch e, _ := job.Place.(entry); e.state {
		case Delayed, InFlight:
			cmds = append(cmds, b.Zrem().Key(timerKey).Member(e.raw).Build())
		case Ready:
			cmds = append(cmds, b.Lrem().Key(queue.key(readyKey)).Count(-1).Element(e.raw).Build())
		case Dead:
			cmds = append(cmds, b.Lrem().Key(queue.key(deadKey)).Count(-1).Element(e.raw).Build())
		}
	}
	_, err := migrate.Do(ctx, s.c, cmds...)
	return removed, err
}
