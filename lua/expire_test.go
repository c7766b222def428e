package lua

import (
	"fmt"
	"strings"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
)

// expire calls Expire, which must not fail.
func (b *testQueue) expire(members ...string) []Expired {
	b.Helper()
	out, err := Expire(b.ctx, b.c, b.k, members)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// Members with more bytes of meta than one call reads take several calls, and each gets its answer.
func TestExpireOfManyBytesTakesSeveralCalls(t *testing.T) {
	onServers(t, func(b *testQueue) {
		var members []string
		for i := range 12 {
			members = append(members, fmt.Sprint("m", i))
			b.do("ZADD", b.k.Due, fmt.Sprint(b.now()+3_600_000), members[i])
			b.do("HSET", b.k.Meta, members[i], `{"h:a":"`+strings.Repeat("a", 300_000)+`"}`)
		}
		for i, got := range b.expire(members...) {
			redistest.Want(b, members[i], got, ExpireNow)
		}
	})
}
