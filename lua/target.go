package lua

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

var setTargetScript = load("set_target", []string{"push"}, []string{"group", "before", "target", "most"}, nil)

// SetTarget writes the push target of a group, if the stored target is still before ("" = none). A new target is
// refused if the queue has `most` targets already. done reports whether the target was written. A server at maxmemory
// does not refuse the call. It may be repeated.
func SetTarget(ctx context.Context, c rueidis.Client, k Keys,
	group, before, target string, most int) (done bool, err error) {
	n, err := setTargetScript.integer(ctx, c, []string{k.Push}, []string{group, before, target, strconv.Itoa(most)})
	return n == 1, err
}
