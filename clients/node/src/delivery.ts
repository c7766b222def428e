// The message that a handler gets, and the errors by which a handler chooses its outcome.
import { inspect } from 'node:util';
import { DuestreamError, HandlerTimeoutError, UnavailableError } from './errors.js';
import * as limits from './limits.js';
import { pairsOf } from './wire.js';
import type { Reply } from './wire.js';

/** A handler throws it to fail: the message is delivered again after this delay, as the next attempt. */
export class RetryAfter extends Error {
  override readonly name: string = 'RetryAfter';
  readonly delayMs: number;

  constructor(delayMs: number, message = 'retry requested', options?: ErrorOptions) {
    super(message, options);
    this.delayMs = limits.wholeMillis('delayMs', delayMs);
  }
}

/** A handler throws it to give the message up: it becomes a dead letter at once, with this error. */
export class DeadLetter extends Error {
  override readonly name: string = 'DeadLetter';

  constructor(message = 'dead letter requested', options?: ErrorOptions) {
    super(message, options);
  }
}

/**
 * A handler throws it if the work cannot be done yet: the message is delivered again after this delay, as the same
 * attempt. The policy limits the number of snoozes of a message (default 1,000).
 */
export class Snooze extends Error {
  override readonly name: string = 'Snooze';
  readonly delayMs: number;

  constructor(delayMs: number) {
    super(`snoozed for ${delayMs} ms`);
    this.delayMs = limits.wholeMillis('delayMs', delayMs);
  }
}

/** A handler throws it to give the message back: it is delivered again at once, as the same attempt. */
export class Release extends Error {
  override readonly name: string = 'Release';

  constructor(message = 'released') {
    super(message);
  }
}

/**
 * How a delivery ended for a worker.
 *
 * - skipped: the entry was for another group, and was acknowledged without a handler.
 * - lost: the worker did not hold the entry any more, so the result of the handler has no effect.
 * - unknown: the worker cannot tell. It ended before Redis answered, or a reply was lost and the call repeated. Then
 *   either its first try settled the entry, or another worker did.
 * - stuck: the stream of dead letters refused the entry, which comes back after the visibility timeout.
 */
export type Settlement = 'acknowledged' | 'retried' | 'dead' | 'released' | 'snoozed' | 'skipped' | 'cancelled' | 'lost'
  | 'unknown' | 'stuck';

/** One delivery of a message. */
export class Message {
  /** The entry ID if another program added the entry without a message ID. */
  readonly id: string;
  readonly payload: Buffer;
  readonly headers: Readonly<Record<string, string>>;
  /** From 1. */
  readonly attempt: number;
  readonly due: Date | undefined;
  /** The message's own limit. undefined: the limit of the policy. */
  readonly maxAttempts: number | undefined;
  readonly expires: Date | undefined;
  /** The only group that a retry is for. Empty: every group. */
  readonly recipient: string;
  /** Error of the last failed attempt. */
  readonly error: string;
  /** All other fields of the entry, like snoozes, key and last_trace. */
  readonly extra: ReadonlyMap<string, string>;
  readonly entryId: string;
  #progress: Buffer;
  #stored: Buffer | undefined; // the progress of this attempt
  #saver: ((cursor: Buffer) => Promise<void>) | undefined; // left out: no worker delivered the message
  #result: Buffer = Buffer.alloc(0);
  readonly #told = new AbortController();

  constructor(entry: Reply, fields: ReadonlyMap<string, Buffer>, readonly queue: string, readonly partition: number,
    readonly group: string, readonly consumer: string) {
    const rest = new Map([...fields].map(([name, value]) => [name, value.toString()]));
    const take = (name: string) => {
      const value = rest.get(name);
      rest.delete(name);
      return value;
    };
    const takeNumber = (name: string) => {
      const text = take(name) ?? '';
      return /^\d{1,15}$/.test(text) && Number(text) > 0 ? Number(text) : undefined;
    };
    const takeTime = (name: string) => {
      const ms = takeNumber(name);
      return ms !== undefined && ms <= 1e13 ? new Date(ms) : undefined;
    };
    this.entryId = String(entry);
    this.id = take('id') ?? this.entryId;
    this.payload = fields.get('payload') ?? Buffer.alloc(0);
    rest.delete('payload');
    this.attempt = takeNumber('attempt') ?? 1;
    this.due = takeTime('due_ms');
    this.maxAttempts = takeNumber('max_attempts');
    this.expires = takeTime('expires_ms');
    this.recipient = take('for') ?? '';
    this.error = take('error') ?? '';
    this.#progress = progressOf(fields, this.recipient);
    for (const name of ['progress', codedProgress]) rest.delete(name);
    const headers = [...rest].filter(([name]) => name.startsWith('h:'));
    for (const [name] of headers) rest.delete(name);
    this.headers = Object.fromEntries(headers.map(([name, value]) => [name.slice(2), value]));
    this.extra = rest;
  }

  /**
   * Aborted when the handler should stop. Its reason is a LostError, UnreachableError, CancelledError, StoppingError or
   * HandlerTimeoutError. A handler that works for long should check the signal, or pass it on, for example to fetch.
   */
  get signal(): AbortSignal {
    return this.#told.signal;
  }

  /** Sets the result that is kept if the message was sent with keepResultMs: at most 64 KiB. */
  setResult(value: string | Uint8Array): void {
    this.#result = limits.payloadBytes(value, limits.maxResultBytes, 'result');
  }

  /** What the group's last attempt stored with saveProgress, or an attempt before it. Empty: none. */
  get progress(): Buffer {
    return this.#progress;
  }

  /**
   * Stores how far the work has come, at most 4 KiB. The next attempt of the group gets it in progress.
   *
   * It is there after an error, a snooze, a release or a timeout, and also if this process is killed after the promise
   * has resolved. With an empty cursor the next attempt begins anew. It takes one round trip. Await it before you call
   * it again, or return.
   *
   * LostError, CancelledError: nothing was stored, and the handler should stop. UnavailableError: the cursor may be
   * stored or not.
   */
  async saveProgress(cursor: string | Uint8Array): Promise<void> {
    const bytes = limits.payloadBytes(cursor, limits.maxProgressBytes, 'cursor');
    const before = this.#stored;
    this.#stored = bytes; // noted first, because a call without a reply may have stored it
    try {
      await this.#saver?.(bytes);
    } catch (error) {
      if (!(error instanceof UnavailableError && error.sent)) this.#stored = before;
      throw error;
    }
    this.#progress = bytes;
  }

  /** @internal The progress that this attempt stored. */
  get stored(): Buffer | undefined {
    return this.#stored;
  }

  /** @internal */
  set saver(save: (cursor: Buffer) => Promise<void>) {
    this.#saver = save;
  }

  /** @internal */
  get result(): Buffer {
    return this.#result;
  }

  /** @internal Why the handler should stop. */
  get cause(): DuestreamError | undefined {
    const reason: unknown = this.signal.reason;
    return reason instanceof DuestreamError ? reason : undefined;
  }

  /** @internal */
  tell(cause: DuestreamError): void {
    this.#told.abort(cause); // a second cause has no effect
  }
}

/** Does the work of one message. The message may be delivered again, so doing the work twice must be harmless. */
export type Handler = (message: Message) => unknown;

/** Returns the fields of an entry, as XREADGROUP answers them. */
export function fieldsOf(reply: Reply): Map<string, Buffer> {
  return new Map(pairsOf(reply).map(([name, value]) =>
    [String(name), Buffer.isBuffer(value) ? value : Buffer.from(String(value))]));
}

const codedProgress = 'b64:progress';

/** Returns the progress of the attempt before. A producer cannot give any to the first attempt. */
function progressOf(fields: ReadonlyMap<string, Buffer>, recipient: string): Buffer {
  const coded = fields.get(codedProgress);
  const progress = fields.get('progress') ?? (coded && Buffer.from(String(coded), 'base64'));
  return recipient && progress && progress.length <= limits.maxProgressBytes ? progress : Buffer.alloc(0);
}

/** The outcome of a delivery whose handler threw an error, as arguments of the script retry. */
export interface Outcome {
  readonly action: 'retry' | 'dead' | 'release' | 'snooze' | 'cancel';
  readonly delayMs?: number;
  readonly reason?: string;
  readonly error?: string;
}

/** Returns the outcome that a handler chose by the error that it threw. */
export function outcomeOf(error: unknown): Outcome {
  const text = textOfError(error);
  if (error instanceof Snooze) return { action: 'snooze', delayMs: error.delayMs, reason: 'max_snoozes' };
  if (error instanceof Release) return { action: 'release' };
  if (error instanceof DeadLetter) return { action: 'dead', reason: 'dead_letter', error: text };
  if (error instanceof RetryAfter) {
    return { action: 'retry', delayMs: error.delayMs, reason: 'max_attempts', error: text };
  }
  return { action: 'retry', reason: 'max_attempts', error: text };
}

/**
 * Returns the outcome of a handler that failed after its time limit. The attempt counts, even if the handler asked for
 * a snooze or a release. If it asked for a dead letter, the message becomes one.
 */
export function timeoutOutcome(error: unknown, timeoutMs: number): Outcome {
  const asked = outcomeOf(error);
  if (asked.action === 'dead') return asked;
  let text = `handler_timeout: not done after ${timeoutMs / 1000} s`;
  // Work that was interrupted by the signal fails with one of these. They say nothing more.
  const interrupted = error instanceof HandlerTimeoutError || (error instanceof Error && error.name === 'AbortError');
  if (asked.error && !interrupted) text += `: ${asked.error}`;
  const outcome: Outcome = { action: 'retry', reason: 'handler_timeout', error: limits.cutText(text) };
  return asked.action === 'retry' && asked.delayMs !== undefined ? { ...outcome, delayMs: asked.delayMs } : outcome;
}

/** Returns the text of anything that a handler may throw. */
export function textOfError(error: unknown): string {
  if (error instanceof Error) return limits.cutText(error.message || error.name);
  return limits.cutText(typeof error === 'string' ? error : inspect(error));
}
