package redistest

import (
	"strings"
	"testing"
)

// TestClusterIntroducesAgain makes two nodes forget each other, as if their handshake had failed, and expects that they are
// introduced again.
func TestClusterIntroducesAgain(t *testing.T) {
	c := Cluster(t, 3, 0)
	c.Servers[0].Do(t, "CLUSTER", "FORGET", c.ids[1])
	c.Servers[1].Do(t, "CLUSTER", "FORGET", c.ids[0])
	if nodes := c.Servers[0].Do(t, "CLUSTER", "NODES"); strings.Contains(nodes, c.ids[1]) {
		t.Fatalf("the first node still knows the second one:\n%s", nodes)
	}
	c.acquainted()
	c.Settled()
}
