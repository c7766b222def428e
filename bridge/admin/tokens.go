package admin

import (
	"context"

	"github.com/duestream/duestream/bridge/gateway/access"
)

// Verb is a kind of what a token may do: "publish", "consume" or "operate".
//
//	type Verb string
type Verb = access.Verb

// Token is what a gateway lets do whoever has its secret: see docs/ACCESS.md.
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

// Limits are how much a token may ask for in an interval, evenly: all of it at once, when nothing was asked for meanwhile.
//
//	type Limits struct {
//		Read     int // consumed: requests; 0 = no limit
//		Write    int // published: messages; 0 = no limit
//		Interval int // seconds
//	}
//
//	func (*Limits) Check() error
type Limits = access.Limits

// StoredToken is a token as Redis has it.
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

// Verbs are all that a token may have.
func Verbs() []Verb { return access.Verbs() }

// CheckToken refuses what is no name of a token. ErrInvalid.
func CheckToken(name string) error { return access.CheckName(name) }

// AddToken makes a token, and returns its secret: it is stored nowhere, so nobody can find it out again. Gateways take it at
// once. After an error that leaves open whether it was made, a token may be there whose secret nobody has: remove it. Errors:
// ErrInvalid, ErrTokenExists.
func (a *Admin) AddToken(ctx context.Context, t Token) (secret string, err error) {
	return access.Add(ctx, a.redis.Client, a.prefix, t)
}

// AddChosenToken is AddToken with a secret that somebody has chosen, as another system's: 20 to 128 of A-Z a-z 0-9 . _ - that
// nobody else can guess. ErrTokenExists also where a token has that secret.
func (a *Admin) AddChosenToken(ctx context.Context, t Token, secret string) error {
	return access.AddChosen(ctx, a.redis.Client, a.prefix, t, secret)
}

// LimitToken gives the token at a digest limits in place of those it has, nil for none; with fresh only where it has none, else
// ErrTokenExists. Gateways follow within a second. Errors: ErrInvalid, ErrNoToken.
func (a *Admin) LimitToken(ctx context.Context, digest string, l *Limits, fresh bool) error {
	return access.SetLimits(ctx, a.redis.Client, a.prefix, digest, l, fresh)
}

// Tokens returns the tokens of the prefix by name, and what stands among them and is none. Secrets are not known.
func (a *Admin) Tokens(ctx context.Context) ([]StoredToken, error) {
	return access.List(ctx, a.redis.Client, a.prefix)
}

// RemoveToken revokes a token, by its name; what is none goes by its digest. Gateways refuse it within a second. ErrNoToken.
func (a *Admin) RemoveToken(ctx context.Context, name string) error {
	return access.Remove(ctx, a.redis.Client, a.prefix, name)
}
