// Package cli has what all commands share: the connection and its flags, the wrappers that run a command, the checks
// and completions of arguments, and consent.
package cli

import (
	"io"
	"time"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/cmd/duestream/internal/flags"
	"github.com/duestream/duestream/cmd/duestream/internal/output"
)

// App is one run of the command: its streams, and the flags that all commands share.
type App struct {
	output.Output
	In io.Reader

	RedisURL, Prefix string
	durability       flags.Durability
	oldBridges       flags.Switch                // value of the flag --allow-old-bridges
	AllowOldBridges  bool                        // value of --allow-old-bridges, or without it of the environment
	PasswordsFrom    []string                    // sources of the passwords that are not in the URL
	Passwords        func(*rueidis.ClientOption) // sets the passwords that are not in the URL

	Version string // of this program
	Started bool   // arguments and flags were accepted, and the command has begun

	// serverClock returns the clock of the server that holds a queue, and for "" the clock of any server. It is nil
	// until there is a connection.
	serverClock func(queue string) (time.Time, error)
}
