package bridge

import (
	"github.com/duestream/duestream/lua"
	"github.com/duestream/duestream/scheduler/producer"
	"github.com/duestream/duestream/stream"
)

// What callers branch on with errors.Is.
var (
	// ErrInvalid: an argument was refused before Redis was touched. errors.As with *InvalidError tells field, value and rule.
	ErrInvalid = lua.ErrInvalid
	// ErrDuplicate: the ID is scheduled already, or inside its dedup window. The message was not taken.
	ErrDuplicate = producer.ErrDuplicate
	// ErrNotScheduled: the message is not scheduled any more (it became ready, was cancelled), or never was.
	ErrNotScheduled = producer.ErrNotScheduled
	// ErrFull: Redis is at maxmemory and refused the message. It was not taken.
	ErrFull = lua.ErrFull
	// ErrUnavailable: Redis could not be reached, or could not take the call, for as long as it was repeated. The message may
	// have been taken; scheduling it again with the same ID and a dedup window is safe.
	ErrUnavailable = lua.ErrUnavailable
	// ErrUncertain: the call failed, or its context ended, after it had been sent: it may have been executed or not.
	ErrUncertain = producer.ErrUncertain
	// ErrNotDurable: what was asked is done (the message is stored), but the server did not confirm the configured Durability.
	// errors.As with *NotDurableError tells how many copies there are. Repeating with the same ID waits again.
	ErrNotDurable = lua.ErrNotDurable
	// ErrClosed: the Client was closed before.
	ErrClosed = producer.ErrClosed
	// ErrDenied: the ACL user may not do this, or the password is wrong. errors.As with *DeniedError tells which command it is
	// that the user lacks, and which of the documented users has it.
	ErrDenied = lua.ErrDenied
	// ErrUntrusted: no TLS connection could be made: one side does not accept the other's certificate, or the port is none for
	// TLS.
	ErrUntrusted = lua.ErrUntrusted
	// ErrUnsupported: the server is too old, is set to evict keys, or cannot give the Durability that a Client asks for.
	ErrUnsupported = lua.ErrUnsupported
	// ErrOldBridge: a bridge is alive that does not serve what was to be written: messages with a key, recurrences, rates.
	// Nothing was written. errors.As with *OldBridgeError tells which bridge.
	ErrOldBridge = lua.ErrOldBridge
	// ErrWrongType: a key of the queue holds something else.
	ErrWrongType = lua.ErrWrongType
	// ErrAbandoned: Worker.Run left handlers behind that ignored their cancelled context.
	ErrAbandoned = stream.ErrAbandoned

	// ErrLost, ErrUnreachable, ErrCancelled, ErrStopping and ErrHandlerTimeout are causes of a handler's cancelled context: see
	// Handler.
	ErrLost        = stream.ErrLost
	ErrUnreachable = stream.ErrUnreachable // not extended for a whole visibility timeout: somebody else may have it
	ErrCancelled   = stream.ErrCancelled   // somebody cancelled the message: whatever the handler returns, it is done
	ErrStopping    = stream.ErrStopping    // the worker's ShutdownTimeout is over

	// ErrHandlerTimeout: the handler has used up its time, by its message, by the policy or by WorkerConfig.HandlerTimeout.
	ErrHandlerTimeout = stream.ErrHandlerTimeout
)

// InvalidError says which field was refused, its value (shortened) and the rule it broke.
//
//	type InvalidError struct {
//		Field, Value, Rule string
//	}
type InvalidError = lua.InvalidError

// DeniedError says which command the user lacks.
//
//	type DeniedError struct {
//		Command string // "XTRIM", "XGROUP CREATE"
//		// Of a script, which asks for all that it may need before it does anything: its name, the key, and which users of
//		// docs/OPERATIONS.md have what it needs. Nothing was changed.
//		Script, Key string
//		Users       []string
//	}
type DeniedError = lua.DeniedError

// OldBridgeError says which bridge does not serve what was to be written.
//
//	type OldBridgeError struct {
//		Bridge Identity
//		What   string // what was to be written
//		Needs  int    // the level that bridges need for it
//	}
type OldBridgeError = lua.OldBridgeError

// NotDurableError says what was confirmed of the Durability asked for.
//
//	type NotDurableError struct {
//		Want     Durability
//		Fsynced  bool  // the server's own append-only file is on disk
//		Replicas int   // so many replicas have it
//		Cause    error // why the server did not wait at all; nil when the time was up
//	}
type NotDurableError = lua.NotDurableError
