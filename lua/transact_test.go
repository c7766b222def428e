package lua

import (
	"errors"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// Before, MULTI was sent in one go with its commands. For a user without the right to MULTI, the server then executed
// each command at once, and overwrote changes that others had made meanwhile. A user without the right to EXEC must not
// leave an open transaction to the next user of the connection.
func TestATransactionThatIsRefusedDoesNothing(t *testing.T) {
	t.Parallel()
	onServers(t, func(b *testQueue) {
		guest, may := limited(b)
		key := b.k.Policy
		transact := func() (done bool, err error) {
			err = guest.c.Dedicated(func(c rueidis.DedicatedClient) error {
				done, err = Transact(b.T.Context(), c, key, c.B().Hset().Key(key).FieldValue().FieldValue("a", "1").Build(),
					c.B().Hdel().Key(key).Field("b").Build())
				return err
			})
			return done, err
		}
		for _, lacks := range []string{"multi", "exec", "hset", "hdel"} {
			may("+@all", "-"+lacks)
			done, err := transact()
			redistest.Want(b.T, "done without "+lacks, done, false)
			if !errors.Is(err, ErrDenied) {
				b.Errorf("without %s: %v", lacks, err)
			}
			n, err := b.c.Do(b.T.Context(), b.c.B().Exists().Key(key).Build()).AsInt64()
			redistest.Want(b.T, "written without "+lacks, n == 0 && err == nil, true)
			may("+@all")
			text, err := guest.c.Do(b.T.Context(), guest.c.B().Echo().Message("x").Build()).ToString()
			if text != "x" || err != nil {
				b.Errorf("after a refusal of %s: %q, %v", lacks, text, err)
			}
		}
		done, err := transact()
		redistest.Want(b.T, "done", done && err == nil, true)
	})
}
