package model

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/duestream/duestream/lua"
)

// Flow holds the limits on messages that become ready. The rate of a model is 1/h, and its clock stands still: so
// Burst messages pass until the key of the bucket is deleted.
type Flow struct {
	Burst int // 0 = no rate
	Spent int
	Free  bool // retries are exempt from the rate
	Limit int  // ready limit; 0 = none
}

// limits are the flows that sequences use.
var limits = []Flow{{}, {Burst: 1}, {Limit: 1}, {Burst: 2, Free: true}, {Limit: 2}, {Burst: 1, Free: true, Limit: 1}}

// passes reports whether a member is exempt from a ready limit, because its message was ready before.
func passes(member string) bool { return strings.Contains(member, lua.Separator) }

// room returns how many messages may become ready under the ready limit.
func (q *Queue) room() int { return q.Flow.Limit - q.waiting() }

// waiting returns how many entries the slowest group has not read, in the way a drain counts them.
func (q *Queue) waiting() int {
	n := len(q.Stream)
	if n == 0 || n < q.Flow.Limit || len(q.Groups) == 0 {
		return n
	}
	last, pending := "", 0
	for _, g := range q.Groups {
		switch {
		case last == "" || compareIDs(g.Last, last) < 0:
			last, pending = g.Last, len(g.Pending)
		case g.Last == last:
			pending = max(pending, len(g.Pending))
		}
	}
	if n-pending >= q.Flow.Limit && compareIDs(q.Stream[n-1].ID, last) <= 0 {
		return 0
	}
	return n - pending
}

// holdsBack returns the limit that makes a due member wait, or "".
func (q *Queue) holdsBack(member string, room int) string {
	switch f := q.Flow; {
	case f.Burst > 0 && f.Spent >= f.Burst && !(f.Free && passes(member)):
		return lua.HeldByRate
	case f.Limit > 0 && room < 1 && !passes(member):
		return lua.HeldByReadyLimit
	}
	return ""
}

// spend counts a member that became ready.
func (q *Queue) spend(member string, room *int) {
	*room--
	if q.Flow.Burst > 0 && !(q.Flow.Free && passes(member)) {
		q.Flow.Spent++
	}
}

// commands returns commands that write a flow into the policy, with a full bucket.
func (f Flow) commands(k lua.Keys) [][]string {
	set := func(name, value string) []string {
		if value == "" || value == "0" {
			return []string{"HDEL", k.Policy, name}
		}
		return []string{"HSET", k.Policy, name, value}
	}
	rate, free := "", ""
	if f.Burst > 0 {
		rate = "1/h"
	}
	if f.Free {
		free = "1"
	}
	return [][]string{set("rate", rate), set("burst", strconv.Itoa(f.Burst)), set("free_retries", free),
		set("ready_limit", strconv.Itoa(f.Limit)), {"DEL", k.Rate}}
}

func (f Flow) String() string {
	return fmt.Sprintf("burst %d, free %v, limit %d", f.Burst, f.Free, f.Limit)
}
