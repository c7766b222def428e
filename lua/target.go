package lua

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

var setTargetScript = load("set_target", []string{"push"}, []string{"group", "before", "target", "most"}, nil)

// SetTarget writes the push target of a group, if it is still before ("" = there is none), and the queue then has at
// most so many targets. It returns whether it did. It also succeeds on a full server. It may be repeated.
func SetTarget(ctx context.Context, c rueidis.Client, k Keys, group, before, target string, most int) (done bool, err error) {
	n, err := setTargetScript.integer(ctx, c, []string{k.Push}, []string{group, before, target, strconv.Itoa(most)})
	return n == 1, err
}
