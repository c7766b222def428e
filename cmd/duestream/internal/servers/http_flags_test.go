package servers

import (
	"errors"
	"fmt"
	"testing"

	"github.com/spf13/cobra"

	"github.com/duestream/duestream/integration/redistest"
)

// --push=false turns pushing off, although the environment turns it on.
func TestPushIsTurnedOffByTheFlag(t *testing.T) {
	t.Setenv("DUESTREAM_PUSH", "true")
	for _, one := range []struct {
		args []string
		push bool
	}{
		{nil, true},
		{[]string{"--push"}, true},
		{[]string{"--push=false"}, false},
	} {
		var o httpFlags
		cmd := &cobra.Command{}
		o.flags(cmd, "")
		if err := errors.Join(cmd.ParseFlags(one.args), o.resolve()); err != nil {
			t.Fatal(err)
		}
		redistest.Want(t, fmt.Sprint(one.args), o.push, one.push)
	}
}
