// duestream: messages that are delivered at their due time, at least once, through Redis Streams.
export { Client } from './client.js';
export type { ClientOptions } from './client.js';
export { DeadLetter, Message, Release, RetryAfter, Snooze } from './delivery.js';
export type { Handler, Settlement } from './delivery.js';
export { AbandonedError, CancelledError, ClosedError, DeniedError, DuestreamError, DuplicateError, FullError,
  HandlerTimeoutError, InvalidError, LostError, NoGroupError, NoRecurrenceError, NoResultError, NotScheduledError,
  OldBridgeError, StoppingError, UnavailableError, UncertainError, UnreachableError, UnsupportedError, UntrustedError,
  WrongTypeError } from './errors.js';
export { Kind, kindHeader, maxUnknownSnoozes, Mux, unknownKindMs } from './kind.js';
export type { KindOptions, MessageClient, UniqueValue } from './kind.js';
export type { MessageResult, NewMessage, Receipt, Replace, Result, ScheduleOptions } from './message.js';
export type { Recurrence, StoredRecurrence } from './recurrence.js';
export { Worker } from './worker.js';
export type { Logger, WorkerOptions } from './worker.js';
