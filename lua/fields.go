package lua

// Fields of an entry, and keys of meta: the wire names.
const (
	FieldID          = "id"              // string; always
	FieldPayload     = "payload"         // bytes; always
	FieldAttempt     = "attempt"         // decimal from 1; always
	FieldDue         = "due_ms"          // decimal Unix ms; always
	FieldMaxAttempts = "max_attempts"    // decimal; when set on the message
	FieldExpires     = "expires_ms"      // decimal Unix ms; when set on the message
	FieldFor         = "for"             // the only group that a retry is for
	FieldError       = "error"           // string of at most 1 KiB; from the second attempt
	FieldRetryDelays = "retry_delays_ms" // decimals with commas between; when set on the message
	FieldRetryFor    = "retry_for_ms"    // decimal; when set on the message
	FieldMaxSnoozes  = "max_snoozes"     // decimal; when set on the message
	FieldMaxCrashes  = "max_crashes"     // decimal; when set on the message
	FieldKey         = "key"             // string; only one message with this key is in flight at a time
	HeaderPrefix     = "h:"              // h:<name> is a header, UTF-8

	// FieldHandlerTimeout: decimal ms; how long a handler of the message may take; when set on the message.
	FieldHandlerTimeout = "handler_timeout_ms"

	// FieldLastTrace: on retries and dead letters, the traceparent of the group's last attempt that had a traceparent.
	FieldLastTrace = "last_trace"

	// FieldProgress: on retries and dead letters, the cursor that the group's last attempt stored; b64:progress has it as
	// base64 if it is no text.
	FieldProgress = "progress"

	// FieldResult: decimal ms; how long the result of the message is kept, for each group; when set on the message.
	FieldResult = "result_ms"

	// FieldFirstDue: decimal Unix ms; when a retry or dead letter was first due; present if its age is limited.
	FieldFirstDue = "first_due_ms"

	// FieldOverlap: "skip"; on messages of a recurrence that must not overlap. A group's retry of such a message has a
	// schedule member that is derived from the message's ID.
	FieldOverlap = "overlap"

	FieldSnoozes = "snoozes" // decimal; how often a retry was snoozed; absent = never
	FieldCrashes = "crashes" // decimal; how often a retry was reclaimed; counted only where max_crashes is set

	FieldGroup  = "group"   // dead letters: the group in which it failed; absent if it failed before any group received it
	FieldReason = "reason"  // dead letters: one of the Reason constants
	FieldDead   = "dead_ms" // dead letters: decimal Unix ms
	FieldEntry  = "entry"   // dead letters: ID of the stream entry that failed
	FieldMeta   = "meta"    // dead letters of reason malformed: the meta as it was found
	FieldRaw    = "raw"     // dead letters of reason malformed: the raw entry, if it could not be kept field by field
)

// Why a message was dead-lettered. A program that calls the scripts may give reasons of its own.
const (
	ReasonMaxAttempts       = "max_attempts"       // the handler failed as often as allowed
	ReasonMaxSnoozes        = "max_snoozes"        // snoozed more often than allowed
	ReasonCrashes           = "crashes"            // reclaimed as often as max_crashes allows
	ReasonDeadLetter        = "dead_letter"        // the handler dead-lettered the message
	ReasonXNackFatal        = "xnack_fatal"        // a worker gave the message up by XNACK with FATAL
	ReasonRetryFor          = "retry_for"          // too old for its next attempt
	ReasonHandlerTimeout    = "handler_timeout"    // the last attempt took longer than the handler timeout
	ReasonVisibilityTimeout = "visibility_timeout" // reclaimed as often as attempts are allowed
	ReasonExpired           = "expired"            // due, or due again, after its expiry
	ReasonGroupGone         = "group_gone"         // due for a group that the stream does not have (any more)
	ReasonMalformed         = "malformed"          // it cannot be delivered as it is
	ReasonBodyLost          = "body_lost"          // someone deleted the entry while it was pending
)

// Reasons returns all reasons.
func Reasons() []string {
	return []string{
		ReasonMaxAttempts, ReasonHandlerTimeout, ReasonRetryFor, ReasonMaxSnoozes, ReasonCrashes, ReasonDeadLetter,
		ReasonXNackFatal, ReasonVisibilityTimeout, ReasonExpired, ReasonGroupGone, ReasonMalformed, ReasonBodyLost,
	}
}

// ReclaimConsumer is the consumer name under which Reclaim claims entries. It exists only during a reclaim, unless an
// entry could not be moved.
const ReclaimConsumer = "duestream-reclaim"
