// duestream: messages that are delivered at their due time, at least once, through Redis Streams.
export { Client } from './client.js';
export type { ClientOptions } from './client.js';
export { ClosedError, DeniedError, DuestreamError, DuplicateError, FullError, InvalidError, NoGroupError,
  NoRecurrenceError, NotScheduledError, OldBridgeError, UnavailableError, UncertainError, UnsupportedError,
  UntrustedError, WrongTypeError } from './errors.js';
export type { NewMessage, Receipt, Replace, Result, ScheduleOptions } from './message.js';
export type { Recurrence, StoredRecurrence } from './recurrence.js';
