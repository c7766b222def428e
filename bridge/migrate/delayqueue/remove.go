package delayqueue

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge/migrate"
)

// removeMessage deletes a message from its structure, and then its payload and its retries, as one script.
//
// KEYS: 1 the payload, 2 pending, 3 unack, 4 ready, 5 retry, 6 retry:cnt
// ARGV: 1 the ID of the message
// Returns 1.
var removeMessage = rueidis.NewLuaScriptNoSha(`
local id = ARGV[1]
if redis.call('ZREM', KEYS[2], id) + redis.call('ZREM', KEYS[3], id) == 0 then
  if redis.call('LREM', KEYS[4], -1, id) == 0 then
    redis.call('LREM', KEYS[5], -1, id)
  end
end
redis.call('HDEL', KEYS[6], id)
redis.call('DEL', KEYS[1])
return 1
`)

// Remove implements migrate.Source. It deletes messages in any state.
func (s *Source) Remove(ctx context.Context, queue string, jobs []migrate.Job) ([]bool, error) {
	runs := make([]rueidis.LuaExec, len(jobs))
	for i, job := range jobs {
		runs[i] = rueidis.LuaExec{Args: []string{job.ID}, Keys: []string{payloadKey(queue, job.ID), key(queue, pending),
			key(queue, unack), key(queue, ready), key(queue, retry), key(queue, retryCounts)}}
	}
	removed := make([]bool, len(jobs))
	call, cancel := migrate.Limit(ctx)
	defer cancel()
	for i, answer := range removeMessage.ExecMulti(call, s.c, runs...) {
		if err := answer.Error(); err != nil {
			return nil, fmt.Errorf("remove message %s: %w", jobs[i].ID, err)
		}
		removed[i] = true
	}
	return removed, nil
}
