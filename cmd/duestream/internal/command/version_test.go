package command_test

import (
	"strings"
	"testing"

	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
)

// version and --version need no server. Without a command, the program prints its help and succeeds.
func TestVersionAndHelpNeedNoServer(t *testing.T) {
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	if out := c.OK("version"); !strings.HasPrefix(out, "duestream devel (go1.") {
		t.Error(out)
	}
	var v struct{ Version, Go string }
	c.JSON(&v, "version")
	if v.Version != "devel" || v.Go == "" {
		t.Errorf("%+v", v)
	}
	if out := c.OK("--version"); out != "duestream devel\n" {
		t.Error(out)
	}
	if out := c.OK(); !strings.Contains(out, "Available Commands:") {
		t.Error(out)
	}
}
