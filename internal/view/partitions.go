package view

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// partitionsAtOnce is how many partitions are asked in parallel.
const partitionsAtOnce = 16

// ReadCounts returns every partition count that a queue ever had, in order; 1 for a queue that is not registered. The
// caller must have checked the name. One round trip.
func ReadCounts(ctx context.Context, c rueidis.Client, prefix, queue string) (lua.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	counts, err := lua.ReadCounts(ctx, c, lua.NewGlobals(prefix), queue)
	if err != nil {
		return nil, fmt.Errorf("partitions of %s: %w", queue, err)
	}
	return counts, nil
}

// EachPartition calls visit for the names of partitions, several in parallel. It joins the errors, each with the name
// of its partition. A single name without a slash is a queue with one partition. Its error is returned without a name.
func EachPartition(names []string, visit func(i int, name string) error) error {
	if len(names) == 1 && !strings.Contains(names[0], "/") {
		return visit(0, names[0])
	}
	errs := make([]error, len(names))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(partitionsAtOnce, len(names)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(names); i = int(next.Add(1)) - 1 {
				if err := visit(i, names[i]); err != nil {
					errs[i] = fmt.Errorf("%s: %w", names[i], err)
				}
			}
		})
	}
	workers.Wait()
	return errors.Join(errs...)
}

// ReadPartitions calls read for all names, several in parallel, and returns the results; errors are as in
// EachPartition.
func ReadPartitions[T any](prefix string, names []string, read func(i int, keys lua.Keys) (T, error)) ([]T, error) {
	all := make([]T, len(names))
	err := EachPartition(names, func(i int, name string) (err error) {
		all[i], err = read(i, lua.NewKeys(prefix, name))
		return err
	})
	return all, err
}
