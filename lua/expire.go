package lua

import (
	"context"
	"slices"

	"github.com/redis/rueidis"
)

// Expired is the result of Expire for one member of the schedule.
type Expired int64

// Results of Expire.
const (
	ExpireNone   Expired = 0  // the member is not scheduled
	ExpireNow    Expired = 1  // the next drain makes a dead letter of the member
	ExpireBefore Expired = 2  // the member was due and had expired before the call
	ExpireNoRoom Expired = -1 // the member's meta has no room for an expiry, so nothing was changed
)

var expireScript = load("expire", []string{"due", "meta", "wake", "policy", "history", "turns"}, nil, []string{"member"})

// Expire makes members of the schedule expire now. None of them is delivered: a bridge makes a dead letter of each,
// when it next drains the queue. One round trip for each 1 MiB of metas, and of members.
func Expire(ctx context.Context, c rueidis.Client, k Keys, members []string) ([]Expired, error) {
	reply, err := inParts(members, func(members []string) ([]int64, error) {
		n := fitting(members)
		reply, err := expireScript.integers(ctx, c, []string{k.Due, k.Meta, k.Wake, k.Policy, k.History, k.Turns},
			append(slices.Clone(members[:n]), k.Actor), n, Durability{})
		return append(reply, slices.Repeat([]int64{notReached}, len(members)-n)...), err
	})
	answers := make([]Expired, len(reply))
	for i, n := range reply {
		answers[i] = Expired(n)
	}
	return answers, err
}

// RescheduleEach is Reschedule for many members of the schedule, in one round trip. Each has a script call of its own,
// so the server may execute other commands between two of them. With an error, some may have been moved.
func RescheduleEach(ctx context.Context, c rueidis.Client, k Keys, members []string, when []When) (moved []bool, err error) {
	keys := rescheduleKeys(k)
	cmds := make([]rueidis.Completed, len(members))
	for i, member := range members {
		cmds[i] = c.B().Evalsha().Sha1(rescheduleScript.sha).Numkeys(int64(len(keys))).Key(keys...).
			Arg(member, string(when[i]), k.Actor).Build()
	}
	moved = make([]bool, len(members))
	if len(cmds) == 0 {
		return moved, nil
	}
	for i, reply := range c.DoMulti(ctx, cmds...) {
		answers, err := reply.AsIntSlice()
		if re, answered := rueidis.IsRedisErr(err); answered && re.IsNoScript() {
			_, moved[i], err = Reschedule(ctx, c, k, members[i], when[i], Durability{})
			if err != nil {
				return moved, err
			}
			continue
		}
		if err != nil {
			return moved, Classify(rescheduleScript.name, err)
		}
		moved[i] = len(answers) == 2 && answers[0] == 1
	}
	return moved, nil
}
