package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/integration/redistest"
)

// Libraries that may be loaded already.
const (
	olderLibrary = "#!lua name=duestream\nredis.register_function{function_name='duestream_version', flags={'no-writes'}, " +
		"callback=function() return {'protocol', '1', 'release', 'v0.0.1', 'source', 'abc'} end}\n"
	newerLibrary = "#!lua name=duestream\nredis.register_function{function_name='duestream_version', flags={'no-writes'}, " +
		"callback=function() return {'protocol', '1', 'release', 'v99.0.0', 'source', 'abc', 'level', '99'} end}\n"
	foreignLibrary = "#!lua name=duestream\nredis.register_function('mine', function() return 1 end)\n"
)

func TestFunctionsAreLoadedShownAndDeleted(t *testing.T) {
	t.Parallel()
	c := newCLIOn(t, redistest.Own(t))
	ours := fmt.Sprintf("%s (%s)", testVersion, admin.FunctionsSource())
	says := func(want string, args ...string) {
		t.Helper()
		if out := c.ok(append([]string{"functions"}, args...)...); out != c.s.Addr()+"  "+want+"\n" {
			t.Errorf("functions %v: %s", args, out)
		}
	}
	shows := func(state admin.LibraryState) {
		t.Helper()
		var report librariesReport
		c.json(&report, "functions", "show")
		if len(report.Servers) != 1 || report.Servers[0].State != state || report.Servers[0].Version != c.s.Version() ||
			report.Source != admin.FunctionsSource() {
			t.Errorf("%+v, want %s", report, state)
		}
		if len(report.Functions) != len(admin.Functions()) || report.Functions[0].Name != "duestream_schedule" ||
			len(report.Functions[0].Keys) != 7 {
			t.Errorf("%+v", report.Functions)
		}
		if out := c.ok("functions", "show"); !strings.Contains(out, "  "+string(state)+"  ") ||
			!strings.Contains(out, "group [entry id error]…\n") {
			t.Error(out)
		}
	}
	shows(admin.LibraryAbsent)
	says("not there", "delete", "--yes")
	says("loaded  "+ours, "load")
	shows(admin.LibraryCurrent)
	says("already there  "+ours, "load")
	if reply := c.s.Do(t, "FCALL", "duestream_register", "1", c.prefix+":queues", "emails", "1"); reply != "1" {
		t.Error(reply)
	}
	says("deleted  "+ours, "delete", "--yes")

	c.s.Do(t, "FUNCTION", "LOAD", olderLibrary)
	var loaded librariesReport
	c.json(&loaded, "functions", "load")
	if one := loaded.Servers[0]; one.Did != "replaced" || one.Source != "abc" || one.Error != "" || loaded.Functions != nil {
		t.Errorf("%+v", loaded)
	}
	shows(admin.LibraryCurrent)

	c.s.Do(t, "FUNCTION", "LOAD", "REPLACE", foreignLibrary)
	shows(admin.LibraryForeign)
	for _, command := range []string{"functions load", "functions delete --yes"} {
		c.fails(exitFailure, []string{c.s.Addr() + ": there is a library called duestream that is not", "hint: whose is it?"}, strings.Fields(command)...)
	}
	shows(admin.LibraryForeign)
	says("replaced  (not ours) → "+ours, "load", "--force")
	says("already there  "+ours, "load", "--force")
}

func TestNewerFunctionsStay(t *testing.T) {
	c := newCLIOn(t, redistest.Own(t))
	c.release = "v1.2.3"
	c.s.Do(t, "FUNCTION", "LOAD", newerLibrary)
	c.fails(exitFailure, []string{"release v99.0.0 of level 99, and this program has level ", "hint: clients may rely on the newer ones"}, "functions", "load")
	if out := c.ok("functions", "load", "--force"); !strings.Contains(out, "replaced  v99.0.0 (abc) → v1.2.3 (") {
		t.Error(out)
	}
	if out := c.ok("functions", "show"); !strings.Contains(out, "current  v1.2.3") {
		t.Error(out)
	}
}

func TestDumpedFunctionsAreThoseThatAreLoaded(t *testing.T) {
	t.Parallel()
	c := newCLIOn(t, redistest.Own(t))
	if name := c.s.Do(t, "FUNCTION", "LOAD", c.ok("functions", "dump")); name != "duestream" {
		t.Fatal(name)
	}
	if out := c.ok("functions", "load"); !strings.Contains(out, "already there") {
		t.Error(out)
	}
}

func TestFunctionsSayWhyNot(t *testing.T) {
	t.Parallel()
	c := newCLIOn(t, redistest.Own(t))
	c.s.Do(t, "ACL", "SETUSER", "low", "on", ">x", "+ping", "+function|list")
	c.url = strings.Replace(c.url, "redis://", "redis://low:x@", 1)
	c.fails(exitFailure, []string{"redis denies access", "FUNCTION LOAD", "hint: the user needs +function|list"}, "functions", "load")
	c.s.Do(t, "ACL", "SETUSER", "low", "-function|list")
	c.fails(exitFailure, []string{"redis denies access", "FUNCTION LIST", "hint: the user needs +function|list"}, "functions", "show")

	c = newCLIOn(t, redistest.At(t, "redis://"+miniredis.RunT(t).Addr(), "in-process"))
	for _, command := range []string{"functions load", "functions show", "functions delete --yes"} {
		c.fails(exitFailure, []string{"the server has no functions", "hint: functions need Redis 7.0", "duestream dev"}, strings.Fields(command)...)
	}
	c.url = unreachable
	c.fails(exitUnavailable, nil, "functions", "load")
	c.fails(exitInvalid, nil, "functions", "load", "emails")
	c.fails(exitInvalid, nil, "functions", "dump", "--force")
	if out := c.ok("functions", "dump"); !strings.HasPrefix(out, "#!lua name=duestream\n") {
		t.Error(out[:50])
	}
}

func TestFunctionsAreLoadedOnEveryMasterThatTakesThem(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 3, 0)
	c := newCLIOn(t, cluster.Server())
	refuses := cluster.Servers[1]
	refuses.Do(t, "ACL", "SETUSER", "default", "-function|load")
	r := c.fails(exitPartly, []string{refuses.Addr() + ": FUNCTION LOAD: redis denies access",
		"failed on 1 of 3 servers, done on the others"}, "functions", "load")
	for _, s := range cluster.Servers {
		if strings.Contains(r.out, s.Addr()+"  loaded  ") == (s == refuses) {
			t.Errorf("%s: %s", s.Addr(), r.out)
		}
	}
	refuses.Do(t, "ACL", "SETUSER", "default", "+function|load")
	if out := c.ok("functions", "load"); strings.Count(out, "  already there  ") != 2 ||
		!strings.Contains(out, refuses.Addr()+"  loaded  ") {
		t.Error(out)
	}
	if out := c.ok("functions", "show"); strings.Count(out, "  master  current  ") != 3 {
		t.Error(out)
	}
	if out := c.ok("functions", "delete", "--yes"); strings.Count(out, "  deleted  ") != 3 {
		t.Error(out)
	}
}
