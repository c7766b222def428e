package lua

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var takeScript = load("take", []string{"bucket"}, []string{"interval", "burst", "n"}, nil)

// Take takes n tokens, 1 to MaxBurst, out of the token bucket at a key. If it returns 0, they were taken. Else no token
// was taken, and n tokens can be taken after the returned time. If n is above burst, the tokens are taken when the
// bucket is full, and the next caller waits for the missing ones. The key exists only while the bucket is not full.
func Take(ctx context.Context, c rueidis.Client, bucket string, interval time.Duration, burst, n int) (time.Duration, error) {
	return askBucket(ctx, c, bucket, interval, burst, max(n, 1))
}

// UntilNext returns the time until a token can be taken out of a bucket. A negative result says for how long a token
// could have been taken already; it is at most the time in which the bucket's other tokens came back.
func UntilNext(ctx context.Context, c rueidis.Client, bucket string, interval time.Duration, burst int) (time.Duration, error) {
	return askBucket(ctx, c, bucket, interval, burst, 0)
}

// PutBack gives back tokens that were taken in vain.
func PutBack(ctx context.Context, c rueidis.Client, bucket string, interval time.Duration, burst, n int) error {
	_, err := askBucket(ctx, c, bucket, interval, burst, -n)
	return err
}

func askBucket(ctx context.Context, c rueidis.Client, key string, interval time.Duration, burst, n int) (time.Duration, error) {
	us, err := takeScript.integer(ctx, c, []string{key},
		[]string{strconv.FormatInt(interval.Nanoseconds(), 10), strconv.Itoa(burst), strconv.Itoa(n)})
	return time.Duration(us) * time.Microsecond, err
}
