package lua

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/rueidis"
)

// Errors for callers to branch on. Each is in the chain of an error that also has the name of the script or command,
// and the server's own text.
var (
	// ErrFull: the server is at maxmemory and refused a write. Nothing of the call was done.
	ErrFull = errors.New("redis is full")
	// ErrWrongType: a key of the queue has another type. Nothing of the call was done.
	ErrWrongType = errors.New("a key holds the wrong type")
	// ErrNoGroup: the consumer group or its stream is gone.
	ErrNoGroup = errors.New("no such consumer group")
	// ErrUnavailable: the server cannot take the command now (down, loading, read-only, busy, without its replicas,
	// moving the slot). After a connection error it is unknown whether the command was executed: see Ambiguous.
	ErrUnavailable = errors.New("redis is unavailable")
	// ErrDenied: the ACL user may not do this, or the password is wrong.
	ErrDenied = errors.New("redis denies access")
	// ErrUntrusted: no TLS connection could be made: one side does not accept the other's certificate, or the server
	// does not speak TLS.
	ErrUntrusted = errors.New("the TLS handshake with redis failed")
	// ErrUnsupported: the server does not know a command that duestream needs.
	ErrUnsupported = errors.New("redis server is unsupported")
)

var serverErrors = []struct {
	text string
	kind error
}{
	{"OOM ", ErrFull},
	{"WRONGTYPE", ErrWrongType},
	{"NOGROUP", ErrNoGroup},
	{"UNBLOCKED the stream key no longer exists", ErrNoGroup},
	{"LOADING", ErrUnavailable}, {"BUSY ", ErrUnavailable}, {"READONLY", ErrUnavailable}, {"NOREPLICAS", ErrUnavailable},
	{"MISCONF", ErrUnavailable}, {"CLUSTERDOWN", ErrUnavailable}, {"TRYAGAIN", ErrUnavailable}, {"MASTERDOWN", ErrUnavailable},
	{"UNBLOCKED", ErrUnavailable}, {"NOSCRIPT", ErrUnavailable}, {"UNKILLABLE", ErrUnavailable}, {"CROSSSLOT", ErrUnsupported},
	{"NOPERM", ErrDenied}, {"NOAUTH", ErrDenied}, {"WRONGPASS", ErrDenied},
	{"The user executing the script can't", ErrDenied}, {"ACL failure in script", ErrDenied},
	{"unknown command", ErrUnsupported}, {"Unknown Redis command", ErrUnsupported},
}

// errPart: a call that was made in parts failed, and its earlier parts were executed.
var errPart = errors.New("a part of the call was executed")

type kindError struct {
	what string
	kind error
	err  error
}

func (e *kindError) Error() string   { return fmt.Sprintf("%s: %v: %v", e.what, e.kind, e.err) }
func (e *kindError) Unwrap() []error { return []error{e.kind, e.err} }

// Classify wraps an error of a Redis call with one of the sentinels above. Context errors and nil replies pass through.
func Classify(what string, err error) error {
	var known *kindError
	var re *rueidis.RedisError // rueidis' own predicates do not unwrap
	switch {
	case err == nil, errors.Is(err, rueidis.Nil), errors.As(err, &known):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", what, err)
	}
	if errors.As(err, &re) {
		if isRedirection(re) { // the connection does not follow redirections
			return &kindError{what, ErrUnavailable, err}
		}
		text := re.Error()
		for _, c := range serverErrors {
			if strings.HasPrefix(text, c.text) || strings.HasPrefix(text, "ERR "+c.text) {
				if c.kind == ErrDenied {
					err = denied(re)
				}
				return &kindError{what, c.kind, err}
			}
		}
		// Some servers put their own words before the code of an inner command.
		for _, c := range serverErrors {
			if strings.Contains(text, c.text) {
				return &kindError{what, c.kind, err}
			}
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	// The server did not answer: the connection broke, or no connection could be made.
	if untrusted(err) {
		return &kindError{what, ErrUntrusted, err}
	}
	return &kindError{what, ErrUnavailable, err}
}

// untrusted reports a failed TLS handshake. With TLS 1.3, a server refuses our certificate only after the handshake.
func untrusted(err error) bool {
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var op *net.OpError
	return errors.As(err, &certificate) || errors.As(err, &record) || errors.As(err, &op) &&
		(op.Op == "remote error" || op.Op == "local error")
}

// Unsent reports whether no part of the call was sent, because there was no connection.
func Unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && !errors.Is(err, errPart)
}

// Ambiguous reports whether the call may have been executed although it failed, because its reply was lost or the
// caller stopped waiting. An error about arguments is not ambiguous, because Redis was not asked.
func Ambiguous(err error) bool {
	if err == nil || errors.Is(err, ErrInvalid) {
		return false
	}
	var re *rueidis.RedisError
	return errors.Is(err, errPart) || !errors.As(err, &re)
}

// Temporary reports whether the same call may succeed later without anyone changing anything.
func Temporary(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}

// hinted is an error with a hint of its own: what an operator should check next.
type hinted struct{ text, hint string }

func (e *hinted) Error() string { return e.text }

// NewHinted returns a sentinel for which Hint returns the given hint.
func NewHinted(text, hint string) error { return &hinted{text, hint} }

// answers are the error codes of a server that is up but cannot serve the call, each with a hint: what to check next.
var answers = []struct{ code, hint string }{
	{"TRYAGAIN", "a slot of the cluster is on its way to another server, which may last minutes; nothing is lost: try again"},
	{"CLUSTERDOWN", "the cluster has no master for this slot: `redis-cli CLUSTER INFO` and `CLUSTER NODES` say which is away"},
	{"LOADING", "the server reads its data after a start: try again; `redis-cli INFO persistence` says how far it is"},
	{"BUSY", "a script or function runs for too long: `redis-cli INFO commandstats` and SLOWLOG show whose it is"},
	{"READONLY", "this is a replica: give the address of the master, or those of the sentinels"},
	{"MASTERDOWN", "this is a replica that has lost its master: give the address of the master, or those of the sentinels"},
	{"NOREPLICAS", "the server refuses writes until min-replicas-to-write replicas are good: `redis-cli INFO replication`"},
	{"MISCONF", "the server refuses writes because it could not save: is the disk full? `redis-cli INFO persistence`"},
}

// Hint returns what an operator should check next; "" if nothing is known.
func Hint(err error) string {
	if known := (*hinted)(nil); errors.As(err, &known) {
		return known.hint
	}
	if re := (*rueidis.RedisError)(nil); errors.Is(err, ErrUnavailable) && errors.As(err, &re) {
		for _, a := range answers {
			if strings.Contains(re.Error(), a.code) { // some servers put words of their own before the code
				return a.hint
			}
		}
	}
	for _, h := range []struct {
		kind error
		text string
	}{
		{ErrFull, "raise maxmemory, or find what fills it with `duestream stats`; what is scheduled is still delivered"},
		{ErrWrongType, "another program uses a key of this queue: look at it with `redis-cli TYPE`, or use another prefix"},
		{ErrDenied, "check user and password in the URL, and the ACL rules of that user: see docs/operations/users.md"},
		{ErrUntrusted, "is this the port for TLS, and does the URL name the CA (ca=), the name in the server's certificate " +
			"(server_name=), and a certificate of your own (cert=, key=) if the server asks for one?"},
		{ErrUnsupported, "duestream needs Redis 7.0 or Valkey 7.2 at least, with maxmemory-policy noeviction; durability " +
			"fsynced also " +
			"appendonly yes, and Redis 7.2"},
		{ErrNoGroup, "a group exists from the first run of a worker until somebody destroys it: see `duestream stats`"},
		{ErrUnavailable, "check that the server is up, reachable and writable"},
		{context.DeadlineExceeded, "Redis does not answer in time: is it overloaded, paused or cut off?"},
	} {
		if errors.Is(err, h.kind) {
			return h.text
		}
	}
	return ""
}

// returnedError classifies an error text that a script returned as a value.
func returnedError(script, text string) error {
	for _, c := range serverErrors {
		if strings.HasPrefix(strings.TrimPrefix(text, "ERR "), c.text) {
			return fmt.Errorf("%s: %w: %s", script, c.kind, text)
		}
	}
	return fmt.Errorf("%s: %s", script, text)
}
