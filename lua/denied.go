package lua

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/redis/rueidis"
)

// DeniedError names the command that the user may not run. It is in the chain of an error that is ErrDenied. If the
// server does not name the command, the chain has ErrDenied without a DeniedError.
type DeniedError struct {
	Command string // "XTRIM", "XGROUP CREATE"
	// Script, Key and Users are set if a script was refused. A script checks its user's rights before it changes
	// anything, so nothing was changed. Users are the users of docs/operations/users.md that may run the script.
	Script, Key string
	Users       []string

	err *rueidis.RedisError
}

func (e *DeniedError) Error() string {
	if e.Script == "" {
		return e.err.Error()
	}
	return fmt.Sprintf("%s (of the documented users, %s may)", e.err.Error(), strings.Join(e.Users, ", "))
}

func (e *DeniedError) Unwrap() error { return e.err }

var (
	guardRefusal  = regexp.MustCompile(`NOPERM this user lacks ([A-Z ]+) on "(.*)", which script (\w+) may need`)
	serverRefusal = regexp.MustCompile(`ermissions to (?:run|execute) the '([^']+)' command`)
)

// denied returns a *DeniedError if the error names the command, else the error itself.
func denied(err *rueidis.RedisError) error {
	if m := guardRefusal.FindStringSubmatch(err.Error()); m != nil {
		return &DeniedError{Command: m[1], Key: m[2], Script: m[3], Users: Users(m[3]), err: err}
	}
	if m := serverRefusal.FindStringSubmatch(err.Error()); m != nil {
		return &DeniedError{Command: strings.ToUpper(strings.ReplaceAll(m[1], "|", " ")), err: err}
	}
	return err
}
