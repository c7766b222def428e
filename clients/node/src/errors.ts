// The errors of the package, and how errors of Redis become them.

/** The base of all errors of this package. */
export class DuestreamError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** An argument was refused before Redis was asked. It names the field, the value and the rule. */
export class InvalidError extends DuestreamError {
  constructor(readonly field: string, readonly value: unknown, readonly rule: string) {
    let text = String(value);
    if (text.length > 64) text = `${text.slice(0, 64)}… (${text.length} characters)`;
    super(`${field} "${text}": ${rule}`);
  }
}

/** The ID is scheduled already, or its dedup window has not ended. Nothing was stored. */
export class DuplicateError extends DuestreamError {}

/** The message became ready, was cancelled, or never was scheduled. */
export class NotScheduledError extends DuestreamError {}

/** Redis is at maxmemory and refused the message. Nothing was stored. */
export class FullError extends DuestreamError {}

/** Redis could not be reached, or refused the call for now, until retryTimeoutMs had passed. */
export class UnavailableError extends DuestreamError {
  /** Whether a call may have reached the server before its connection broke. */
  readonly sent: boolean;

  constructor(message: string, options: ErrorOptions & { sent?: boolean } = {}) {
    super(message, options);
    this.sent = options.sent ?? false;
  }
}

/** A call was sent, and no reply came until retryTimeoutMs had passed: it may have been executed. */
export class UncertainError extends UnavailableError {
  constructor(message: string, options?: ErrorOptions) {
    super(message, { ...options, sent: true });
  }
}

/** The client has been closed. */
export class ClosedError extends DuestreamError {}

/** The ACL user may not run a command, or the password is wrong. */
export class DeniedError extends DuestreamError {}

/** No TLS connection could be made. */
export class UntrustedError extends DuestreamError {}

/** The server is too old, or this package does not support the combination that was asked for. */
export class UnsupportedError extends DuestreamError {}

/** A bridge of an earlier release is alive that does not serve the feature. Nothing was written. */
export class OldBridgeError extends DuestreamError {}

/** A key of the queue holds a value of another Redis type. */
export class WrongTypeError extends DuestreamError {}

/** The consumer group or its stream is gone. */
export class NoGroupError extends DuestreamError {}

/** The queue has no recurrence of that name. */
export class NoRecurrenceError extends DuestreamError {}

/** The message has no result, or none yet. */
export class NoResultError extends DuestreamError {}

/** A worker stopped although handlers were still running, because they did not stop when they were told to. */
export class AbandonedError extends DuestreamError {}

// The reasons for which the signal of a message is aborted.

/** The delivery was given to another worker: the result of the handler has no effect. */
export class LostError extends DuestreamError {}

/** The delivery could not be extended for a visibility timeout, so another worker may have it. */
export class UnreachableError extends DuestreamError {}

/** The message was cancelled: the group is done with it, whatever the handler does. */
export class CancelledError extends DuestreamError {}

/** The worker stops, and its shutdownTimeoutMs has passed. */
export class StoppingError extends DuestreamError {}

/** The handler ran longer than its message, the policy or the worker allows. */
export class HandlerTimeoutError extends DuestreamError {}

type ErrorClass = new (message: string, options?: ErrorOptions) => DuestreamError;

// By the text at the beginning of an error of the server.
const serverErrors: ReadonlyArray<readonly [string, ErrorClass]> = [
  ['OOM', FullError],
  ['WRONGTYPE', WrongTypeError],
  ['NOGROUP', NoGroupError],
  ['UNBLOCKED', NoGroupError], // before Redis 7.2, when the stream vanishes during a read
  ['NOPERM', DeniedError], ['NOAUTH', DeniedError], ['WRONGPASS', DeniedError],
  ["The user executing the script can't", DeniedError], ['ACL failure in script', DeniedError],
  ['unknown command', UnsupportedError], ['CROSSSLOT', UnsupportedError],
  ['LOADING', UnavailableError], ['BUSY ', UnavailableError], ['READONLY', UnavailableError],
  ['NOREPLICAS', UnavailableError], ['MISCONF', UnavailableError], ['CLUSTERDOWN', UnavailableError],
  ['TRYAGAIN', UnavailableError], ['MASTERDOWN', UnavailableError], ['UNKILLABLE', UnavailableError],
];

/** Reports whether the server answered with this error. Any other error is an error of the connection. */
export function isServerError(error: Error): boolean {
  return error.name === 'ReplyError';
}

/** Returns the error of this package for an error reply of the server. what names the command. */
export function serverError(what: string, error: Error): DuestreamError {
  const text = `${what}: ${error.message}`;
  if (/^(MOVED|ASK) /.test(error.message)) {
    return new UnsupportedError(`${text}: the server is a node of a cluster, and this package connects to one server`,
      { cause: error });
  }
  const said = error.message.replace(/^ERR /, '');
  // Some servers put words of their own before the code.
  const [, found] = serverErrors.find(([beginning]) => said.startsWith(beginning))
    ?? serverErrors.find(([code]) => said.includes(code)) ?? [];
  return new (found ?? DuestreamError)(text, { cause: error });
}

/** Returns the error of this package for a connection that failed. sent: a call may have reached the server. */
export function connectionError(what: string, error: Error, sent: boolean): DuestreamError {
  const code = 'code' in error ? String(error.code) : '';
  const text = `${what}: ${error.message || code || error.name}`;
  if (/CERT|SELF_SIGNED|UNABLE_TO_VERIFY|^EPROTO|^ERR_(TLS|SSL)/.test(code)) {
    return new UntrustedError(text, { cause: error });
  }
  return new UnavailableError(text, { cause: error, sent });
}
