package bullmq

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/migrate"
)

// removeJob deletes a job from the structure of its state, and then the job with all its keys. It runs as one script,
// so that BullMQ never finds an ID without a job.
//
// KEYS: 1 the job, 2 wait, 3 paused, 4 active, 5 prioritized, 6 delayed, 7 failed, 8 completed, 9 waiting-children,
// 10 stalled, 11 the key of its deduplication ID, if it has one
// ARGV: 1 the ID of the job
// Returns 1 if the job was deleted, or was not there; 0 if it stays.
var removeJob = rueidis.NewLuaScriptNoSha(`
local job = KEYS[1]
local id = ARGV[1]
if redis.call('ZSCORE', KEYS[8], id) or redis.call('ZSCORE', KEYS[9], id) then
  return 0
end
local placed = 0
for i = 5, 7 do
  placed = placed + redis.call('ZREM', KEYS[i], id)
end
for i = 2, 4 do
  if placed == 0 then
    placed = redis.call('LREM', KEYS[i], -1, id)
  end
end
redis.call('SREM', KEYS[10], id)
redis.call('DEL', job, job .. ':lock', job .. ':logs', job .. ':dependencies', job .. ':processed', job .. ':failed',
  job .. ':unsuccessful')
if KEYS[11] and redis.call('GET', KEYS[11]) == id then
  redis.call('DEL', KEYS[11])
end
return 1
`)

// removeScheduler deletes a job scheduler. Its next job is a job of its own.
//
// KEYS: 1 repeat, 2 the scheduler
// ARGV: 1 the name of the scheduler
var removeScheduler = rueidis.NewLuaScriptNoSha(`
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
return 1
`)

// Remove implements migrate.Source. A job stays if BullMQ has completed it meanwhile. An active job is removed, too:
// its worker gets an error when it ends the job.
func (s *Source) Remove(ctx context.Context, queue string, jobs []migrate.Job) ([]bool, error) {
	removed := make([]bool, len(jobs))
	runs, of := make([]rueidis.LuaExec, 0, len(jobs)), make([]int, 0, len(jobs))
	for i, job := range jobs {
		p, _ := job.Place.(place)
		if p.scheduler != "" {
			keys := []string{s.key(queue, "repeat"), s.key(queue, "repeat:"+p.scheduler)}
			if err := s.removeScheduler(ctx, keys, p.scheduler); err != nil {
				return nil, fmt.Errorf("remove job scheduler %s: %w", p.scheduler, err)
			}
			removed[i] = true
			continue
		}
		id, _ := idOf(job.ID)
		keys := []string{s.key(queue, id)}
		for _, name := range []string{waiting, paused, active, prioritized, delayed, failed, completed, waitingChildren,
			"stalled"} {
			keys = append(keys, s.key(queue, name))
		}
		if p.deduplication != "" {
			keys = append(keys, s.key(queue, "de:"+p.deduplication))
		}
		runs, of = append(runs, rueidis.LuaExec{Keys: keys, Args: []string{id}}), append(of, i)
	}
	if len(runs) == 0 {
		return removed, nil
	}
	call, cancel := migrate.Limit(ctx)
	defer cancel()
	for n, answer := range removeJob.ExecMulti(call, s.c, runs...) {
		deleted, err := answer.AsInt64()
		if err != nil {
			return nil, fmt.Errorf("remove job %s: %w", jobs[of[n]].ID, err)
		}
		removed[of[n]] = deleted == 1
	}
	return removed, nil
}

func (s *Source) removeScheduler(ctx context.Context, keys []string, name string) error {
	call, cancel := migrate.Limit(ctx)
	defer cancel()
	return removeScheduler.Exec(call, s.c, keys, []string{name}).Error()
}
