package campaign

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/duestream/duestream/integration/acl"
	"github.com/duestream/duestream/integration/redistest"
)

// userOf maps a role to its user in docs/operations/users.md. Faults are made as an administrator.
var userOf = map[string]string{
	roleProducer: "producer", roleBridge: "bridge", roleWorker: "worker", roleHolder: "worker", rolePlain: "plain-worker",
	roleOperator: "operator", roleGateway: "operator",
}

// guests are the documented users, with rights on keys with the prefix of the campaign.
type guests struct {
	users   map[string]acl.User
	cluster []string // additional rights on a cluster
	halts   []string // additional rights of a producer that cancels in any state
}

func readUsers() (*guests, error) {
	text, err := os.ReadFile("../../docs/operations/users.md")
	if err != nil {
		return nil, err
	}
	page := withPrefix(string(text))
	g := &guests{acl.Users(page), acl.Also(page, "every Go program on a cluster"),
		acl.Also(page, "a `Client` that cancels what is ready or running")}
	for role, user := range userOf {
		if g.users[user].Line == "" {
			return nil, fmt.Errorf("docs/operations/users.md has no user %s for a %s", user, role)
		}
	}
	return g, nil
}

// imageWithXDELEX is an image of a server on which scripts use XDELEX. Servers without this command refuse a rule that
// names it.
const imageWithXDELEX = "redis:8.6"

func withPrefix(text string) string { return strings.ReplaceAll(text, "~duestream:", "~"+prefix+":") }

// arguments returns server arguments that create the users. A killed server forgets users made by ACL SETUSER.
func (g *guests) arguments(clustered bool) (args []string) {
	for name, user := range g.users {
		line := strings.TrimPrefix(user.Line, "ACL SETUSER ")
		if !clustered && os.Getenv(redistest.EnvOwnImage) == imageWithXDELEX { // a cluster runs on the PATH's server
			line = strings.ReplaceAll(line, "+xdel ", "+xdel +xdelex ")
		}
		args = append(args, "--user")
		args = append(args, strings.Fields(line)...)
		if clustered {
			args = append(args, g.cluster...)
			if name == "producer" || name == userOf[roleGateway] {
				args = append(args, "+wait") // waits for a replica
			}
		}
		if name == "producer" {
			args = append(args, g.halts...)
		}
		if name == "plain-worker" {
			args = append(args, "+ping") // sent by the client library
		}
	}
	return args
}

// url returns the URL with the user of a role.
func (g *guests) url(url, role string) string {
	user, is := userOf[role]
	if !is {
		return url // it never connects to Redis
	}
	return strings.Replace(url, "redis://", "redis://"+user+":"+g.users[user].Password+"@", 1)
}

// watchDenials collects denials of any user until ctx ends. It reads all the time, because a killed server forgets its
// log.
func (c *controller) watchDenials(ctx context.Context) {
	for pause(ctx, 200*time.Millisecond) {
		denials, err := acl.Denials(ctx, c.client)
		if err != nil {
			continue
		}
		for _, d := range denials {
			if len(c.cfg.Languages) > 0 && isName(d.What) {
				continue
			}
			c.denied.Store(fmt.Sprintf("%s was denied %s (%s, %s)", d.User, d.What, d.Reason, d.Context), true)
		}
	}
}
