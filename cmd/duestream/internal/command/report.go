package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/cli"
	"github.com/duestream/duestream/cmd/duestream/internal/exit"
	"github.com/duestream/duestream/cmd/duestream/internal/term"
	"github.com/duestream/duestream/cmd/duestream/internal/usage"
)

// report prints an error and its hint.
func report(a *cli.App, err error) {
	if err == nil {
		return
	}
	text, hint := err.Error(), hintOf(a, err)
	if exit.Code(err) == exit.Interrupted {
		text, hint = "interrupted", ""
	}
	if a.JSON {
		_ = json.NewEncoder(a.Err).Encode(errorAnswer{text, exit.Code(err), hint})
		return
	}
	p := a.Paint(a.Err)
	fmt.Fprintf(a.Err, "%s %s\n", p.Text(term.Bad, "duestream:"), text)
	if hint != "" {
		fmt.Fprintf(a.Err, "%s %s\n", p.Text(term.Strong, "hint:"), hint)
	}
}

// hintOf returns a hint for the user about an error, or "".
func hintOf(a *cli.App, err error) string {
	if bad := (*usage.Error)(nil); errors.As(err, &bad) {
		if !a.Started {
			return "see `duestream --help`, or --help of the command"
		}
		return ""
	}
	if errors.Is(err, bridge.ErrUnavailable) {
		// The hint is another one if the server answered, for example that it loads its data.
		if hint := admin.Hint(err); hint != admin.Hint(bridge.ErrUnavailable) {
			return hint
		}
		return fmt.Sprintf("is Redis running at %s? Set --redis or DUESTREAM_REDIS_URL, or try `duestream dev`",
			cli.HostOf(a.RedisURL))
	}
	if errors.Is(err, bridge.ErrDenied) && len(a.PasswordsFrom) > 0 {
		return fmt.Sprintf("check the password in %s, the user in the URL, and the ACL rules of that user",
			strings.Join(a.PasswordsFrom, " and "))
	}
	return exit.Hint(err)
}

// errorAnswer is the JSON of an error.
type errorAnswer struct {
	Error string `json:"error"`
	Code  int    `json:"code"`
	Hint  string `json:"hint,omitempty"`
}
