package lua

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var takeScript = load("take", []string{"bucket"}, []string{"interval", "burst", "n"}, nil)

// Take takes n out of the token bucket at a key, which is there while it is not full: 0 = taken, else they are there after so
// long, and nothing was taken. More than burst are taken when it is full, and are owed. n is 1 to MaxBurst.
func Take(ctx context.Context, c rueidis.Client, bucket string, interval time.Duration, burst, n int) (time.Duration, error) {
	return askBucket(ctx, c, bucket, interval, burst, max(n, 1))
}

// UntilNext says when the next one can be taken out of a token bucket: negative = it can, and could for so long, which is at most
// what the others that are in it took to come.
func UntilNext(ctx context.Context, c rueidis.Client, bucket string, interval time.Duration, burst int) (time.Duration, error) {
	return askBucket(ctx, c, bucket, interval, burst, 0)
}

// PutBack gives back what was taken out of a token bucket for nothing.
func PutBack(ctx context.Context, c rueidis.Client, bucket string, interval time.Duration, burst, n int) error {
	_, err := askBucket(ctx, c, bucket, interval, burst, -n)
	return err
}

func askBucket(ctx context.Context, c rueidis.Client, key string, interval time.Duration, burst, n int) (time.Duration, error) {
	us, err := takeScript.integer(ctx, c, []string{key},
		[]string{strconv.FormatInt(interval.Nanoseconds(), 10), strconv.Itoa(burst), strconv.Itoa(n)})
	return time.Duration(us) * time.Microsecond, err
}
