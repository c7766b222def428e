package lua

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/duestream/duestream/integration/redistest"
)

// Each error text, copied from a real server, has its kind, however often the error is wrapped.
func TestClassifyServerErrors(t *testing.T) {
	everywhere(t, func(b *testQueue) {
		for text, kind := range map[string]error{
			"OOM command not allowed when used memory > 'maxmemory'.":                                                        ErrFull,
			"OOM command not allowed when used memory > 'maxmemory'. script: 8a6b, on @user_script":                          ErrFull,
			"WRONGTYPE Operation against a key holding the wrong kind of value":                                              ErrWrongType,
			"NOGROUP No such key 'x' or consumer group 'g' in XREADGROUP with GROUP option":                                  ErrNoGroup,
			"UNBLOCKED the stream key no longer exists":                                                                      ErrNoGroup,
			"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)":                   ErrUnavailable,
			"LOADING Redis is loading the dataset in memory":                                                                 ErrUnavailable,
			"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":                         ErrUnavailable,
			"BUSY Valkey is busy running a script.":                                                                          ErrUnavailable,
			"READONLY You can't write against a read only replica.":                                                          ErrUnavailable,
			"NOREPLICAS Not enough good replicas to write.":                                                                  ErrUnavailable,
			"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.":               ErrUnavailable,
			"CLUSTERDOWN Hash slot not served":                                                                               ErrUnavailable,
			"TRYAGAIN Multiple keys request during rehashing of slot":                                                        ErrUnavailable,
			"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                               ErrUnavailable,
			"NOSCRIPT No matching script. Please use EVAL.":                                                                  ErrUnavailable,
			"UNKILLABLE Sorry the script already executed write commands against the dataset.":                               ErrUnavailable,
			"CROSSSLOT Keys in request don't hash to the same slot":                                                          ErrUnsupported,
			"NOPERM this user has no permissions to run the 'evalsha' command":                                               ErrDenied,
			"NOAUTH Authentication required.":                                                                                ErrDenied,
			"WRONGPASS invalid username-password pair or user is disabled.":                                                  ErrDenied,
			"ERR The user executing the script can't run this command or subcommand script: 8a6b, on @user_script:1.":        ErrDenied,
			"ERR ACL failure in script: User x has no permissions to run the 'zadd' command script: 8a6b, on @user_script:1": ErrDenied,
			"ERR unknown command 'XAUTOCLAIM', with args beginning with: ":                                                   ErrUnsupported,
			"ERR Unknown Redis command called from script script: 8a6b":                                                      ErrUnsupported,
			"ERR Error compiling script (new function): :3: NOGROUP No such key 'x'":                                         ErrNoGroup,
			"BUSYGROUP Consumer Group name already exists":                                                                   nil,
			"ERR value is not an integer or out of range":                                                                    nil,
		} {
			raw := b.try("EVAL", "return redis.error_reply(ARGV[1])", "0", text).Error()
			if raw == nil {
				b.Fatalf("no error for %q", text)
			}
			for _, err := range []error{Classify("drain", raw), Classify("drain", fmt.Errorf("wrapped: %w", raw)),
				Classify("twice", Classify("drain", raw))} {
				for _, k := range []error{ErrFull, ErrWrongType, ErrNoGroup, ErrUnavailable, ErrDenied, ErrUnsupported} {
					if errors.Is(err, k) != (k == kind) {
						b.Errorf("%q is %v: %v", text, k, errors.Is(err, k))
					}
				}
				redistest.Want(b, "ambiguous: "+text, Ambiguous(err), false)
				redistest.Want(b, "temporary: "+text, Temporary(err), kind == ErrUnavailable)
				code, _, _ := strings.Cut(text, " ")
				if kind == ErrUnavailable && !slices.Contains([]string{"UNBLOCKED", "NOSCRIPT", "UNKILLABLE"}, code) &&
					Hint(err) == Hint(ErrUnavailable) {
					b.Errorf("%q has the hint of a server that may not run", text)
				}
				if !strings.Contains(err.Error(), "drain") || !strings.Contains(err.Error(), strings.TrimPrefix(text, "ERR ")) ||
					kind != nil && strings.Contains(err.Error(), "twice") {
					b.Errorf("%q reads %q", text, err)
				}
			}
		}
	})
}

// An error that is no reply of the server counts as unavailable, ambiguous or temporary by its kind, and stays in the
// chain of the classified error.
func TestClassifyOtherErrors(t *testing.T) {
	for _, c := range []struct {
		err                               error
		unavailable, ambiguous, temporary bool
	}{
		{nil, false, false, false},
		{rueidis.Nil, false, false, false},
		{context.Canceled, false, true, false},
		{context.DeadlineExceeded, false, true, true},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), false, true, true},
		{io.EOF, true, true, true},
		{os.ErrDeadlineExceeded, true, true, true},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, true, true, true},
		{rueidis.ErrClosing, true, true, true},
		{Invalid("id", "", "must not be empty"), true, false, true},
	} {
		got := Classify("ack", c.err)
		if c.err != nil && !errors.Is(got, c.err) {
			t.Errorf("%v is lost in %v", c.err, got)
		}
		redistest.Want(t, fmt.Sprint(c.err, " is unavailable"), errors.Is(got, ErrUnavailable), c.unavailable)
		redistest.Want(t, fmt.Sprint(c.err, " is ambiguous"), Ambiguous(got), c.ambiguous && c.err != rueidis.Nil)
		redistest.Want(t, fmt.Sprint(c.err, " is temporary"), Temporary(got), c.temporary)
	}
	redistest.Want(t, "classified nil", Classify("x", rueidis.Nil), error(rueidis.Nil))
}

// The answers of real servers to real mistakes: an old server's missing command, a user without rights, a lost
// connection.
func TestErrorsOfRealServers(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *redistest.Server) {
		b := newTestQueue(t, s)
		user := fmt.Sprintf("u%d", b.now())
		b.do("ACL", "SETUSER", user, "on", ">pw", "~*", "+@all", "-zadd")
		defer b.do("ACL", "DELUSER", user)
		limited := *b
		limited.c = s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password, o.ForceSingleClient = user, "pw", true })
		_, err := Enqueue(b.ctx, limited.c, b.k, Token{}, []Item{{ID: "m", When: After(1)}}, Durability{})
		if !errors.Is(err, ErrDenied) || Ambiguous(err) || Temporary(err) {
			t.Errorf("without the right to ZADD: %v", err)
		}
		if err := Classify("x", b.try("NOSUCHCOMMAND", "a").Error()); !errors.Is(err, ErrUnsupported) {
			t.Errorf("unknown command: %v", err)
		}
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		if _, err := Drain(ctx, b.c, b.k, 1, 1); !errors.Is(err, context.Canceled) || Temporary(err) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

// The reply is lost, but the call was executed: the error must be ambiguous.
func TestLostReplyIsAmbiguous(t *testing.T) {
	s := redistest.Shared(t)
	b := newTestQueue(t, s)
	p := s.Proxy(t)
	through := *b
	through.c = p.Client(t, func(o *rueidis.ClientOption) { o.ForceSingleClient = true })
	through.enqueue(Item{ID: "first", When: After(0)}) // the script is known now
	p.CutAfterForward(1, "EVALSHA")
	token, item := Token{Name: "t", Window: 1 << 40}, Item{ID: "m", When: After(0)}
	_, err := Enqueue(b.ctx, through.c, b.k, token, []Item{item}, Durability{})
	if !Ambiguous(err) || !Temporary(err) || !errors.Is(err, ErrUnavailable) {
		t.Fatalf("the reply was lost: %v", err)
	}
	wantList(t, "repeated", through.enqueueAs(token, item), Repeated)
	wantList(t, "ready", ids(b.entries(b.k.Stream)), "first", "m")
}

// Before, a dial error after an executed part of a call counted as a call that was never sent: the caller was told that
// messages were not scheduled which the first part had cancelled.
func TestPartlySentCallIsNotUnsent(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	redistest.Want(t, "no connection", Unsent(fmt.Errorf("x: %w", refused)), true)
	calls := 0
	_, err := inParts([]int{1, 2}, func([]int) ([]int64, error) {
		if calls++; calls == 1 {
			return []int64{1, notReached}, nil
		}
		return nil, refused
	})
	redistest.Want(t, "no connection for the second part", Unsent(err), false)
	redistest.Want(t, "may have been executed", Ambiguous(err), true)
}
