package redistest

import (
	"testing"
	"time"
)

func TestSentinelsPromoteAReplica(t *testing.T) {
	t.Parallel()
	start := time.Now()
	w := Sentinels(t, SentinelOptions{Password: "data", SentinelPassword: "watch"})
	t.Logf("ready after %v", time.Since(start))
	master := w.Master()
	if master != w.Servers[0] {
		t.Fatalf("the master is %v", master)
	}
	master.Do(t, "SET", "a", "1")
	w.Caught()
	w.CutReplication()
	master.Do(t, "SET", "b", "1")
	start = time.Now()
	master.Kill()
	next := w.Promoted(master)
	t.Logf("promoted after %v", time.Since(start))
	if a, b := next.Do(t, "EXISTS", "a"), next.Do(t, "EXISTS", "b"); a != "1" || b != "0" {
		t.Errorf("a %s, b %s: what was written after the cut must be lost, and nothing else", a, b)
	}
	master.Start()
	start = time.Now()
	w.Settled()
	w.Caught()
	t.Logf("whole after %v", time.Since(start))
	if master.Role() != "slave" {
		t.Error("the old master is not a replica")
	}
}

// A node that did not run for two seconds on a busy machine once took the cluster down: with one of two masters left,
// the cluster refused everything.
func TestClusterBearsASlowNode(t *testing.T) {
	t.Parallel()
	c := Cluster(t, 2, 0)
	slow, other := c.Servers[0], c.Servers[1]
	slow.Pause()
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); {
		if f, err := other.fields("CLUSTER", "INFO"); err != nil || f["cluster_state"] != "ok" {
			t.Errorf("%v, %v", f, err)
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	slow.Resume()
	c.Settled()
}

func TestClusterFailsOverAndMigrates(t *testing.T) {
	t.Parallel()
	start := time.Now()
	c := Cluster(t, 3, 1, FailsOver...)
	t.Logf("ready after %v", time.Since(start))
	slot := c.Slot("{x}")
	master := c.Owner(slot)
	master.Do(t, "SET", "{x}", "1")
	master.Do(t, "SET", "{x}2", "1")
	replica := c.Replica(master)
	Eventually(t, 5*time.Second, func() (bool, string) { return replica.Do(t, "DBSIZE") == "2", "not replicated" })
	start = time.Now()
	master.Kill()
	next := c.Promoted(slot, master)
	t.Logf("promoted after %v", time.Since(start))
	if next != replica || next.Do(t, "EXISTS", "{x}") != "1" {
		t.Fatal("the wrong node, or without its data")
	}
	to := c.masters(next, master)[0]
	steps := 0
	if keys := c.Migrate(slot, to, func() { steps++ }); keys != 2 || steps != 3 {
		t.Errorf("%d keys, %d steps", keys, steps)
	}
	if c.Promoted(slot, next) != to || to.Do(t, "EXISTS", "{x}2") != "1" {
		t.Error("the slot did not move")
	}
	master.Start()
	c.Settled()
	if _, err := next.ask("GET", "{x}"); err == nil {
		t.Error("the old owner still serves the slot")
	}
}
