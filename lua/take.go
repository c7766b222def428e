package lua

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var takeScript = load("take", []string{"bucket"}, []string{"interval", "burst", "n"}, nil)

// Take takes n tokens, 1 to MaxBurst, out of the token bucket at a key. It returns 0 if they were taken; else nothing
// was taken, and they are there after the returned time. More than burst are taken when the bucket is full, and the
// rest is owed. The key exists only while the bucket is not full.
func Take(ctx context.Context, c rueidis.Client, bucket string, interval time.Duration, burst, n int) (time.Duration, error) {
	return askBucket(ctx, c, bucket, interval, burst, max(n, 1))
}

// UntilNext returns after which time a token can be taken out of a bucket. Negative: one can be taken, and could for
// that long, at most for the time in which the bucket's other tokens came back.
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
