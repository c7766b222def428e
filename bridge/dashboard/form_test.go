package dashboard

import (
	"errors"
	"fmt"
	"testing"

	"github.com/duestream/duestream/integration/redistest"
	"github.com/duestream/duestream/lua"
)

// Each error of a tree that is about a field must be shown beside it. An error without a field must be shown with
// its whole text.
func TestFaultsOf(t *testing.T) {
	t.Parallel()
	invalid := lua.Invalid("expires in", "1s", "must be longer than %s", "2s")
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"none", nil, "[]"},
		{"plain", errors.New("gone"), "[{ gone}]"},
		{"wrapped plain", fmt.Errorf("read: %w", errors.New("gone")), "[{ read: gone}]"},
		{"invalid", invalid, `[{expires_in "1s" must be longer than 2s}]`},
		{"wrapped", fmt.Errorf("write: %w", invalid), `[{expires_in "1s" must be longer than 2s}]`},
		{"of a field", inField("when", invalid), `[{when "1s" must be longer than 2s}]`},
		{"joined", fmt.Errorf("write: %w", errors.Join(inField("a", errors.New("no")), invalid, errors.New("gone"))),
			`[{a no} {expires_in "1s" must be longer than 2s} { gone}]`},
		{"joined plain", errors.Join(errors.New("a"), errors.New("b")), "[{ a\nb}]"},
	} {
		redistest.Want(t, c.name, fmt.Sprint(faultsOf(c.err)), c.want)
	}
	redistest.Want(t, "no error in a field", inField("a", nil), nil)
}
