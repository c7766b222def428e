package campaign

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// nodes is the cluster of a campaign: masters with one replica each. Nothing is stored on disk, so only the data of
// the replica survives.
type nodes struct {
	*redistest.ClusterNodes
	clients []rueidis.Client // one client per node, without redirections

	mu      sync.Mutex
	orderly []Fault // planned failovers in which the replica took over at once
}

// A planned failover that took less than orderlyWithin was orderly: no master was considered dead meanwhile. It is
// below the node timeout.
const orderlyWithin = 900 * time.Millisecond

func startNodes(t testing.TB, masters int, args ...string) *nodes {
	t.Helper()
	n := &nodes{ClusterNodes: redistest.Cluster(t, masters, 1, append(args, redistest.FailsOver...)...)}
	for _, s := range n.Servers {
		n.clients = append(n.clients, s.Client(t, func(o *rueidis.ClientOption) {
			o.ForceSingleClient, o.DisableRetry = true,
				true
		}))
	}
	return n
}

// clusterCards are failovers and moved slots. After a failover, the next fault begins only when every master has its
// replica again: nothing is on disk, so data is gone once a master and its replica have both failed.
func clusterCards(visibility time.Duration) []card {
	// away takes a master away until its replica has taken over, and then gives it back.
	away := func(kind string, take, give func(*redistest.Server)) card {
		return card{kind, func(a *attacker) ([]string, string, error) {
			slot, master := a.slot()
			take(master)
			heir := a.c.nodes.Promoted(slot, master)
			a.wait(0, visibility)
			give(master)
			a.c.nodes.Settled()
			a.c.nodes.Follows(master, heir)
			return nil, "", nil
		}}
	}
	planned := card{faultSwitchMaster, func(a *attacker) ([]string, string, error) {
		slot, master := a.slot()
		a.from = time.Now()
		a.c.nodes.Switch(slot)
		heir := a.c.nodes.Promoted(slot, master)
		a.c.nodes.switched(a.from, time.Now())
		a.c.nodes.Follows(master, heir)
		return nil, "", nil
	}}
	move := card{faultMoveSlot, func(a *attacker) ([]string, string, error) {
		slot, from := a.slot()
		others := slices.DeleteFunc(a.c.nodes.Masters(), func(s *redistest.Server) bool { return s == from })
		if len(others) == 0 {
			return nil, "", fmt.Errorf("slot %d is on the only master", slot)
		}
		a.c.nodes.Migrate(slot, others[a.random.IntN(len(others))], func() { a.wait(0, 20*time.Millisecond) })
		return nil, "", nil
	}}
	return []card{
		away(faultKillMaster, (*redistest.Server).Kill, (*redistest.Server).Start),
		away(faultFreezeMaster, (*redistest.Server).Pause, (*redistest.Server).Resume),
		planned, move, move,
	}
}

func (n *nodes) switched(from, until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if until.Sub(from) < orderlyWithin {
		n.orderly = append(n.orderly, Fault{From: from, Until: until})
	}
}

// watchRoles records every replica that takes over, until ctx ends. Writes of its master since the replica last heard
// of it may be undone.
func (n *nodes) watchRoles(ctx context.Context, note func(kind string, from time.Time, hits []string)) {
	var all sync.WaitGroup
	for _, client := range n.clients {
		all.Go(func() {
			replica, offset, heard := false, int64(0), time.Now()
			for pause(ctx, 2*pulseEvery) {
				call, done := context.WithTimeout(ctx, time.Second)
				role, err := client.Do(call, client.B().Arbitrary("ROLE").Build()).ToArray()
				done()
				if err != nil || len(role) < 2 {
					continue
				}
				switch name, _ := role[0].ToString(); {
				case name == "slave" && len(role) == 5:
					link, _ := role[3].ToString()
					at, _ := role[4].AsInt64()
					if link == "connected" && at != offset {
						offset, heard = at, time.Now()
					}
					replica = true
				case name == "master" && replica:
					note(faultOwnFailover, heard, nil)
					replica = false
				}
			}
		})
	}
	all.Wait()
}

// withoutOurFailovers returns the faults without the observed failovers that we caused: by killing or stopping a
// master, or by an orderly planned failover. The observed failovers that remain are the cluster's own: its masters
// answered too slowly on this machine.
func (n *nodes) withoutOurFailovers(faults []Fault) []Fault {
	if n == nil {
		return faults
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	causes := slices.Clone(n.orderly)
	for _, f := range faults {
		if !f.Observed && undoing[f.Kind] {
			causes = append(causes, f)
		}
	}
	return slices.DeleteFunc(slices.Clone(faults), func(f Fault) bool {
		return f.Kind == faultOwnFailover && slices.ContainsFunc(causes, func(cause Fault) bool {
			return !f.From.After(cause.Until) && !f.Until.Before(cause.From)
		})
	})
}

// slot picks a slot to hit: of a partition of the main queue, or of a shared key. It returns the slot and its master.
func (a *attacker) slot() (int, *redistest.Server) {
	g := lua.NewGlobals(prefix)
	keys := []string{g.Queues, g.Defaults, g.Bridges}
	for range 2 {
		keys = append(keys, a.place().Due, a.place().Due)
	}
	slot := a.c.nodes.Slot(keys[a.random.IntN(len(keys))])
	a.c.nodes.Settled()
	return slot, a.c.nodes.Served(slot)
}
