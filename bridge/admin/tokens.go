package admin

import (
	"context"

	"github.com/duestream/duestream/bridge/access"
)

// Verb is a class of operations that a token may allow, for example "publish": see [access.Verb].
type Verb = access.Verb

// Token describes what the holder of a secret may do at a gateway: see [access.Token].
type Token = access.Token

// Limits are the token buckets of a token: see [access.Limits].
type Limits = access.Limits

// StoredToken is a token as it is stored in Redis: see [access.Stored].
type StoredToken = access.Stored

// ErrTokenExists: another token has the name.
var ErrTokenExists = access.ErrExists

// ErrNoToken: no token has the name.
var ErrNoToken = access.ErrNoToken

// Verbs returns all verbs.
func Verbs() []Verb { return access.Verbs() }

// CheckToken returns ErrInvalid unless the text is a valid name of a token.
func CheckToken(name string) error { return access.CheckName(name) }

// AddToken stores a new token and returns its secret. The secret is not stored, and cannot be read again. Gateways
// accept the token at once. If an error leaves open whether the token was stored, a token without a known secret may
// exist: remove that token. Errors: ErrInvalid, ErrTokenExists.
func (a *Admin) AddToken(ctx context.Context, t Token) (secret string, err error) {
	return access.Add(ctx, a.redis.Client, a.prefix, t)
}

// AddChosenToken is AddToken with a given secret, for example one from another system: 20 to 128 characters of
// A-Z a-z 0-9 . _ - that are hard to guess. ErrTokenExists: also when another token has the same secret.
func (a *Admin) AddChosenToken(ctx context.Context, t Token, secret string) error {
	return access.AddChosen(ctx, a.redis.Client, a.prefix, t, secret)
}

// LimitToken replaces the limits of the token with the given digest; nil removes them. If fresh is set, it only adds
// limits: if the token has limits, it returns ErrTokenExists. Gateways follow within a second. Errors: ErrInvalid,
// ErrNoToken.
func (a *Admin) LimitToken(ctx context.Context, digest string, l *Limits, fresh bool) error {
	return access.SetLimits(ctx, a.redis.Client, a.prefix, digest, l, fresh)
}

// Tokens returns the tokens of the prefix, in the order of their names. Unreadable tokens are included, each with its
// Problem. Secrets are not stored, and so not returned.
func (a *Admin) Tokens(ctx context.Context) ([]StoredToken, error) {
	return access.List(ctx, a.redis.Client, a.prefix)
}

// RemoveToken revokes the token of that name, or the unreadable token with that digest. Gateways refuse the token
// within a second. ErrNoToken: there is no such token.
func (a *Admin) RemoveToken(ctx context.Context, name string) error {
	return access.Remove(ctx, a.redis.Client, a.prefix, name)
}
