package admin

import (
	"context"

	"github.com/duestream/duestream/bridge/gateway/access"
)

// Verb is a class of operations that a token may allow: "publish", "consume" or "operate".
//
//	type Verb string
type Verb = access.Verb

// Token is the right at a gateway that a secret gives: see docs/guides/tokens.md.
//
//	type Token struct {
//		Name        string // by which logs and operators call it; no other token has it
//		Description string
//		Verbs       []Verb
//		Queues      []string // names of queues; * stands for any characters, also none
//		// The time from which on it is refused; zero = never. By the clock of the gateway.
//		Expires time.Time
//		Created time.Time
//		// How much may be asked for, of all gateways together: 500/s, 30/m, 1/h; empty = no limit. Burst is how much at
//		// once, 0 = a tenth of a second's, at least one.
//		Rate  bridge.Rate
//		Burst int
//		// The same for publishing and consuming apart, as lmstfy's server has it; not beside a rate. Nil = no limits.
//		Limits *Limits
//	}
//
//	func (*Token) Check() error
type Token = access.Token

// Limits are the token buckets of a token: how many messages or requests pass in an interval. A bucket refills
// evenly, and a full one may be emptied at once.
//
//	type Limits struct {
//		Read     int // consumed: requests; 0 = no limit
//		Write    int // published: messages; 0 = no limit
//		Interval int // seconds
//	}
//
//	func (*Limits) Check() error
type Limits = access.Limits

// StoredToken is a token as it is stored in Redis.
//
//	type StoredToken struct {
//		Digest string // its field in the hash: the SHA-256 of the secret
//		Token
//		Expired bool
//		Problem string // why it cannot be read, and is refused; of the Token nothing is known then
//	}
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
// accept it at once. After an error that leaves open whether the token was stored, a token without a known secret may
// exist: remove it. Errors: ErrInvalid, ErrTokenExists.
func (a *Admin) AddToken(ctx context.Context, t Token) (secret string, err error) {
	return access.Add(ctx, a.redis.Client, a.prefix, t)
}

// AddChosenToken is AddToken with a given secret, for example one from another system: 20 to 128 characters of
// A-Z a-z 0-9 . _ - that are hard to guess. ErrTokenExists: also when another token has the same secret.
func (a *Admin) AddChosenToken(ctx context.Context, t Token, secret string) error {
	return access.AddChosen(ctx, a.redis.Client, a.prefix, t, secret)
}

// LimitToken replaces the limits of the token with the given digest; nil removes them. With fresh it only adds limits:
// ErrTokenExists if the token has some. Gateways follow within a second. Errors: ErrInvalid, ErrNoToken.
func (a *Admin) LimitToken(ctx context.Context, digest string, l *Limits, fresh bool) error {
	return access.SetLimits(ctx, a.redis.Client, a.prefix, digest, l, fresh)
}

// Tokens returns the tokens of the prefix, in the order of their names. Unreadable ones are included, each with its
// Problem. Secrets are not stored, and so not returned.
func (a *Admin) Tokens(ctx context.Context) ([]StoredToken, error) {
	return access.List(ctx, a.redis.Client, a.prefix)
}

// RemoveToken revokes the token of that name, or the unreadable token with that digest. Gateways refuse it within a
// second. ErrNoToken.
func (a *Admin) RemoveToken(ctx context.Context, name string) error {
	return access.Remove(ctx, a.redis.Client, a.prefix, name)
}
