package campaign

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// nodes is the cluster of a campaign: so many masters, each with one replica. Nothing is on disk: what survives is what the
// replica has.
type nodes struct {
	*redistest.ClusterNodes
	clients []rueidis.Client // one for each node, which follows no redirection
}

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

// clusterCards take masters away, and move slots. The next one begins when every master has its replica again: what both have
// lost is lost.
func clusterCards(visibility time.Duration) []card {
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
		a.c.nodes.Switch(slot)
		a.c.nodes.Follows(master, a.c.nodes.Promoted(slot, master))
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

// slot chooses what is hit: the slot of a partition of the main queue, or of a key that all share, and the master that has it.
func (a *attacker) slot() (int, *redistest.Server) {
	g := lua.NewGlobals(prefix)
	keys := []string{g.Queues, g.Defaults, g.Bridges}
	for range 2 {
		keys = append(keys, a.place().Due, a.place().Due)
	}
	slot := a.c.nodes.Slot(keys[a.random.IntN(len(keys))])
	a.c.nodes.Settled()
	return slot, a.c.nodes.Owner(slot)
}
