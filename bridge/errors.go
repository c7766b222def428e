package bridge

import (
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
	"github.com/duestream/duestream/stream"
)

// Errors for errors.Is.
var (
	// ErrInvalid: an argument was refused before Redis was touched. errors.As with *InvalidError gives the field, the
	// value and the rule.
	ErrInvalid = lua.ErrInvalid
	// ErrDuplicate: the ID is scheduled already, or its dedup window has not ended. The message was not stored.
	ErrDuplicate = producer.ErrDuplicate
	// ErrNotScheduled: the message became ready, was cancelled, or never was scheduled.
	ErrNotScheduled = producer.ErrNotScheduled
	// ErrFull: Redis is at maxmemory and refused the message. The message was not stored.
	ErrFull = lua.ErrFull
	// ErrUnavailable: Redis could not be reached, or refused the call for now, until ClientConfig.RetryTimeout had
	// passed. The message may have been stored. Scheduling it again with the same ID and a dedup window is safe.
	ErrUnavailable = lua.ErrUnavailable
	// ErrUncertain: after the call was sent, it failed or its context ended. The server may have executed the call.
	ErrUncertain = producer.ErrUncertain
	// ErrNotDurable: the change was made (the message is stored), but the server did not confirm the configured
	// Durability. errors.As with *NotDurableError gives the number of copies. A repeated call with the same ID waits
	// for the Durability again.
	ErrNotDurable = lua.ErrNotDurable
	// ErrClosed: the Client was closed before.
	ErrClosed = producer.ErrClosed
	// ErrDenied: the ACL user may not run a command, or the password is wrong. errors.As with *DeniedError gives the
	// command, and the documented user that may run it.
	ErrDenied = lua.ErrDenied
	// ErrUntrusted: no TLS connection could be made. One side does not accept the other's certificate, or the port
	// does not speak TLS.
	ErrUntrusted = lua.ErrUntrusted
	// ErrUnsupported: the server is too old, is set to evict keys, or cannot give a Client's Durability.
	ErrUnsupported = lua.ErrUnsupported
	// ErrOldBridge: a bridge of an earlier release is alive that does not serve messages with an ordering key,
	// recurrences or rates. Nothing was written. errors.As with *OldBridgeError gives the bridge.
	ErrOldBridge = lua.ErrOldBridge
	// ErrWrongType: a key of the queue holds a value of another Redis type.
	ErrWrongType = lua.ErrWrongType
	// ErrAbandoned: Worker.Run returned while handlers were still running, because they ignored their cancelled
	// context.
	ErrAbandoned = stream.ErrAbandoned

	// ErrLost, ErrUnreachable, ErrCancelled, ErrStopping and ErrHandlerTimeout say why a handler's context was
	// cancelled: context.Cause returns them. ErrLost: the delivery was reclaimed, and the handler's result has no
	// effect.
	ErrLost = stream.ErrLost

	// ErrUnreachable: the delivery could not be extended for a whole visibility timeout, so another worker may have it.
	ErrUnreachable = stream.ErrUnreachable
	ErrCancelled   = stream.ErrCancelled // the message was cancelled: it is done, whatever the handler returns
	ErrStopping    = stream.ErrStopping  // the worker's ShutdownTimeout has passed

	// ErrHandlerTimeout: the handler ran longer than its message, the policy or WorkerConfig.HandlerTimeout allows.
	ErrHandlerTimeout = stream.ErrHandlerTimeout
)

// InvalidError names the refused field, its value and the rule that it broke: see [lua.InvalidError].
type InvalidError = lua.InvalidError

// DeniedError names the command that the user lacks: see [lua.DeniedError].
type DeniedError = lua.DeniedError

// OldBridgeError names a bridge that is too old to serve the refused write: see [lua.OldBridgeError].
type OldBridgeError = lua.OldBridgeError

// NotDurableError tells which part of the requested Durability was confirmed: see [lua.NotDurableError].
type NotDurableError = lua.NotDurableError
