package lua

import (
	"context"

	"github.com/redis/rueidis"
)

// AddToken adds a token to a wake stream, and removes all other tokens. It also succeeds on a full server. It may be
// repeated.
func AddToken(ctx context.Context, c rueidis.Client, wake string) error {
	return signal(ctx, c, wake, "doctor")
}
