package push

import (
	"context"
	"slices"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
)

// Groups returns the groups of queues that have a target, in order, without reading the targets. failed has the error
// of each queue that could not be read. It sends one EXISTS for hundreds of queues, and one HKEYS for each queue with
// targets, together.
func (s *Store) Groups(ctx context.Context, queues []string) (groups map[string][]string, failed map[string]error) {
	groups, failed = map[string][]string{}, map[string]error{}
	have := s.withTargets(ctx, queues, failed)
	names := make([][]string, len(have))
	questions := make([]view.Question, len(have))
	for i, queue := range have {
		questions[i] = view.Into(s.client.B().Hkeys().Key(s.key(queue)).Build(), &names[i], rueidis.RedisResult.AsStrSlice)
	}
	for i, err := range s.askEach(ctx, questions) {
		if err != nil {
			failed[have[i]] = err
			continue
		}
		slices.Sort(names[i])
		groups[have[i]] = names[i]
	}
	return groups, failed
}
