package sizes

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/view"
)

// Memory returns about how many bytes of memory each partition takes, in the order of the names. It sends ten commands
// for each partition, in one round trip per 64 partitions. -1: the server does not tell the bytes of any key.
func Memory(ctx context.Context, c rueidis.Client, prefix string, names []string) ([]int64, error) {
	sums := make([]int64, len(names))
	for first := 0; first < len(names); first += memoryParts {
		some := names[first:min(first+memoryParts, len(names))]
		told := make([]map[string]int64, len(some))
		var questions []view.Question
		for i, name := range some {
			told[i] = map[string]int64{}
			for _, k := range newPartition(prefix, name).partitionKeys() {
				questions = append(questions, memoryQuestion(c, k, told[i]).OrNothing())
			}
		}
		if err := view.Ask(ctx, c, questions...); err != nil {
			return nil, err
		}
		for i := range some {
			if len(told[i]) == 0 {
				sums[first+i] = -1
			}
			for _, bytes := range told[i] {
				sums[first+i] += bytes
			}
		}
	}
	return sums, nil
}

// memoryParts is the number of partitions of one round trip.
const memoryParts = 64
