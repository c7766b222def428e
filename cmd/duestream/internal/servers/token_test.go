package servers_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/bridge/access"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/clitest"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/servers"
	"github.com/duestream/duestream/lua"
)

// A token may do what its verbs and queues say. Its secret is shown once, when it is added, and never in a list. A
// damaged token is listed as wrong, without control characters.
func TestTokensAreAddedListedAndRemoved(t *testing.T) {
	t.Parallel()
	c := clitest.New(t)
	if out := c.OK("token", "list"); out != "no tokens\n" {
		t.Error(out)
	}
	out := c.OK("token", "add", "shop", "--verb", "publish,consume", "--queue", "orders.*", "--queue", "mail",
		"--expires", "30d",
		"--rate", "500", "--description", "the shop")
	secret, told := strings.CutPrefix(out, "shop  added\nsecret, shown this once: ")
	secret = strings.TrimSpace(secret)
	store, err := access.Open(access.Config{Client: c.Redis(), Prefix: c.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	g, err := store.Authenticate(t.Context(), secret)
	if err != nil || !told || g.Name() != "shop" || !g.May(access.Consume, "orders.new") || !g.May(access.Publish, "mail") ||
		g.May(access.Operate, "mail") || g.May(access.Publish, "other") {
		t.Errorf("%q: %+v, %v", out, g, err)
	}
	var made servers.AddedToken
	clitest.Decode(t, c.OK("token", "add", "robot", "--verb", "operate", "-q", "*", "--json"), &made)
	if g, err := store.Authenticate(t.Context(), made.Secret); err != nil || made.Did != "added" || !g.May(access.Operate, "") {
		t.Errorf("%+v, %v", made, err)
	}
	clitest.Decode(t, c.OK("token", "add", "board", "--verb", "inspect", "-q", "mail", "--json"), &made)
	g, err = store.Authenticate(t.Context(), made.Secret)
	if err != nil || !g.May(access.Inspect, "mail") || g.May(access.Operate, "mail") || g.May(access.Inspect, "orders") {
		t.Errorf("%+v, %v", made, err)
	}
	c.Do("HSET", lua.NewGlobals(c.Prefix).Tokens, "\x1b[1mx", "{}")
	table, lines := c.OK("token", "list"), c.OK("token", "list", "--json")
	for _, want := range []string{"shop", "publish consume", "inspect", "orders.* mail", "500/s", "valid", "expires in",
		"the shop", "wrong: "} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	var row admin.StoredToken
	clitest.Decode(t, strings.Split(lines, "\n")[3], &row)
	if row.Name != "shop" || row.Rate != "500/s" || row.Digest == "" {
		t.Errorf("%+v", row)
	}
	if strings.Contains(table+lines, "dst_") || strings.Contains(table, "\x1b[1mx") {
		t.Error("a secret, or control characters, are shown: ", table, lines)
	}
	if names, _ := c.Offers("token", "rm", ""); fmt.Sprint(names) != "[board robot shop]" {
		t.Error(names)
	}
	if names, _ := c.Offers("token", "add", "x", "--verb", ""); fmt.Sprint(names) != "[publish consume inspect operate]" {
		t.Error(names)
	}
	c.Fails(exit.Failure, []string{"there is a token of that name", "hint:"}, "token", "add", "shop", "--verb",
		"publish", "--queue", "*")
	if out := c.OK("token", "rm", "shop"); out != "shop  removed: gateways refuse it within a second\n" {
		t.Error(out)
	}
	c.Fails(exit.NotFound, []string{"no token of that name", "hint: `duestream token list`"}, "token", "rm", "shop")
}

// Each key is a command line, and its value a part of the error. There is no server, so the error comes before the
// command connects.
func TestWrongTokensAreNamedBeforeRedisIsTouched(t *testing.T) {
	t.Parallel()
	c := &clitest.CLI{T: t, URL: clitest.Unreachable}
	for line, want := range map[string]string{
		"token add ../x --verb publish --queue q":                        `token "../x"`,
		"token add x --verb Publish --queue q":                           `must be one of publish, consume, inspect, operate`,
		"token add x --verb publish --queue {q}":                         `queue "{q}": must be`,
		"token add x --verb publish --queue q --rate 5/d":                `rate "5/d": must be`,
		"token add x --verb publish --queue q --burst 5":                 `burst "5": must stand beside a rate`,
		"token add x --verb publish --queue q --expires -1s":             "expires",
		"token add x --verb publish":                                     "queue",
		"token add x --verb publish, --queue q":                          `verb ""`,
		"token add x --queue q":                                          "verb",
		"token add " + strings.Repeat("a", 129) + " -q q --verb publish": "must be 1 to 128",
		"token rm ..": `token ".."`,
	} {
		c.Fails(exit.Invalid, []string{want}, strings.Fields(line)...)
	}
}
