// A client in memory, for tests of programs. It needs no server, and its clock moves when the test moves it.
import { DuplicateError, DuestreamError, NotScheduledError } from './errors.js';
import { Message, outcomeOf } from './delivery.js';
import type { Handler, Settlement } from './delivery.js';
import { Mux } from './kind.js';
import * as limits from './limits.js';
import { checkMessage, metaOf, newId, whenOf } from './message.js';
import type { NewMessage, Receipt, Result, ScheduleOptions } from './message.js';

/** A delivery, how it ended, and the error that its handler threw. */
export interface Delivered {
  readonly message: Message;
  readonly settlement: Settlement;
  readonly error?: unknown;
}

/** A dead letter. */
export interface Dead {
  readonly message: Message;
  readonly reason: string;
  readonly error: string;
}

/** The settings of a policy that a Memory needs. A setting that is left out has its default. */
export interface MemoryPolicy {
  /** The default is 40. */
  maxAttempts?: number;
  /** The delay after the first failed attempt. It doubles with each further one. The default is 1 s. */
  retryMinMs?: number;
  /** The greatest delay. The default is an hour. */
  retryMaxMs?: number;
  /** Exact delays, in place of the doubling ones. The last one repeats. */
  retryDelaysMs?: readonly number[];
  /** Time from the due time within which retries may be due. The default is no limit. */
  retryForMs?: number;
  /** The default is 1,000. */
  maxSnoozes?: number;
}

export interface MemoryOptions {
  /** Where the clock begins. The default is the time of now. */
  now?: Date;
  policy?: MemoryPolicy;
  /** The group of the delivered messages. The default is test. */
  group?: string;
}

interface Scheduled {
  readonly id: string;
  readonly message: NewMessage;
  readonly order: number; // of messages that are due at the same time
  readonly firstDue: number; // Unix ms, as all times here
  readonly expires: number | undefined;
  due: number;
  attempt: number;
  snoozes: number;
  error: string;
  progress: Buffer;
  isRetry: boolean;
}

const policyNames = ['maxAttempts', 'retryMinMs', 'retryMaxMs', 'retryDelaysMs', 'retryForMs', 'maxSnoozes'];

/**
 * A client in memory: it has the methods of Client for messages, and delivers the messages to one group.
 *
 * It checks messages, IDs and dedup windows, keeps the order of keys, and retries, snoozes and dead-letters by policy,
 * without the random factor of delays. It has no partitions, no time limits of handlers, and no recurrences.
 */
export class Memory {
  /** The dead letters, in the order in which they died. */
  readonly dead: Dead[] = [];
  readonly #policy: MemoryPolicy;
  readonly #group: string;
  readonly #queues = new Map<string, Scheduled[]>();
  readonly #windows = new Map<string, number>(); // by queue and ID: the end of the dedup window
  #now: number;
  #order = 0;

  constructor(options: MemoryOptions = {}) {
    limits.checkNames('option', options, ['now', 'policy', 'group']);
    limits.checkNames('policy field', options.policy ?? {}, policyNames);
    this.#now = limits.unixMillis('now', options.now ?? new Date());
    this.#policy = options.policy ?? {};
    this.#group = options.group ?? 'test';
    limits.checkText('group', this.#group);
  }

  get now(): Date {
    return new Date(this.#now);
  }

  // ---- client -------------------------------------------------------------------------------------------------------

  /** See Client.schedule. */
  async schedule(queue: string, payload: string | Uint8Array = '', options: ScheduleOptions = {}): Promise<Receipt> {
    return this.send(queue, { ...options, payload });
  }

  /** See Client.send. */
  async send(queue: string, message: NewMessage): Promise<Receipt> {
    limits.checkQueue(queue);
    checkMessage(message);
    const id = message.id ?? newId();
    const due = this.#dueOf(message, id);
    const present = this.#find(queue, id);
    const window = JSON.stringify([queue, id]);
    const isRefused = present ? !mayReplace(message, present.due, due) : (this.#windows.get(window) ?? 0) > this.#now;
    if (isRefused) throw new DuplicateError(`${id} is scheduled already, or inside a dedup window`);
    if (present) this.#remove(queue, present);
    if (message.dedupMs !== undefined) {
      this.#windows.set(window, this.#now + limits.wholeMillis('dedupMs', message.dedupMs));
    }
    const expires = metaNumber(message, this.#now, 'expires_ms');
    this.#add(queue, { id, message: { ...message }, due, order: ++this.#order, firstDue: due, expires, attempt: 1,
      snoozes: 0, error: '', progress: Buffer.alloc(0), isRetry: false });
    return { id, due: new Date(due), ready: due === this.#now, replaced: present !== undefined };
  }

  /** See Client.sendBatch. */
  async sendBatch(queue: string, messages: Iterable<NewMessage>): Promise<Result[]> {
    const results: Result[] = [];
    for (const message of messages) {
      const id = message.id ?? newId();
      try {
        const receipt = await this.send(queue, message.id === undefined ? message : { ...message, id });
        results.push({ id: receipt.id, receipt });
      } catch (error) {
        if (!(error instanceof DuestreamError)) throw error;
        results.push({ id, error });
      }
    }
    return results;
  }

  /** See Client.cancel. */
  async cancel(queue: string, id: string): Promise<void> {
    this.#remove(queue, this.#scheduled(queue, id));
    this.#windows.delete(JSON.stringify([queue, id]));
  }

  /** See Client.reschedule. */
  async reschedule(queue: string, id: string, to: { delayMs: number } | { at: Date }): Promise<Date> {
    limits.checkNames('field', to, ['delayMs', 'at']);
    checkMessage({ ...to, id });
    const found = this.#scheduled(queue, id);
    found.due = this.#dueOf(to, id);
    return new Date(found.due);
  }

  /** Does nothing: a program under test may close its client. */
  async close(): Promise<void> {}

  // ---- test ---------------------------------------------------------------------------------------------------------

  /** Moves the clock. Call deliver then for the messages that have become due. */
  advance(durationMs: number): void {
    this.#now += limits.wholeMillis('durationMs', durationMs);
  }

  /** Returns the scheduled messages of a queue, retries included, in the order of due times. */
  scheduled(queue: string): Message[] {
    return [...this.#queues.get(queue) ?? []].sort(byDue).map((one) => this.#messageOf(queue, one));
  }

  /**
   * Calls a handler, or the handlers of a mux, for the due messages of one queue, or of all queues.
   *
   * It delivers each message once, in the order of due times, one at a time. Call it again for messages that are due
   * again.
   */
  async deliver(handler: Handler | Mux, queue?: string): Promise<Delivered[]> {
    const delivered: Delivered[] = [];
    const seen = new Set<number>(); // the orders of messages
    for (let next; (next = this.#next(queue, seen));) {
      const [name, one] = next;
      seen.add(one.order);
      this.#remove(name, one);
      const message = this.#messageOf(name, one);
      if (one.expires !== undefined && this.#now >= one.expires) {
        this.dead.push({ message, reason: 'expired', error: one.error });
        continue;
      }
      try {
        await (handler instanceof Mux ? handler.handlerOf(message) : handler)(message);
        delivered.push({ message, settlement: 'acknowledged' });
      } catch (error) {
        delivered.push({ message, settlement: this.#settle(name, one, message, error), error });
      }
    }
    return delivered;
  }

  // ---- helpers ------------------------------------------------------------------------------------------------------

  /** Returns a due time. A past one means now. */
  #dueOf(options: ScheduleOptions, id: string): number {
    const when = whenOf(options, id);
    return Math.max(this.#now, when.startsWith('+') ? this.#now + Number(when) : Number(when));
  }

  #add(queue: string, one: Scheduled): void {
    this.#queues.set(queue, [...this.#queues.get(queue) ?? [], one]);
  }

  #remove(queue: string, gone: Scheduled): void {
    this.#queues.set(queue, (this.#queues.get(queue) ?? []).filter((one) => one !== gone));
  }

  #find(queue: string, id: string): Scheduled | undefined {
    return this.#queues.get(queue)?.find((one) => one.id === id && !one.isRetry);
  }

  #scheduled(queue: string, id: string): Scheduled {
    limits.checkQueue(queue);
    limits.checkText('id', id);
    const found = this.#find(queue, id);
    if (!found) throw new NotScheduledError(`${queue}/${id}: not scheduled`);
    return found;
  }

  /** Returns the earliest due message that does not wait for the retry of another message with its key. */
  #next(queue: string | undefined, seen: ReadonlySet<number>): [string, Scheduled] | undefined {
    const due: Array<[string, Scheduled]> = [];
    for (const [name, waiting] of this.#queues) {
      if (queue !== undefined && queue !== name) continue;
      const held = new Map(waiting.filter((one) => one.isRetry).map((one) => [one.message.key, one]));
      for (const one of waiting) {
        const holder = one.message.key === undefined ? one : held.get(one.message.key) ?? one;
        if (one.due <= this.#now && !seen.has(one.order) && holder === one) due.push([name, one]);
      }
    }
    return due.sort(([, a], [, b]) => byDue(a, b))[0];
  }

  #messageOf(queue: string, one: Scheduled): Message {
    const { message } = one;
    const fields = new Map<string, Buffer>([['payload', limits.payloadBytes(message.payload ?? '')]]);
    const set = (name: string, value: string | number | undefined) => {
      if (value !== undefined && value !== '') fields.set(name, Buffer.from(String(value)));
    };
    for (const [name, value] of metaFields(message, this.#now)) set(name, value);
    set('id', one.id);
    set('attempt', one.attempt);
    set('due_ms', one.due);
    set('expires_ms', one.expires);
    set('snoozes', one.snoozes || undefined);
    set('error', one.error);
    if (one.progress.length) fields.set('progress', one.progress);
    set('for', one.isRetry ? this.#group : '');
    return new Message(`${one.due}-${one.order}`, fields, queue, 0, this.#group, 'test');
  }

  #settle(queue: string, one: Scheduled, message: Message, error: unknown): Settlement {
    const outcome = outcomeOf(error);
    let { delayMs = 0, reason = '' } = outcome;
    let isDead = outcome.action === 'dead';
    if (outcome.action === 'snooze') {
      isDead = one.snoozes >= (one.message.maxSnoozes ?? (this.#policy.maxSnoozes || 1000));
    } else if (outcome.action === 'retry') {
      if (outcome.delayMs === undefined) delayMs = this.#delayOf(one);
      const limit = one.message.retryForMs ?? this.#policy.retryForMs ?? 0;
      isDead = one.attempt >= (one.message.maxAttempts ?? this.#policy.maxAttempts ?? 40);
      if (!isDead && limit && this.#now + delayMs > one.firstDue + limit) {
        isDead = true;
        reason = 'retry_for';
      }
    }
    if (isDead) {
      this.dead.push({ message, reason, error: outcome.error ?? '' });
      return 'dead';
    }
    const settlement = outcome.action === 'snooze' ? 'snoozed' : outcome.action === 'release' ? 'released' : 'retried';
    this.#add(queue, { ...one, due: this.#now + delayMs, isRetry: true, error: outcome.error || one.error,
      progress: message.progress, attempt: settlement === 'retried' ? one.attempt + 1 : one.attempt,
      snoozes: settlement === 'snoozed' ? one.snoozes + 1 : one.snoozes });
    return settlement;
  }

  #delayOf(one: Scheduled): number {
    const own = one.message.retryDelaysMs ?? [];
    const delays = own.length ? own : this.#policy.retryDelaysMs ?? [];
    if (delays.length) return Math.ceil(delays[Math.min(one.attempt, delays.length) - 1] ?? 0);
    const { retryMinMs = 1000, retryMaxMs = 3_600_000 } = this.#policy;
    return Math.min(retryMinMs * 2 ** Math.min(one.attempt - 1, 60), retryMaxMs);
  }
}

function byDue(a: Scheduled, b: Scheduled): number {
  return a.due - b.due || a.order - b.order;
}

function mayReplace({ replace }: NewMessage, presentDue: number, due: number): boolean {
  if (replace === 'later') return due > presentDue;
  if (replace === 'earlier') return due < presentDue;
  return replace === 'replace';
}

/** Returns the headers and settings of a message, as a stream holds them. */
function metaFields(message: NewMessage, now: number): Array<[string, string]> {
  return Object.entries(JSON.parse(metaOf(message, now) || '{}') as Record<string, string>);
}

function metaNumber(message: NewMessage, now: number, name: string): number | undefined {
  const text = metaFields(message, now).find(([field]) => field === name)?.[1];
  return text === undefined ? undefined : Number(text);
}
