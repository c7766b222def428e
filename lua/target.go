package lua

import (
	"context"
	"strconv"

	"github.com/redis/rueidis"
)

var setTargetScript = load("set_target", []string{"push"}, []string{"group", "before", "target", "most"}, nil)

// SetTarget writes where the messages of a group are posted to, if that is still what it was before, "" = nothing, and the queue
// has at most so many targets then. It says whether it did. It passes on a full server. May be repeated.
func SetTarget(ctx context.Context, c rueidis.Client, k Keys, group, before, target string, most int) (done bool, err error) {
	n, err := setTargetScript.integer(ctx, c, []string{k.Push}, []string{group, before, target, strconv.Itoa(most)})
	return n == 1, err
}
