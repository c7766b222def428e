package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/internal/loop"
	"github.com/duestream/duestream/lua"
)

const scanCount = 1000 // keys that a server examines in one request

// discovery is the state of Discover. Only the goroutine of Discover uses it.
type discovery struct {
	scan         discoverer
	unregistered []string // found partitions that must be registered before they are served
	lost         lostPartitions
}

func newDiscovery(cfg Config, quiet func(error) bool) discovery {
	return discovery{
		scan: discoverer{client: cfg.Client, prefix: cfg.Prefix},
		lost: lostPartitions{
			partitionReader: partitionReader{cfg.Client, cfg.Prefix}, globals: lua.NewGlobals(cfg.Prefix),
			actor: cfg.Identity.Actor(), log: cfg.Logger, quiet: quiet,
			known: map[string]*lostPartition{}, madeUp: map[string]time.Time{},
		},
	}
}

// Discover scans the next keys of the server for unregistered queues, and for partitions beyond the known count. It
// registers the queues, and partitions that a growth has prepared. It moves the messages of lost partitions to the
// partitions in which they belong, and watches the partitions of queues that were deleted within the last minute. Only
// the first live scheduler does this.
//
// Discover moves no message while a scheduler of an older protocol level is alive, because a message could be lost if
// two schedulers moved it at the same time.
func (s *Scheduler) Discover(ctx context.Context) error {
	dropped := s.owners.takeDropped()
	if !s.owners.isFirst() {
		return nil
	}
	s.discovery.lost.watch(dropped)
	found, err := s.discovery.scan.Step(ctx)
	if err == nil {
		found = append(found, s.discovery.unregistered...)
		slices.Sort(found)
		found = slices.Compact(found) // without duplicates, because the list would grow while an error lasts
		err = s.sortIn(ctx, found)
	}
	s.discovery.lost.paused = !s.owners.allHaveLevel(lua.LevelMoves)
	s.discovery.lost.emptyAll(ctx)
	return err
}

// sortIn registers found partitions, or notes that they are lost.
func (s *Scheduler) sortIn(ctx context.Context, found []string) error {
	var err error
	unknown := s.owners.unknownPartitions(found)
	if len(unknown) > 0 { // the registry may already count partitions that this bridge does not know
		err = s.syncRegistry(ctx)
		unknown = s.owners.unknownPartitions(found)
	}
	prepared, beyond, failed := s.countsOfFound(ctx, unknown)
	if err == nil {
		err = s.register(ctx, prepared)
	}
	err = errors.Join(err, failed)
	s.discovery.unregistered = nil
	mayPass := lua.Temporary(err) || ctx.Err() != nil
	if err != nil && mayPass && s.cfg.Client.Mode() != rueidis.ClientModeCluster {
		// Do not drain an unregistered queue. Once a queue is drained, a bridge cannot find it by its schedule. If the
		// bridge that drained the queue then died, the messages would never be delivered.
		s.discovery.unregistered = found
		return err
	}
	s.learn(ctx, prepared) // on a cluster even after an error: the registry may be unavailable while the queue is not
	if err != nil {
		return err
	}
	var errs []error
	for queue, partitions := range beyond {
		errs = append(errs, s.discovery.lost.noteFound(ctx, queue, partitions))
	}
	err = errors.Join(errs...)
	if err != nil && s.cfg.Client.Mode() != rueidis.ClientModeCluster {
		s.discovery.unregistered = found // the scan would find these partitions again only after it has seen all keys
	}
	return err
}

// countsOfFound sorts found but unknown partitions. prepared has the queues to register, with the counts that growths
// have prepared. beyond has the partitions beyond these counts.
func (s *Scheduler) countsOfFound(ctx context.Context,
	unknown map[string][]int) (prepared map[string]lua.Counts, beyond map[string][]int, err error) {
	prepared, beyond = map[string]lua.Counts{}, map[string][]int{}
	for queue, partitions := range unknown {
		known := s.owners.countsOf(queue)
		latest := known.Latest()
		if known == nil || slices.Max(partitions) >= latest {
			grown, failed := s.discovery.lost.grownTo(ctx, queue, latest)
			if failed != nil {
				err = errors.Join(err, failed)
				continue
			}
			latest = grown
		}
		if known == nil || latest > known.Latest() {
			prepared[queue] = known.With(latest)
		}
		for _, i := range partitions {
			if i >= latest {
				beyond[queue] = append(beyond[queue], i)
			}
		}
	}
	return prepared, beyond, err
}

// discoverer finds the schedules of unregistered queues: it scans all keys of all nodes in bounded steps.
type discoverer struct {
	client rueidis.Client
	prefix string
	node   string // address of the node that is being scanned
	cursor uint64 // of the scan; 0 = a scan begins
}

// Step examines about a thousand keys of one node, and returns the partitions whose schedule is among the keys. On a
// cluster it scans replicas as well.
func (d *discoverer) Step(ctx context.Context) ([]string, error) {
	nodes := d.client.Nodes()
	node, ok := nodes[d.node]
	if !ok || d.cursor == 0 {
		d.node, d.cursor = nextName(slices.Sorted(maps.Keys(nodes)), d.node), 0
		node = nodes[d.node]
	}
	if node == nil {
		return nil, fmt.Errorf("look for queues: %w: no node is known", lua.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, loop.CallTimeout)
	defer cancel()
	schedules := lua.NewKeys(d.prefix, "*").Due
	command := node.B().Scan().Cursor(d.cursor).Match(schedules).Count(scanCount).Type("zset").Build()
	scan, err := node.Do(ctx, command).AsScanEntry()
	if err != nil {
		d.cursor = 0 // continue with the next node, because this one may be unavailable for long
		return nil, fmt.Errorf("look for queues: %w", lua.Classify("scan", err))
	}
	d.cursor = scan.Cursor
	var found []string
	for _, key := range scan.Elements {
		if queue, partition, ok := lua.QueueOf(d.prefix, key); ok {
			found = append(found, lua.PartitionName(queue, partition))
		}
	}
	return found, nil
}

// nextName returns the name after the given one in a sorted list, and the first after the last.
func nextName(names []string, name string) string {
	if len(names) == 0 {
		return ""
	}
	i, found := slices.BinarySearch(names, name)
	if found {
		i++
	}
	return names[i%len(names)]
}
