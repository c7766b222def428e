package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

// Queues returns the registered queues of a prefix, sorted, without illegal names. It reads the hash <prefix>:queues in
// one round trip, O(n). Give ctx a deadline, because the client library repeats the read until ctx ends while the
// server is unavailable.
func Queues(ctx context.Context, client rueidis.Client, prefix string) ([]string, error) {
	names, err := client.Do(ctx, client.B().Hkeys().Key(lua.NewGlobals(prefix).Queues).Build()).AsStrSlice()
	if err != nil {
		return nil, fmt.Errorf("read the registry: %w", lua.Classify("hkeys", err))
	}
	names = slices.DeleteFunc(names, func(name string) bool { return lua.CheckQueue(name) != nil })
	slices.Sort(names)
	return names, nil
}

// ErrNoQueue: the queue is not registered and has no keys.
var ErrNoQueue = errors.New("no such queue")

// CheckKnown returns ErrNoQueue if a queue is not registered and has no keys. Most likely the name is misspelt.
// CheckKnown sends one HEXISTS, and for an unregistered queue also one EXISTS.
func CheckKnown(ctx context.Context, client rueidis.Client, prefix, queue string) error {
	if err := errors.Join(lua.CheckPrefix(prefix), lua.CheckQueue(queue)); err != nil {
		return err
	}
	known, err := client.Do(ctx, client.B().Hexists().Key(lua.NewGlobals(prefix).Queues).Field(queue).Build()).AsBool()
	if err != nil {
		return fmt.Errorf("read the registry: %w", lua.Classify("HEXISTS", err))
	}
	if known {
		return nil
	}
	k := lua.NewKeys(prefix, queue)
	keys := []string{k.Due, k.Payload, k.Meta, k.Stream, k.Dead, k.Policy, k.Seen, k.Recurring}
	n, err := client.Do(ctx, client.B().Exists().Key(keys...).Build()).AsInt64()
	if err != nil {
		return fmt.Errorf("look for keys of %s: %w", queue, lua.Classify("EXISTS", err))
	}
	if n == 0 {
		return fmt.Errorf("queue %s: %w", queue, ErrNoQueue)
	}
	return nil
}

// registryPause is the least time between two reads of the registry. It bounds the number of reads while many queues
// are added one after the other.
const registryPause = 100 * time.Millisecond

// readRegistry learns the registered queues and their partition counts, and registers known queues and counts that the
// server lost.
func (s *Scheduler) readRegistry(ctx context.Context) error {
	defer loop.SleepUntil(ctx, registryPause, nil)
	return s.syncRegistry(ctx)
}

// syncRegistry does the work of readRegistry. It also forgets partition counts of deleted queues.
func (s *Scheduler) syncRegistry(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	registered, err := lua.ReadRegistry(call, s.cfg.Client, s.globals)
	if err != nil {
		return fmt.Errorf("read the registry: %w", err)
	}
	missing := s.learn(ctx, registered)
	if len(missing) == 0 {
		return nil
	}
	readMark := s.cfg.Client.B().Hget().Key(s.globals.Queues).Field(lua.RegistryDeleted).Build()
	err = s.cfg.Client.Do(call, readMark).Error()
	if rueidis.IsRedisNil(err) { // without this mark the registry was lost, and the missing queues were not deleted
		return s.register(ctx, missing)
	}
	if err != nil {
		return fmt.Errorf("read the registry: %w", lua.Classify("HGET "+s.globals.Queues, err))
	}
	alive, err := s.alive(ctx, registered, missing)
	return errors.Join(err, s.registerRemembered(ctx, alive))
}

// alive returns the queues that are registered with other counts, or have any key. The other queues were deleted, if
// the registry was not lost: registering them would bring them back.
func (s *Scheduler) alive(ctx context.Context,
	registered, queues map[string]lua.Counts) (map[string]lua.Counts, error) {
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	var partitions []string
	var queueOf []string // queue of each partition
	var commands []rueidis.Completed
	found := map[string]lua.Counts{}
	for queue, counts := range queues {
		if registered[queue] != nil {
			found[queue] = counts
			continue
		}
		for _, name := range counts.Names(queue) {
			k := lua.NewKeys(s.cfg.Prefix, name)
			partitions, queueOf = append(partitions, name), append(queueOf, queue)
			commands = append(commands, s.cfg.Client.B().Exists().Key(k.Due, k.Payload, k.Meta, k.Stream, k.Dead,
				k.Policy, k.Seen, k.Recurring).Build())
		}
	}
	if len(commands) == 0 {
		return found, nil
	}
	var errs []error
	for i, reply := range s.cfg.Client.DoMulti(ctx, commands...) {
		n, err := reply.AsInt64()
		if err != nil {
			errs = append(errs, fmt.Errorf("keys of %s: %w", partitions[i], lua.Classify("EXISTS", err)))
		}
		if n > 0 {
			found[queueOf[i]] = queues[queueOf[i]]
		}
	}
	return found, errors.Join(errs...)
}

// registerRemembered registers queues with the counts that this bridge knows. It forgets the counts that the server
// does not accept, because the queue was deleted.
func (s *Scheduler) registerRemembered(ctx context.Context, queues map[string]lua.Counts) error {
	if len(queues) == 0 {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	current, err := lua.SyncCounts(call, s.cfg.Client, s.globals, queues)
	if err != nil {
		return fmt.Errorf("register %d queues: %w", len(queues), err)
	}
	deleted := map[string]lua.Counts{}
	for queue, counts := range queues {
		if notAccepted := lua.WithoutCounts(counts, current[queue]); len(notAccepted) > 0 {
			deleted[queue] = notAccepted
		}
	}
	s.forget(ctx, deleted)
	return nil
}

func (s *Scheduler) register(ctx context.Context, queues map[string]lua.Counts) error {
	if len(queues) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	_, err := lua.RegisterCounts(ctx, s.cfg.Client, s.globals, queues)
	if err != nil {
		err = fmt.Errorf("register %d queues: %w", len(queues), err)
	}
	return err
}
