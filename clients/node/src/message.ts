// Messages to schedule.
import { createHash, randomBytes } from 'node:crypto';
import { InvalidError } from './errors.js';
import type { DuestreamError } from './errors.js';
import * as limits from './limits.js';

export type Replace = 'replace' | 'later' | 'earlier';

/** How a message is scheduled. Without delayMs and at it is due now. Durations are in ms. */
export interface ScheduleOptions {
  /**
   * Names the message: 1 to 256 bytes. While a message with this ID is scheduled, another one is refused with
   * DuplicateError. Left out: a new, time-ordered ID.
   */
  id?: string;
  /** At most 64 headers, and 32 KiB of names and values together. */
  headers?: Readonly<Record<string, string>>;
  /** Time until the message is due, from when the server stores it: at most ten years. Set either delayMs or at. */
  delayMs?: number;
  /** Due time by the server's clock. A past one means now. */
  at?: Date;
  /** Delays the message by a further 0 to spreadMs, chosen by hashing its ID. */
  spreadMs?: number;
  /** How often the message is delivered to a group until it becomes a dead letter: 1 to 1,000,000. */
  maxAttempts?: number;
  /** Exact delays after failed attempts, at most 100. The last one repeats. */
  retryDelaysMs?: readonly number[];
  /** Time from the due time within which retries may be due. */
  retryForMs?: number;
  /** How often a group may snooze the message: 1 to 1,000,000. */
  maxSnoozes?: number;
  /** How often workers of a group may abandon the message: 1 to 1,000,000. */
  maxCrashes?: number;
  /** How long the message's handler may take. */
  handlerTimeoutMs?: number;
  /** How long the result of each group's handler is kept: from a second to a week. */
  keepResultMs?: number;
  /** From this time, by the server's clock, the message becomes a dead letter instead of being delivered. */
  expires?: Date;
  /** expires as a time from now, by the server's clock. It takes one more round trip. */
  expiresInMs?: number;
  /** Refuses further messages with this ID for this time, even after this one was delivered. It needs an ID. */
  dedupMs?: number;
  /** Ordering key: messages of a queue with the same key are delivered one at a time, in the order of due times. */
  key?: string;
  /**
   * Replaces the scheduled message with this ID: always, or only if the new due time is later, or earlier; else
   * DuplicateError. It needs an ID, and no dedup window.
   */
  replace?: Replace;
}

/** A message to schedule. */
export interface NewMessage extends ScheduleOptions {
  /** At most 16 MiB. A string is sent as UTF-8. */
  payload?: string | Uint8Array;
}

/** A stored message. */
export interface Receipt {
  readonly id: string;
  /** The due time, by the server's clock. */
  readonly due: Date;
  /** The message was due, and workers get it already. */
  readonly ready: boolean;
  /** The message replaced another one. */
  readonly replaced: boolean;
}

/** The answer to one message of a batch: a receipt, or the error with which it was refused. */
export interface Result {
  readonly id: string;
  readonly receipt?: Receipt;
  readonly error?: DuestreamError;
}

/** The result of a message for a group. */
export interface MessageResult {
  /** Set by the handler with Message.setResult; empty if it set none. */
  readonly value: Buffer;
  /** The attempt that succeeded. */
  readonly attempt: number;
  /** When it was acknowledged, by the server's clock. */
  readonly done: Date;
}

const names = ['payload', 'id', 'headers', 'delayMs', 'at', 'spreadMs', 'maxAttempts', 'retryDelaysMs', 'retryForMs',
  'maxSnoozes', 'maxCrashes', 'handlerTimeoutMs', 'keepResultMs', 'expires', 'expiresInMs', 'dedupMs', 'key',
  'replace'];

/** Throws the InvalidError with which a message would be refused. */
export function checkMessage(message: NewMessage): void {
  limits.checkNames('message field', message, names);
  const { id, key, replace, dedupMs, retryDelaysMs = [] } = message;
  if (id !== undefined) limits.checkText('id', id);
  if (key !== undefined) limits.checkText('key', key);
  limits.payloadBytes(message.payload ?? '');
  limits.checkHeaders(message.headers ?? {});
  for (const name of ['maxAttempts', 'maxSnoozes', 'maxCrashes'] as const) {
    const value = message[name];
    if (value !== undefined) limits.checkBetween(name, value, 1, limits.maxAttempts);
  }
  if (retryDelaysMs.length > limits.maxDelays) {
    throw new InvalidError('retryDelaysMs', retryDelaysMs.length, `must be at most ${limits.maxDelays}`);
  }
  checkTimes(message);
  if (dedupMs !== undefined && id === undefined) throw new InvalidError('dedupMs', dedupMs, 'needs an ID');
  if (replace !== undefined) {
    if (!['replace', 'later', 'earlier'].includes(replace)) {
      throw new InvalidError('replace', replace, 'must be replace, later or earlier');
    }
    if (id === undefined || dedupMs !== undefined) {
      throw new InvalidError('replace', replace, 'needs an ID, and no dedup window');
    }
  }
  whenOf(message, id ?? '');
  metaOf(message, 0);
  windowOf(message);
}

function checkTimes({ at, delayMs = 0, spreadMs = 0, expires, expiresInMs }: NewMessage): void {
  if (at !== undefined && delayMs) throw new InvalidError('delayMs', delayMs, 'must be zero when at is given');
  if (expires !== undefined && expiresInMs !== undefined) {
    throw new InvalidError('expiresInMs', expiresInMs, 'must not be given beside expires');
  }
  const spread = limits.wholeMillis('spreadMs', spreadMs);
  const latest = limits.wholeMillis('delayMs', delayMs) + spread;
  if (latest > limits.tenYearsMs) {
    throw new InvalidError('spreadMs', spreadMs, 'must be at most ten years, including delayMs');
  }
  if (expiresInMs !== undefined && at === undefined && limits.wholeMillis('expiresInMs', expiresInMs) <= latest) {
    throw new InvalidError('expiresInMs', expiresInMs, `must be after the due time, in ${latest} ms at the latest`);
  }
  if (expires !== undefined && at !== undefined
    && limits.unixMillis('expires', expires) <= limits.unixMillis('at', at) + spread) {
    throw new InvalidError('expires', expires.toISOString(), 'must be after the due time');
  }
}

/** Returns the due time as scripts take it: "+ms" from now, or Unix ms. */
export function whenOf({ at, delayMs = 0, spreadMs = 0 }: ScheduleOptions, id: string): string {
  const spread = limits.wholeMillis('spreadMs', spreadMs);
  const offset = spread ? spreadOf(id, spread) : 0;
  if (at !== undefined) return String(limits.unixMillis('at', at) + offset);
  return `+${limits.wholeMillis('delayMs', delayMs) + offset}`;
}

/** Returns headers and settings as a JSON object of strings, or ''. expiresInMs counts from now, which is Unix ms. */
export function metaOf(message: ScheduleOptions, now: number): string {
  const fields = new Map<string, string | number>();
  for (const [name, value] of Object.entries(message.headers ?? {})) fields.set(`h:${name}`, value);
  const set = (field: string, value: string | number | undefined) => {
    if (value !== undefined) fields.set(field, value);
  };
  const setMillis = (field: string, name: keyof ScheduleOptions & `${string}Ms`, least?: number, most?: number) => {
    const value = message[name];
    if (typeof value === 'number') fields.set(field, limits.wholeMillis(name, value, least, most));
  };
  set('max_attempts', message.maxAttempts);
  set('max_snoozes', message.maxSnoozes);
  set('max_crashes', message.maxCrashes);
  set('key', message.key);
  setMillis('retry_for_ms', 'retryForMs');
  setMillis('handler_timeout_ms', 'handlerTimeoutMs');
  setMillis('result_ms', 'keepResultMs', 1000, 7 * limits.dayMs);
  if (message.retryDelaysMs?.length) {
    set('retry_delays_ms', message.retryDelaysMs.map((ms) => limits.wholeMillis('retryDelaysMs', ms, 1)).join());
  }
  if (message.expires !== undefined) set('expires_ms', limits.unixMillis('expires', message.expires));
  else if (message.expiresInMs !== undefined) {
    set('expires_ms', now + limits.wholeMillis('expiresInMs', message.expiresInMs));
  }
  if (!fields.size) return '';
  return JSON.stringify(Object.fromEntries([...fields].map(([name, value]) => [name, String(value)])));
}

/** Returns the argument dedup of the script enqueue. */
export function windowOf({ id, dedupMs, replace }: ScheduleOptions): string {
  if (replace !== undefined) return replace;
  if (dedupMs !== undefined) return String(limits.wholeMillis('dedupMs', dedupMs));
  return id === undefined ? '' : '0'; // an ID that was made for this message is not compared
}

/** Returns the offset in ms that every client of duestream gives to this ID. */
function spreadOf(id: string, spreadMs: number): number {
  const hash = createHash('sha256').update(id).digest().readBigUInt64BE();
  return Number(hash % BigInt(spreadMs));
}

const ulidDigits = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';

/** Returns a new ULID: 26 characters that sort by time. */
export function newId(): string {
  let number = (BigInt(Date.now()) << 80n) | BigInt(`0x${randomBytes(10).toString('hex')}`);
  let text = '';
  for (let i = 0; i < 26; i++) {
    text = ulidDigits.charAt(Number(number & 31n)) + text;
    number >>= 5n;
  }
  return text;
}
