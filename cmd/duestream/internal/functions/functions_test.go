package functions_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/functions"
	"github.com/duestream/duestream/integration/redistest"
)

// Libraries called duestream that somebody may have loaded already: by an older program, by a newer one, and of another
// origin. "newer" has a higher level than this program.
const (
	olderLibrary = "#!lua name=duestream\nredis.register_function{function_name='duestream_version', flags={'no-writes'}, " +
		"callback=function() return {'protocol', '1', 'release', 'v0.0.1', 'source', 'abc'} end}\n"
	newerLibrary = "#!lua name=duestream\nredis.register_function{function_name='duestream_version', flags={'no-writes'}, " +
		"callback=function() return {'protocol', '1', 'release', 'v99.0.0', 'source', 'abc', 'level', '99'} end}\n"
	foreignLibrary = "#!lua name=duestream\nredis.register_function('mine', function() return 1 end)\n"
)

// functions load, show and delete on one server. An older library is replaced; a library of another origin only with
// --force.
func TestFunctionsAreLoadedShownAndDeleted(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t))
	ours := fmt.Sprintf("%s (%s)", clitest.Version, admin.FunctionsSource())
	// says checks the output of a functions command, without the address of the server.
	says := func(want string, args ...string) {
		t.Helper()
		if out := c.OK(append([]string{"functions"}, args...)...); out != c.Server.Addr()+"  "+want+"\n" {
			t.Errorf("functions %v: %s", args, out)
		}
	}
	// shows checks that functions show reports the library in a state, and lists the functions.
	shows := func(state admin.LibraryState) {
		t.Helper()
		var report functions.LibrariesReport
		c.JSON(&report, "functions", "show")
		if len(report.Servers) != 1 || report.Servers[0].State != state || report.Servers[0].Version != c.Server.Version() ||
			report.Source != admin.FunctionsSource() {
			t.Errorf("%+v, want %s", report, state)
		}
		if len(report.Functions) != len(admin.Functions()) || report.Functions[0].Name != "duestream_schedule" ||
			len(report.Functions[0].Keys) != 7 {
			t.Errorf("%+v", report.Functions)
		}
		if out := c.OK("functions", "show"); !strings.Contains(out, "  "+string(state)+"  ") ||
			!strings.Contains(out, "group [entry id error]…\n") {
			t.Error(out)
		}
	}
	shows(admin.LibraryAbsent)
	says("not there", "delete", "--yes")
	says("loaded  "+ours, "load")
	shows(admin.LibraryCurrent)
	says("already there  "+ours, "load")
	if reply := c.Server.Do(t, "FCALL", "duestream_register", "1", c.Prefix+":queues", "emails", "1"); reply != "1" {
		t.Error(reply)
	}
	says("deleted  "+ours, "delete", "--yes")

	c.Server.Do(t, "FUNCTION", "LOAD", olderLibrary)
	var loaded functions.LibrariesReport
	c.JSON(&loaded, "functions", "load")
	if one := loaded.Servers[0]; one.Did != "replaced" || one.Source != "abc" || one.Error != "" || loaded.Functions != nil {
		t.Errorf("%+v", loaded)
	}
	shows(admin.LibraryCurrent)

	c.Server.Do(t, "FUNCTION", "LOAD", "REPLACE", foreignLibrary)
	shows(admin.LibraryForeign)
	for _, command := range []string{"functions load", "functions delete --yes"} {
		c.Fails(exit.Failure, []string{c.Server.Addr() + ": there is a library called duestream that is not",
			"hint: `redis-cli FUNCTION LIST LIBRARYNAME duestream` shows the library"}, strings.Fields(command)...)
	}
	shows(admin.LibraryForeign)
	says("replaced  (not ours) → "+ours, "load", "--force")
	says("already there  "+ours, "load", "--force")
}

// A program replaces a library of a higher level only with --force, because clients may rely on the newer functions.
func TestNewerFunctionsStay(t *testing.T) {
	c := clitest.NewOn(t, redistest.Own(t))
	c.Release = "v1.2.3"
	c.Server.Do(t, "FUNCTION", "LOAD", newerLibrary)
	c.Fails(exit.Failure, []string{"release v99.0.0 of level 99, and this program has level ",
		"hint: clients may rely on the newer functions"}, "functions", "load")
	if out := c.OK("functions", "load", "--force"); !strings.Contains(out, "replaced  v99.0.0 (abc) → v1.2.3 (") {
		t.Error(out)
	}
	if out := c.OK("functions", "show"); !strings.Contains(out, "current  v1.2.3") {
		t.Error(out)
	}
}

// functions load finds its own library if the output of functions dump was loaded with redis-cli.
func TestDumpedFunctionsAreThoseThatAreLoaded(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t))
	if name := c.Server.Do(t, "FUNCTION", "LOAD", c.OK("functions", "dump")); name != "duestream" {
		t.Fatal(name)
	}
	if out := c.OK("functions", "load"); !strings.Contains(out, "already there") {
		t.Error(out)
	}
}

// If functions cannot be loaded, the error names the reason and the next step: missing permissions, a server without
// functions, no server, or wrong arguments. dump needs no server.
func TestFunctionsSayWhyNot(t *testing.T) {
	t.Parallel()
	c := clitest.NewOn(t, redistest.Own(t))
	c.Server.Do(t, "ACL", "SETUSER", "low", "on", ">x", "+ping", "+function|list")
	c.URL = strings.Replace(c.URL, "redis://", "redis://low:x@", 1)
	c.Fails(exit.Failure, []string{"redis denies access", "FUNCTION LOAD", "hint: the user needs +function|list"},
		"functions", "load")
	c.Server.Do(t, "ACL", "SETUSER", "low", "-function|list")
	c.Fails(exit.Failure, []string{"redis denies access", "FUNCTION LIST", "hint: the user needs +function|list"},
		"functions", "show")

	c = clitest.NewOn(t, redistest.At(t, "redis://"+miniredis.RunT(t).Addr(), "in-process"))
	for _, command := range []string{"functions load", "functions show", "functions delete --yes"} {
		c.Fails(exit.Failure, []string{"the server has no functions", "hint: functions need Redis 7.0", "duestream dev"},
			strings.Fields(command)...)
	}
	c.URL = clitest.Unreachable
	c.Fails(exit.Unavailable, nil, "functions", "load")
	c.Fails(exit.Invalid, nil, "functions", "load", "emails")
	c.Fails(exit.Invalid, nil, "functions", "dump", "--force")
	if out := c.OK("functions", "dump"); !strings.HasPrefix(out, "#!lua name=duestream\n") {
		t.Error(out[:50])
	}
}

// On a cluster, a master that refuses does not keep the others from loading. The exit code is exit.Partly, and a second
// run does the rest.
func TestFunctionsAreLoadedOnEveryMasterThatTakesThem(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	c := clitest.NewOn(t, cluster.Server())
	refuses := cluster.Servers[1]
	refuses.Do(t, "ACL", "SETUSER", "default", "-function|load")
	r := c.Fails(exit.Partly, []string{refuses.Addr() + ": FUNCTION LOAD: redis denies access",
		"failed on 1 of 3 servers, done on the others"}, "functions", "load")
	for _, s := range cluster.Servers {
		if strings.Contains(r.Out, s.Addr()+"  loaded  ") == (s == refuses) {
			t.Errorf("%s: %s", s.Addr(), r.Out)
		}
	}
	refuses.Do(t, "ACL", "SETUSER", "default", "+function|load")
	if out := c.OK("functions", "load"); strings.Count(out, "  already there  ") != 2 ||
		!strings.Contains(out, refuses.Addr()+"  loaded  ") {
		t.Error(out)
	}
	if out := c.OK("functions", "show"); strings.Count(out, "  master  current  ") != 3 {
		t.Error(out)
	}
	if out := c.OK("functions", "delete", "--yes"); strings.Count(out, "  deleted  ") != 3 {
		t.Error(out)
	}
}
