package lua

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var claimScript = load("claim", []string{"once"}, []string{"action", "claimer", "token", "hold", "keep"},
	nil).repeatable()

// MaxHold is the longest time for which a claim can hold.
const MaxHold = 24 * time.Hour

// Claim claims the effect that is recorded at a key. claimer names the attempt: 1 to 32 letters and digits. The claim
// ends after hold, and the record is kept for keep. The call may be repeated with the same claimer. One round trip.
//
//   - token > 0: the attempt holds the claim. The token is above the tokens of all earlier claims in the record.
//   - token = 0, held > 0: another attempt holds the claim for that long.
//   - both 0: the effect has happened.
func Claim(ctx context.Context, c rueidis.Client, key, claimer string, hold, keep time.Duration) (token int64,
	held time.Duration, err error) {
	reply, err := claimScript.integer(ctx, c, []string{key},
		[]string{"claim", claimer, "0", millis(hold), millis(keep)})
	if reply < 0 {
		return 0, time.Duration(-reply) * time.Millisecond, err
	}
	return reply, 0, err
}

// EndClaim ends a claim. If the effect happened, this is recorded, and the record is kept for keep. Otherwise another
// attempt may claim the effect at once. isLast is false if the claim is not the last one, and nothing is changed then.
// If the record is gone, an effect that happened is still recorded, and isLast is true. The call may be
// repeated. One round trip.
func EndClaim(ctx context.Context, c rueidis.Client, key, claimer string, token int64, happened bool,
	keep time.Duration) (isLast bool, err error) {
	action := "give back"
	if happened {
		action = "record"
	}
	reply, err := claimScript.integer(ctx, c, []string{key},
		[]string{action, claimer, strconv.FormatInt(token, 10), "0", millis(keep)})
	return reply == 1, err
}
