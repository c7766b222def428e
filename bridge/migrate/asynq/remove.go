package asynq

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/migrate"
)

// removeTask deletes a task from the structure of its state, and then the task and its unique lock. It runs as one
// script, so that asynq never finds an ID without a task: it would make such an ID active for ever.
//
// KEYS: 1 the task, 2 pending, 3 active, 4 lease, 5 scheduled, 6 retry, 7 archived, 8 its unique lock, if it has one
// ARGV: 1 the ID of the task, 2 the beginning of the keys of aggregation groups
// Returns 1 if the task was deleted, or was not there; 0 if it stays.
var removeTask = rueidis.NewLuaScriptNoSha(`
local task = KEYS[1]
local id = ARGV[1]
local state, group = unpack(redis.call('HMGET', task, 'state', 'group'))
if state == 'pending' then
  redis.call('LREM', KEYS[2], -1, id)
elseif state == 'active' then
  redis.call('LREM', KEYS[3], -1, id)
  redis.call('ZREM', KEYS[4], id)
elseif state == 'aggregating' then
  if not group or redis.call('ZREM', ARGV[2] .. group, id) == 0 then
    return 0 -- an asynq server aggregates it now
  end
elseif state == 'completed' then
  return 0
end
for i = 5, 7 do
  redis.call('ZREM', KEYS[i], id)
end
redis.call('DEL', task)
if KEYS[8] and redis.call('GET', KEYS[8]) == id then
  redis.call('DEL', KEYS[8])
end
return 1
`)

// Remove implements migrate.Source. A task stays if asynq has completed it meanwhile, or aggregates it now.
func (s *Source) Remove(ctx context.Context, queue string, jobs []migrate.Job) ([]bool, error) {
	runs := make([]rueidis.LuaExec, len(jobs))
	for i, job := range jobs {
		keys := []string{taskKey(queue, job.ID), key(queue, pending), key(queue, active), key(queue, lease),
			key(queue, scheduled), key(queue, retry), key(queue, archived)}
		if p, ok := job.Place.(place); ok && p.uniqueKey != "" {
			keys = append(keys, p.uniqueKey)
		}
		runs[i] = rueidis.LuaExec{Keys: keys, Args: []string{job.ID, key(queue, "g:")}}
	}
	removed := make([]bool, len(jobs))
	call, cancel := migrate.Limit(ctx)
	defer cancel()
	for i, answer := range removeTask.ExecMulti(call, s.c, runs...) {
		n, err := answer.AsInt64()
		if err != nil {
			return nil, fmt.Errorf("remove task %s: %w", jobs[i].ID, err)
		}
		removed[i] = n == 1
	}
	return removed, nil
}
