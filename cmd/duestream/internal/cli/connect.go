package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/bridge"
	"github.com/duestream/duestream/bridge/admin"
	"github.com/duestream/duestream/cmd/duestream/internal/settings"
)

// Resolve fills in the URL and the prefix: from the flag, else the environment, else the default.
func (a *App) Resolve() error {
	c := settings.Connection{RedisURL: a.RedisURL, Prefix: a.Prefix}
	if err := settings.Fill(&c); err != nil {
		return err
	}
	a.RedisURL, a.Prefix, a.AllowOldBridges = c.RedisURL, c.Prefix, a.oldBridges.Or(c.AllowOldBridges)
	var err error
	if a.Passwords, err = c.Passwords(a.addPasswordSource); err != nil {
		return err
	}
	return admin.CheckPrefix(a.Prefix)
}

// addPasswordSource adds the source of a password to PasswordsFrom, each source once.
func (a *App) addPasswordSource(source string) {
	if !slices.Contains(a.PasswordsFrom, source) {
		a.PasswordsFrom = append(a.PasswordsFrom, source)
	}
}

// Connect dials Redis. The caller closes the connection. It returns as soon as ctx ends.
func (a *App) Connect(ctx context.Context) (*bridge.Redis, error) {
	if err := a.Resolve(); err != nil {
		return nil, err
	}
	type connection struct {
		redis *bridge.Redis
		err   error
	}
	dialled := make(chan connection, 1)
	go func() { // so that an interrupt does not wait for a silent server
		redis, err := bridge.Dial(ctx, a.RedisURL, a.Passwords, FailFast)
		dialled <- connection{redis, err}
	}()
	select {
	case c := <-dialled:
		return c.redis, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// FailFast makes a read return the error of a broken connection. The client library would retry for ever.
func FailFast(opt *rueidis.ClientOption) { opt.DisableRetry = true }

// HostOf returns the URL without user and password.
func HostOf(url string) string { return strings.Replace(bridge.Redact(url), "…@", "", 1) }
