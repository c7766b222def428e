package admin

import (
	"cmp"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/lua"
)

// Admin is what an operator can do with the queues of a prefix: every ability of the command is a method of it. It is safe for concurrent
// use, and holds nothing but the connection, which whoever made it closes.
type Admin struct {
	redis  *bridge.Redis
	prefix string
}

// New returns a handle on the queues of a prefix; "" is the default one. Redis is not touched.
func New(r *bridge.Redis, prefix string) *Admin { return &Admin{r, cmp.Or(prefix, lua.DefaultPrefix)} }
