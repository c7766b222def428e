package redistest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Slots is how many slots a cluster has.
const Slots = 16384

// FailsOver are arguments of a cluster that replaces a master by one of its replicas when the master does not answer
// for a second. Only a test that waits for a failover uses them. On a busy machine even a healthy node may not answer
// for a second, and a cluster with too few masters refuses everything.
var FailsOver = []string{nodeTimeout, "1000"}

const (
	nodeTimeout = "--cluster-node-timeout"
	calmTimeout = "5000" // in ms, for all other clusters, whose nodes may be slow without being dead
)

// ClusterNodes is a Redis Cluster. A master that does not answer for five seconds, or one second with [FailsOver], is
// replaced by one of its replicas, if it has any.
type ClusterNodes struct {
	t       testing.TB
	Servers []*Server // first the initial masters, then one replica of each master, then the next one of each
	ids     []string  // node IDs of the Servers
}

// Cluster starts a cluster of masters as child processes, each with this many replicas. It returns when all nodes
// agree and every replica is in sync. When a master without a replica dies, only its own slots go down.
func Cluster(t testing.TB, masters, replicas int, args ...string) *ClusterNodes {
	t.Helper()
	c := &ClusterNodes{t: t}
	c.Servers = startAll(t, node{args: append([]string{
		"--cluster-enabled", "yes", "--cluster-port", "{bus}", nodeTimeout, calmTimeout,
		"--cluster-require-full-coverage", "no",
		"--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
	}, args...)}, masters*(1+replicas))
	for i, s := range c.Servers {
		c.ids = append(c.ids, s.Do(t, "CLUSTER", "MYID"))
		s.Do(t, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < masters {
			s.Do(t, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*Slots/masters), strconv.Itoa((i+1)*Slots/masters-1))
		}
	}
	// Each node meets every other one, because gossip alone would take seconds.
	for i, s := range c.Servers {
		for _, earlier := range c.Servers[:i] {
			if err := c.introduce(earlier, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.acquainted()
	for i := masters; i < len(c.Servers); i++ {
		c.Servers[i].Do(t, "CLUSTER", "REPLICATE", c.ids[(i-masters)%masters])
	}
	c.Settled()
	for _, s := range c.Servers[masters:] {
		Eventually(t, topologyReady, func() (bool, string) {
			f, err := s.info("replication")
			return err == nil && f["master_link_status"] == "up", fmt.Sprint(f, err)
		})
	}
	// Every node must know every replica, or a failover finds none to promote. Gossip takes a while to spread that.
	c.until(func(s *Server) (bool, string) {
		nodes, err := s.ask("CLUSTER", "NODES")
		isWhole := strings.Count(nodes, "slave ") == masters*replicas && !strings.Contains(nodes, "handshake")
		return err == nil && isWhole, nodes
	})
	c.Settled()
	return c
}

// introduce lets one node begin a handshake with another one. During a handshake it does nothing.
func (c *ClusterNodes) introduce(one, other *Server) error {
	c.t.Helper()
	_, err := one.ask("CLUSTER", "MEET", "127.0.0.1", port(other), c.bus(other))
	return err
}

// acquainted waits until every node knows all others. A node forgets a handshake that does not end within the node
// timeout, which happens on a busy machine. So acquainted introduces the nodes that are missing again.
func (c *ClusterNodes) acquainted() {
	c.t.Helper()
	c.until(func(s *Server) (bool, string) {
		nodes, err := s.ask("CLUSTER", "NODES")
		for i, id := range c.ids {
			if err == nil && !strings.Contains(nodes, id) {
				err = c.introduce(s, c.Servers[i])
			}
		}
		known := strings.Count(strings.TrimSpace(nodes), "\n") + 1
		return err == nil && !strings.Contains(nodes, "handshake") && known == len(c.Servers), fmt.Sprint(nodes, err)
	})
}

// bus returns the port of a node's cluster bus.
func (c *ClusterNodes) bus(s *Server) string {
	c.t.Helper()
	nodes := s.Do(c.t, "CLUSTER", "NODES") // <id> 127.0.0.1:<port>@<bus> myself,…
	for line := range strings.Lines(nodes) {
		if _, after, ok := strings.Cut(line, "@"); ok && strings.Contains(line, "myself") {
			return after[:strings.IndexAny(after, " ,")]
		}
	}
	c.t.Fatalf("redistest: no bus port in %q", nodes)
	return ""
}

// Settled waits until every slot is served and all running nodes say so.
func (c *ClusterNodes) Settled() {
	c.t.Helper()
	c.until(func(s *Server) (bool, string) {
		f, err := s.fields("CLUSTER", "INFO")
		return err == nil && f["cluster_state"] == "ok" && f["cluster_slots_ok"] == strconv.Itoa(Slots), fmt.Sprint(f, err)
	})
}

// until waits until the condition holds for every node.
func (c *ClusterNodes) until(condition func(*Server) (bool, string)) {
	c.t.Helper()
	for _, s := range c.Servers {
		Eventually(c.t, topologyReady, func() (bool, string) { return condition(s) })
	}
}

// fields returns the fields of a reply whose lines have the form "name:value", as those of INFO and CLUSTER INFO have.
func (s *Server) fields(args ...string) (map[string]string, error) {
	text, err := s.ask(args...)
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[k] = v
		}
	}
	return fields, err
}

// URL returns the address in the form that bridge.Dial takes.
func (c *ClusterNodes) URL() string {
	u := c.Servers[0].URL() + "?"
	for _, s := range c.Servers[1:] {
		u += "addr=" + url.QueryEscape(s.Addr()) + "&"
	}
	return strings.TrimRight(u, "?&")
}

// Server returns a server that stands for the whole cluster.
func (c *ClusterNodes) Server() *Server {
	c.t.Helper()
	return front(c.t, c.URL(), "cluster", c.Servers[0])
}

// Slot returns the slot of a key.
func (c *ClusterNodes) Slot(key string) int {
	c.t.Helper()
	slot, err := strconv.Atoi(c.living().Do(c.t, "CLUSTER", "KEYSLOT", key))
	if err != nil {
		c.t.Fatal(err)
	}
	return slot
}

// living returns a node that answers.
func (c *ClusterNodes) living() *Server {
	for _, s := range c.Servers {
		if _, err := s.ask("PING"); err == nil {
			return s
		}
	}
	c.t.Fatal("redistest: no node of the cluster answers")
	return nil
}

// Owner returns the master that serves a slot, as the running nodes see it, or nil if none does.
func (c *ClusterNodes) Owner(slot int) *Server {
	for _, s := range c.Servers {
		if s.Role() == "master" && s.serves(slot) {
			return s
		}
	}
	return nil
}

// serves reports whether a node itself says that it serves a slot.
func (s *Server) serves(slot int) bool {
	nodes, err := s.ask("CLUSTER", "NODES")
	if err != nil {
		return false
	}
	for line := range strings.Lines(nodes) {
		cells := strings.Fields(line)
		if len(cells) < 8 || !strings.Contains(cells[2], "myself") {
			continue
		}
		for _, span := range cells[8:] {
			first, last, ranged := strings.Cut(span, "-")
			if !ranged {
				last = first
			}
			from, err1 := strconv.Atoi(first)
			to, err2 := strconv.Atoi(last)
			if err1 == nil && err2 == nil && from <= slot && slot <= to {
				return true
			}
		}
	}
	return false
}

// Replica returns a replica of the given master, or nil if it has none that answers.
func (c *ClusterNodes) Replica(master *Server) *Server {
	for _, s := range c.Servers {
		if f, err := s.info("replication"); err == nil && f["role"] == "slave" && f["master_port"] == port(master) {
			return s
		}
	}
	return nil
}

// id returns the node ID of a server.
func (c *ClusterNodes) id(s *Server) string {
	for i, one := range c.Servers {
		if one == s {
			return c.ids[i]
		}
	}
	panic("redistest: not a node of this cluster")
}

// Migrate moves a slot to another master while clients use it, one key at a time, and returns the number of keys. It
// calls between after it has declared the move (SETSLOT), and after each key.
func (c *ClusterNodes) Migrate(slot int, to *Server, between func()) (keys int) {
	c.t.Helper()
	from := c.Served(slot)
	if from == nil || from == to {
		c.t.Fatalf("redistest: slot %d cannot move from %v to %v", slot, from, to)
	}
	number := strconv.Itoa(slot)
	for _, declare := range []struct {
		at    *Server
		what  string
		other string
	}{{to, "IMPORTING", c.id(from)}, {from, "MIGRATING", c.id(to)}} {
		// Try again, because a node may not know yet that the other one was promoted.
		Eventually(c.t, topologyReady, func() (bool, string) {
			_, err := declare.at.ask("CLUSTER", "SETSLOT", number, declare.what, declare.other)
			return err == nil, fmt.Sprint(err)
		})
	}
	between()
	opt := from.opt
	opt.DisableCache, opt.ForceSingleClient = true, true
	client, err := rueidis.NewClient(opt)
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		names, err := client.Do(ctx, client.B().Arbitrary("CLUSTER", "GETKEYSINSLOT", number, "1").Build()).AsStrSlice()
		if err != nil {
			c.t.Fatal(err)
		}
		if len(names) == 0 {
			break
		}
		err = client.Do(ctx, client.B().Arbitrary("MIGRATE", "127.0.0.1", port(to), names[0], "0", "5000").Build()).Error()
		if err != nil && !errors.Is(err, context.Canceled) {
			c.t.Fatalf("redistest: migrate %s: %v", names[0], err)
		}
		keys++
		between()
	}
	// The receiver is told first, because a crash before the others are told then leaves the slot with an owner.
	for _, s := range append([]*Server{to, from}, c.masters(to, from)...) {
		s.Do(c.t, "CLUSTER", "SETSLOT", number, "NODE", c.id(to))
	}
	return keys
}

// Masters returns the running masters.
func (c *ClusterNodes) Masters() []*Server { return c.masters() }

// Switch starts a failover in which a replica takes over from the slot's master in agreement with it, so that nothing
// is lost. It does not wait for the end: see Promoted.
func (c *ClusterNodes) Switch(slot int) {
	c.t.Helper()
	master := c.Served(slot)
	replica := c.Replica(master)
	if replica == nil {
		c.t.Fatalf("redistest: the master of slot %d has no replica", slot)
	}
	replica.Do(c.t, "CLUSTER", "FAILOVER")
}

// Follows waits until a node is a replica of another one and has everything that the other node has received so far.
func (c *ClusterNodes) Follows(replica, master *Server) {
	c.t.Helper()
	Eventually(c.t, topologyReady, func() (bool, string) {
		f, err := replica.info("replication")
		return err == nil && f["role"] == "slave" && f["master_port"] == port(master) && f["master_link_status"] == "up",
			fmt.Sprint(f, err)
	})
}

// masters returns the running masters without the given ones.
func (c *ClusterNodes) masters(without ...*Server) []*Server {
	var found []*Server
next:
	for _, s := range c.Servers {
		for _, w := range without {
			if s == w {
				continue next
			}
		}
		if s.Role() == "master" {
			found = append(found, s)
		}
	}
	return found
}

// Promoted waits until another node than instead serves the slot, and returns that node.
func (c *ClusterNodes) Promoted(slot int, instead *Server) *Server {
	c.t.Helper()
	var owner *Server
	Eventually(c.t, topologyReady, func() (bool, string) {
		owner = c.Owner(slot)
		return owner != nil && owner != instead, "no node was promoted"
	})
	return owner
}

// Served waits until a master serves a slot, and returns that master. While a cluster changes, a slot may have none.
func (c *ClusterNodes) Served(slot int) *Server {
	c.t.Helper()
	return c.Promoted(slot, nil)
}

// Forgets waits until all running nodes have marked a node that does not answer as failed. From then on, they do not
// name that node to clients.
func (c *ClusterNodes) Forgets(gone *Server) {
	c.t.Helper()
	for _, s := range c.Servers {
		if s == gone {
			continue
		}
		Eventually(c.t, topologyReady, func() (bool, string) {
			nodes, err := s.ask("CLUSTER", "NODES")
			for line := range strings.Lines(nodes) {
				if cells := strings.Fields(line); len(cells) > 2 && cells[0] == c.id(gone) {
					return slices.Contains(strings.Split(cells[2], ","), "fail"), nodes
				}
			}
			return false, fmt.Sprint(nodes, err)
		})
	}
}

// InSync waits until every replica of a master has everything that the master has.
func (c *ClusterNodes) InSync(master *Server) {
	c.t.Helper()
	Eventually(c.t, topologyReady, func() (bool, string) {
		f, err := master.info("replication")
		return err == nil && f["connected_slaves"] != "0" &&
			strings.Contains(f["slave0"], ",offset="+f["master_repl_offset"]+","), fmt.Sprint(f, err)
	})
}
