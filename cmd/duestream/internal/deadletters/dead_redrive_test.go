package deadletters_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
)

// Letters of a deleted group are reported and stay, until --to names a group for them.
func TestDeadRedriveSendsLettersOfAGoneGroupElsewhere(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	letter, other := c.OneLetter("old"), c.OneLetter("older")
	do := func(words ...string) {
		t.Helper()
		if err := c.Redis().Do(t.Context(),
			c.Redis().B().Arbitrary(words[0]).Args(words[1:]...).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	do("XGROUP", "DESTROY", c.Key("q", "stream"), "g")
	do("XGROUP", "CREATE", c.Key("q", "stream"), "new", "0", "MKSTREAM")
	r := c.Fails(exit.Partly, []string{"not redriven: 2 letters"}, "dead", "redrive", "q", "--all")
	if !strings.Contains(r.Out, "redriven 0, gone 0, without payload 0\n2 for groups that do not exist: g (--to "+
		"sends them to "+
		"another group)\n") {
		t.Error(r.Out)
	}
	r = c.Fails(exit.Partly, []string{"not redriven: 2 letters"}, "dead", "redrive", "q", "--all", "--json")
	var got struct {
		GroupGone  int      `json:"group_gone"`
		GoneGroups []string `json:"gone_groups"`
	}
	clitest.Decode(t, r.Out, &got)
	if got.GroupGone != 2 || len(got.GoneGroups) != 1 || got.GoneGroups[0] != "g" {
		t.Errorf("%+v in %s", got, r.Out)
	}
	c.Fails(exit.Partly, []string{"there is no group g", "--to"}, "dead", "edit", "q", letter, "--payload", "p")
	c.Fails(exit.Invalid, []string{"--to is given, but empty"}, "dead", "redrive", "q", letter, "--to", "")
	c.Fails(exit.Invalid, []string{"--to is given, but empty"}, "dead", "edit", "q", letter, "--payload", "p", "--to", "")
	if out := c.OK("dead", "edit", "q", letter, "--payload", "p", "--to", "new", "--in", "1h"); !strings.Contains(out,
		"for            new\n") {
		t.Error(out)
	}
	if out := c.OK("dead", "redrive", "q", other, "--to", "new", "--in",
		"1h"); out != "redriven 1, gone 0, without payload 0\n" {
		t.Error(out)
	}
	var places []struct{ Group string }
	c.JSON(&places, "show", "q", "order-42")
	if len(places) != 2 || places[0].Group != "new" || places[1].Group != "new" {
		t.Errorf("%+v", places)
	}
}

// Regression: a flag from an unset variable selected all groups, so a purge for one group deleted the letters of all.
func TestDeadLettersAreNotSelectedByEmptyFlags(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	c.OneLetter("p")
	for _, flag := range []string{"--group", "--reason", "--error", "--id"} {
		for _, command := range [][]string{{"purge", "--yes"}, {"redrive"}, {"list"}} {
			args := append([]string{"dead", command[0], "q", flag, "", "--older-than", "1s"}, command[1:]...)
			c.Fails(exit.Invalid, []string{flag + " is given, but empty"}, args...)
		}
	}
	if out := c.OK("dead", "list", "q"); !strings.Contains(out, "order-42") {
		t.Error(out)
	}
}

// A letter with unreadable headers is redriven only if the user gives new headers.
func TestDeadRedriveAsksForHeadersThatCouldNotBeRead(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	r := c.Redis()
	if err := r.Do(t.Context(), r.B().Xadd().Key(c.Key("q", "dead")).Id("*").FieldValue().
		FieldValue("id", "m").FieldValue("payload", "p").
		FieldValue("reason", "malformed").FieldValue("meta", "[]").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	c.OK("queue", "set", "q", "--create", "held=true")
	f := c.Fails(exit.Partly, []string{"not redriven: 1 letter"}, "dead", "redrive", "q", "--all")
	if !strings.Contains(f.Out, "1 whose headers could not be read: give --header, or --no-headers\n") {
		t.Error(f.Out)
	}
	if out := c.OK("dead", "redrive", "q", "--all", "--no-headers"); out != "redriven 1, gone 0, without payload 0\n" {
		t.Error(out)
	}
}

// A redriven message goes only to the group whose letter it was, with the new payload and headers if they are given.
func TestDeadLettersAreRedrivenForTheirGroup(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	all := c.Letters()
	if out := c.OK("dead", "redrive", "q", "--all", "--dry-run"); !strings.HasPrefix(out,
		"would be redriven 6, gone 0, without payload 0\nLETTER ") ||
		strings.Count(out, "\n") != 8 {
		t.Error(out)
	}
	c.OK("queue", "set", "q", "--create", "held=true") // so that redriven messages stay scheduled
	one := all[0]
	if out := c.OK("dead", "redrive", "q", one.Letter, "--payload", "", "--header", "new=1",
		"--in", "1h"); out != "redriven 1, gone 0, without payload 0\n" {
		t.Error(out)
	}
	var places []admin.Place
	c.JSON(&places, "show", "q", one.ID)
	found := false // the redriven message waits for its group, with the new payload and the new header alone
	for _, p := range places {
		if p.State == "retrying" {
			found = p.Group == one.Group && string(p.Payload) == "" && p.Headers["new"] == "1" && len(p.Headers) == 1 &&
				time.Until(p.Due) > 50*time.Minute
		}
	}
	if !found {
		t.Errorf("%+v", places)
	}
	c.Fails(exit.NotFound, []string{"no such dead letter"}, "dead", "redrive", "q", one.Letter)
	r := c.Fails(exit.Partly, []string{"not redriven: 1 letter"}, "dead", "redrive", "q", one.Letter, all[1].Letter,
		"--json")
	var got struct {
		Scheduled, Gone int
		NoPayload       int  `json:"no_payload"`
		DryRun          bool `json:"dry_run"`
	}
	clitest.Decode(t, r.Out, &got)
	if got.Scheduled != 1 || got.Gone != 1 || got.NoPayload != 0 || got.DryRun {
		t.Errorf("%+v", got)
	}
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.OK("dead", "redrive", "q", all[2].Letter, "--payload-file", file)
	c.JSON(&places, "show", "q", all[2].ID)
	if string(places[0].Payload) != "from a file" && string(places[len(places)-1].Payload) != "from a file" {
		t.Errorf("%+v", places)
	}
	if out := c.OK("dead", "redrive", "q", "--id", "*", "--rate", "1000/s",
		"--spread", "1h"); out != "redriven 3, gone 0, without payload 0\n" {
		t.Error(out)
	}
	if out := c.OK("dead", "list", "q"); out != "no dead letters\n" {
		t.Error(out)
	}
}
