package lua

import (
	"context"

	"github.com/redis/rueidis"
)

// AddToken adds a token to a wake stream, and leaves no other in it. Passes on a full server. May be repeated.
func AddToken(ctx context.Context, c rueidis.Client, wake string) error {
	return signal(ctx, c, wake, "doctor")
}
