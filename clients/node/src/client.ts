// The client: schedules, cancels and reschedules messages, and keeps recurrences.
import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { ClosedError, DuestreamError, DuplicateError, InvalidError, NoRecurrenceError, NoResultError,
  NotScheduledError, UnavailableError, UncertainError, UnsupportedError } from './errors.js';
import * as limits from './limits.js';
import { checkMessage, metaOf, newId, whenOf, windowOf } from './message.js';
import type { MessageResult, NewMessage, Receipt, Result, ScheduleOptions } from './message.js';
import { parseSpec, specOf } from './recurrence.js';
import type { Recurrence, StoredRecurrence } from './recurrence.js';
import { Counts, Levels } from './registry.js';
import { Connection, defaultPrefix, defaultUrl, listOf, numbersOf, pairsOf, Partition, partitionOf, repeat, serverTime,
  textOf } from './wire.js';
import type { Argument, Command } from './wire.js';

const keyLevel = 2; // the level of bridges that serve messages with a key
const recurrenceLevel = 2;
const callMessages = 256; // most messages of one script call
const callBytes = 512 << 10; // most bytes of one script call
const lookIds = 500; // most IDs of one look for duplicates
const parked = 4e15; // added to the due time of a message that waits for its key
const enqueueKeys = 'due payload meta stream wake seen policy history turns';

const oneBytes = 4096; // most bytes of payload and meta for which enqueue_one costs the server less than enqueue
const onePauseMs = 10_000; // for this time enqueue_one is not tried after it did not take a message

// Verdicts of the script enqueue.
const malformed = -1;
const duplicate = 0;
const scheduled = 1;
const ready = 2;
const replaced = 4;

export interface ClientOptions {
  /** Prefix of all keys. The default is duestream. */
  prefix?: string;
  /** How long a call is repeated after temporary errors. The default is 10 s. */
  retryTimeoutMs?: number;
  /** Name of this client in the histories of queues. */
  name?: string;
  /**
   * Accepts messages with a key, and recurrences, while a bridge is alive that may not serve them, instead of throwing
   * OldBridgeError.
   */
  allowOldBridges?: boolean;
}

/** A message of a batch, with its partition, and with its result when it has one. */
interface Item {
  readonly message: NewMessage;
  readonly id: string;
  partition: number;
  result?: Result;
}

/**
 * Schedules, cancels and reschedules messages. Calls may run at the same time.
 *
 * A call is repeated after temporary errors, like a lost reply or a failover, until retryTimeoutMs has passed. A
 * repeated call never stores a message twice.
 */
export class Client {
  readonly #prefix: string;
  readonly #retryMs: number;
  readonly #actor: string;
  readonly #levels: Levels;
  readonly #connection: Connection;
  readonly #counts = new Map<string, Counts>();
  #closed = false;

  // A token names a call of enqueue, so that a repeated call changes nothing. The next call for the partition makes the
  // server forget it.
  readonly #tokenName = randomUUID();
  readonly #tokenMs: number;
  readonly #done = new Map<string, { partition: Partition; token: string }>(); // by the partition's key
  #tokens = 0;
  // performance.now() from which enqueue_one may be used, by the partition's key.
  readonly #oneFrom = new Map<string, number>();

  constructor(url = defaultUrl, options: ClientOptions = {}) {
    limits.checkNames('option', options, ['prefix', 'retryTimeoutMs', 'name', 'allowOldBridges']);
    this.#prefix = options.prefix ?? defaultPrefix;
    limits.checkPrefix(this.#prefix);
    this.#retryMs = limits.wholeMillis('retryTimeoutMs', options.retryTimeoutMs ?? 10_000);
    this.#tokenMs = Math.max(60_000, 2 * this.#retryMs + 10_000);
    this.#actor = options.name ?? `client ${hostname().slice(0, 64)}-${process.pid}`;
    limits.checkText('name', this.#actor);
    this.#levels = new Levels(this.#prefix, options.allowOldBridges ?? false);
    this.#connection = new Connection(url);
  }

  // ---- schedule -----------------------------------------------------------------------------------------------------

  /**
   * Stores one message. When the promise resolves, the message will be delivered at least once to every group of the
   * queue, unless it is cancelled or becomes a dead letter. After UncertainError the message may have been stored.
   * After other errors it was not.
   */
  schedule(queue: string, payload: string | Uint8Array = '', options: ScheduleOptions = {}): Promise<Receipt> {
    return this.send(queue, { ...options, payload });
  }

  /** Does the same as schedule for a NewMessage. */
  async send(queue: string, message: NewMessage): Promise<Receipt> {
    const [result] = await this.sendBatch(queue, [message]);
    if (!result?.receipt) throw result?.error ?? new DuestreamError('the message has no result');
    return result.receipt;
  }

  /** Stores many messages, at most 100,000. It returns one result for each, in their order. It is not atomic. */
  async sendBatch(queue: string, messages: Iterable<NewMessage>): Promise<Result[]> {
    const batch = [...messages];
    const until = this.#begin(queue);
    if (batch.length > limits.maxBatch) {
      throw new InvalidError('batch', batch.length, `must be at most ${limits.maxBatch} messages`);
    }
    const items = batch.map((message): Item => ({ message, id: message.id ?? newId(), partition: 0 }));
    for (const item of items) {
      try {
        checkMessage(item.message);
      } catch (error) {
        if (!(error instanceof InvalidError)) throw error;
        item.result = { id: item.id, error };
      }
    }
    const open = items.filter((item) => !item.result);
    if (open.length) await this.#store(queue, open, until);
    return items.map(({ id, result }) => result ?? { id, error: new DuestreamError(`${id} has no result`) });
  }

  async #store(queue: string, items: readonly Item[], until: number): Promise<void> {
    const count = await repeat(() => this.#countsOf(queue).refresh(this.#connection, true), until, true);
    let now = 0;
    if (items.some(({ message }) => message.expiresInMs !== undefined)) {
      const [clock] = await repeat(() => this.#connection.ask(['TIME']), until, true);
      now = serverTime(clock);
    }
    if (items.some(({ message }) => message.key !== undefined)) {
      await repeat(() => this.#levels.allow(this.#connection, keyLevel, 'messages with a key'), until, true);
    }
    for (const item of items) item.partition = partitionOf(item.message.key ?? item.id, count);
    if (count > 1) await this.#lookElsewhere(queue, count, items, until);
    for (let number = 0; number < count; number++) {
      const here = items.filter((item) => item.partition === number && !item.result);
      const partition = new Partition(this.#prefix, queue, number);
      for (const chunk of chunks(here, now)) await this.#enqueue(partition, chunk, until);
    }
  }

  async #enqueue(partition: Partition, chunk: Chunk, until: number): Promise<void> {
    const place = partition.key('due');
    if (this.#mayUseOne(place, chunk)) {
      if (await this.#enqueueOne(partition, chunk, until)) return;
      this.#oneFrom.set(place, performance.now() + onePauseMs);
    }
    const token = `${this.#tokenName}-${this.#tokens++}`;
    const done = this.#done.get(place)?.token ?? '';
    this.#done.delete(place);
    let failed = false;
    const call = async () => {
      try {
        return await this.#connection.evaluate('enqueue', partition.keys(enqueueKeys), token, done, this.#tokenMs,
          ...chunk.values, this.#actor);
      } catch (error) {
        failed = true;
        throw error;
      }
    };
    try {
      const verdicts = numbersOf(await repeat(call, until));
      chunk.items.forEach((item, i) => {
        item.result = resultOf(item.id, verdicts[2 * i] ?? malformed, verdicts[2 * i + 1] ?? 0);
      });
    } catch (error) {
      if (!(error instanceof DuestreamError)) throw error;
      for (const item of chunk.items) item.result = { id: item.id, error };
    }
    // A failed try that is still on its way must find its token.
    if (!failed) this.#done.set(place, { partition, token });
  }

  /**
   * Tells whether to store a single small message with a fresh ID by enqueue_one. The message must be due later than any
   * repeat of the call. So a repeat finds it in the schedule, and the server need not remember the first try.
   */
  #mayUseOne(place: string, chunk: Chunk): boolean {
    const [, when, body, meta, window] = chunk.values as [string, string, Buffer, string, string];
    const isLater = when.startsWith('+') && Number(when) > this.#tokenMs;
    const isSmall = body.length > 0 && body.length + Buffer.byteLength(meta) <= oneBytes;
    return chunk.items.length === 1 && isLater && isSmall && window === '' &&
      performance.now() >= (this.#oneFrom.get(place) ?? 0);
  }

  /**
   * Stores a single message, and sets its result. False: the script did not take the message, because the queue keeps a
   * history, or because it was refused. The script enqueue refuses less.
   */
  async #enqueueOne(partition: Partition, { items, values }: Chunk, until: number): Promise<boolean> {
    const [id, when, body, meta] = values as [string, string, Argument, string];
    const [item] = items as [Item];
    const token = `${this.#tokenName}-${this.#tokens++}`;
    let again = '';
    const call = () => {
      const thisTry = again;
      again = '1';
      return this.#connection.evaluate('enqueue_one', partition.keys('due payload meta wake seen policy'), when, id,
        body, token, this.#tokenMs, '', meta, thisTry);
    };
    try {
      const reply = await repeat(call, until);
      const [asked = 0] = numbersOf(Array.isArray(reply) ? reply : [reply]); // a list: an earlier try took the message
      if (asked) item.result = resultOf(item.id, scheduled, asked + Number(when));
      return asked !== 0;
    } catch (error) {
      if (!(error instanceof UnavailableError)) return false;
      item.result = { id: item.id, error };
      return true;
    }
  }

  /**
   * Refuses messages with an ID of the caller's choice that another partition knows, because an ID belongs to its
   * queue, and the script enqueue sees one partition. A replacement without a key goes to the partition of the message
   * that it replaces.
   */
  async #lookElsewhere(queue: string, count: number, items: readonly Item[], until: number): Promise<void> {
    const named = items.filter(({ message }) => message.id !== undefined);
    const first = new Map<string, number>(); // by ID: the partition of its first message in the batch
    for (const item of named) {
      const before = first.get(item.id);
      if (before === undefined) first.set(item.id, item.partition);
      else if (before !== item.partition) {
        item.result = { id: item.id, error: new DuplicateError(`${item.id} is in the batch twice, with two keys`) };
      }
    }
    const holders = new Map<Item, number[]>(); // the partitions in which the ID is scheduled
    const windows = new Set<Item>(); // the ID is inside a dedup window of another partition
    for (let number = 0; number < count; number++) {
      const asked = named.filter(({ partition, message }) => partition !== number || message.replace !== undefined);
      for (let start = 0; start < asked.length; start += lookIds) {
        const some = asked.slice(start, start + lookIds);
        const found = await this.#look(new Partition(this.#prefix, queue, number), some.map(({ id }) => id), until);
        some.forEach((item, i) => {
          if (found[i]?.scheduled) holders.set(item, [...holders.get(item) ?? [], number]);
          if (found[i]?.windowed && item.partition !== number) windows.add(item);
        });
      }
    }
    for (const item of new Set([...holders.keys(), ...windows])) {
      const [where, ...more] = holders.get(item) ?? [];
      if (item.result || (where === item.partition && !more.length)) continue;
      if (item.message.replace === undefined || where === undefined) {
        item.result = { id: item.id, error: duplicateError(item.id) };
      } else if (!more.length && item.message.key === undefined) {
        item.partition = where;
      } else {
        const error = new UnsupportedError(`${item.id} is scheduled in partition ${[where, ...more].join(', ')}, and `
          + `its replacement belongs to partition ${item.partition}: cancel it first`);
        item.result = { id: item.id, error };
      }
    }
  }

  /** Returns, for each ID, whether it is scheduled in a partition, and whether it is inside a dedup window. */
  async #look(partition: Partition, ids: readonly string[], until: number) {
    const [due, seen, clock] = await repeat(() => this.#connection.ask(
      ['ZMSCORE', partition.key('due'), ...ids], ['ZMSCORE', partition.key('seen'), ...ids], ['TIME'],
    ), until, true);
    const now = serverTime(clock);
    const ends = listOf(seen);
    return listOf(due).map((score, i) => {
      const end = ends[i] ?? null;
      return { scheduled: score !== null, windowed: end !== null && Number(end) > now };
    });
  }

  // ---- cancel and reschedule ----------------------------------------------------------------------------------------

  /** Removes a message from the schedule: it will not be delivered. NotScheduledError: it was not scheduled. */
  async cancel(queue: string, id: string): Promise<void> {
    await this.#change('cancel', queue, id, async (partition) => {
      const keys = partition.keys('due payload meta seen policy history turns wake');
      const [found] = numbersOf(await this.#connection.evaluate('cancel', keys, id, this.#actor));
      return found === 1 ? 0 : undefined;
    });
  }

  /** Moves a scheduled message to a new due time, and returns this time. NotScheduledError: it was not scheduled. */
  async reschedule(queue: string, id: string, to: { delayMs: number } | { at: Date }): Promise<Date> {
    limits.checkNames('field', to, ['delayMs', 'at']);
    checkMessage({ ...to, id });
    const when = whenOf(to, id);
    const due = await this.#change('reschedule', queue, id, async (partition) => {
      const keys = partition.keys('due wake policy history meta turns');
      const [moved, at] = numbersOf(await this.#connection.evaluate('reschedule', keys, id, when, this.#actor));
      return moved === 1 ? at : undefined;
    });
    return new Date(due);
  }

  /**
   * Changes a message in every partition that may hold it, and returns the earliest answer.
   *
   * The key of a message decides its partition, and the caller does not know the key. If no partition has the message,
   * all are asked once more: a replacement may have moved it meanwhile.
   */
  async #change(what: string, queue: string, id: string,
    change: (partition: Partition) => Promise<number | undefined>): Promise<number> {
    const until = this.#begin(queue);
    limits.checkText('id', id);
    const counts = this.#countsOf(queue);
    const found: number[] = [];
    let lost = false;
    let asked = 0;
    for (;;) {
      counts.stale();
      const count = await repeat(() => counts.refresh(this.#connection, false), until, true);
      for (let number = 0; number < count; number++) {
        const answer = await repeat(async () => {
          try {
            return await change(new Partition(this.#prefix, queue, number));
          } catch (error) {
            lost ||= error instanceof UnavailableError && error.sent;
            throw error;
          }
        }, until);
        if (answer !== undefined) found.push(answer);
      }
      if (found.length) return Math.min(...found);
      if (count === 1 || asked === count) break;
      asked = count;
    }
    const name = `${what} ${queue}/${id}`;
    if (lost) throw new UncertainError(`${name}: a reply was lost, and the message is not scheduled now`);
    throw new NotScheduledError(`${name}: not scheduled`);
  }

  // ---- results ------------------------------------------------------------------------------------------------------

  /**
   * Returns the result of a message for a group, if it was sent with keepResultMs.
   *
   * NoResultError: there is none, or none yet. The Redis user needs the right to read the key of the result: see
   * docs/operations/users.md.
   */
  async result(queue: string, id: string, group: string): Promise<MessageResult> {
    const until = this.#begin(queue);
    limits.checkText('id', id);
    limits.checkText('group', group);
    const counts = this.#countsOf(queue);
    counts.stale();
    const count = await repeat(() => counts.refresh(this.#connection, false), until, true);
    const kind = `result:${limits.percent(group)}:${id}`;
    const commands = Array.from({ length: count }, (_, number): Command =>
      ['GET', new Partition(this.#prefix, queue, number).key(kind)]);
    for (const reply of await repeat(() => this.#connection.ask(...commands), until, true)) {
      if (!Buffer.isBuffer(reply)) continue;
      const end = reply.indexOf('\n');
      const [done, attempt] = reply.subarray(0, end).toString().split(' ').map(Number);
      return { value: reply.subarray(end + 1), attempt: attempt ?? 1, done: new Date(done ?? 0) };
    }
    throw new NoResultError(`${queue}/${id} has no result for ${group}`);
  }

  /**
   * Waits for the result of a message that was sent with keepResultMs, and returns it.
   *
   * It asks for the result every 10 ms at first. Later, each pause is an eighth of the time that it has waited, at most
   * 2 s. It does not look what became of the message.
   *
   * NoResultError: there is none at the end of timeoutMs.
   */
  async waitFor(queue: string, id: string, group: string,
    { timeoutMs }: { timeoutMs: number }): Promise<MessageResult> {
    const began = performance.now();
    const end = began + limits.wholeMillis('timeoutMs', timeoutMs);
    for (;;) {
      try {
        return await this.result(queue, id, group);
      } catch (error) {
        const isTemporary = error instanceof NoResultError || error instanceof UnavailableError;
        if (!isTemporary || performance.now() >= end) throw error;
      }
      const now = performance.now();
      await sleep(Math.min(Math.max(10, (now - began) / 8), 2000, Math.max(0, end - now)));
    }
  }

  // ---- recurrences --------------------------------------------------------------------------------------------------

  /** Adds a recurrence, or replaces the one of its queue and name. Bridges notice it within 5 s. */
  async recur(recurrence: Recurrence): Promise<void> {
    const spec = specOf(recurrence);
    const { name, queue } = recurrence;
    const until = this.#begin(queue);
    const keys = new Partition(this.#prefix, queue);
    await repeat(() => this.#levels.allow(this.#connection, recurrenceLevel, 'recurrences'), until, true);
    await repeat(() => this.#countsOf(queue).refresh(this.#connection, true), until, true);
    await repeat(() => this.#connection.ask(
      ['MULTI'],
      ['HSET', keys.key('recurring'), name, spec],
      ['HINCRBY', keys.key('planned'), '', 1], // bridges notice the change within 5 s
      ['EXEC'],
    ), until, true);
  }

  /** Returns the recurrences of a queue, in the order of their names. */
  async recurrences(queue: string): Promise<StoredRecurrence[]> {
    const until = this.#begin(queue);
    const keys = new Partition(this.#prefix, queue);
    const [flat] = await repeat(() => this.#connection.ask(['HGETALL', keys.key('recurring')]), until, true);
    const found = pairsOf(flat).map(([name, spec]) => parseSpec(queue, textOf(name), textOf(spec)));
    return found.sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** Removes a recurrence. A bridge cancels its scheduled messages within 5 s. NoRecurrenceError: it does not exist. */
  async removeRecurrence(queue: string, name: string): Promise<void> {
    const until = this.#begin(queue);
    const keys = new Partition(this.#prefix, queue);
    const replies = await repeat(() => this.#connection.ask(
      ['MULTI'], ['HDEL', keys.key('recurring'), name], ['HINCRBY', keys.key('planned'), '', 1], ['EXEC'],
    ), until, true);
    const [removed] = numbersOf(replies[3]);
    if (removed === 0) throw new NoRecurrenceError(`${queue} has no recurrence ${name}`);
  }

  // ---- close and helpers --------------------------------------------------------------------------------------------

  /** Closes the connection. Further calls throw ClosedError. Await running calls before you close. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    try {
      for (const { partition, token } of this.#done.values()) {
        await this.#connection.evaluate('enqueue', partition.keys(enqueueKeys), '', token, 0, this.#actor);
      }
    } catch {
      // The server forgets the tokens after a minute.
    } finally {
      this.#connection.close();
    }
  }

  /** Checks that a call may begin. Returns the end of its repetitions, in performance.now(). */
  #begin(queue: string): number {
    if (this.#closed) throw new ClosedError('the client is closed');
    limits.checkQueue(queue);
    return performance.now() + this.#retryMs;
  }

  #countsOf(queue: string): Counts {
    let counts = this.#counts.get(queue);
    if (!counts) this.#counts.set(queue, counts = new Counts(this.#prefix, queue));
    return counts;
  }
}

interface Chunk {
  readonly items: Item[];
  readonly values: Argument[]; // five for each item
  bytes: number;
}

/** Divides the messages of a partition among calls that do not block the server for long. */
function* chunks(items: readonly Item[], now: number): Generator<Chunk> {
  let chunk: Chunk = { items: [], values: [], bytes: 0 };
  for (const item of items) {
    const { message, id } = item;
    const payload = limits.payloadBytes(message.payload ?? '');
    const meta = metaOf(message, now);
    const more = 64 + payload.length + Buffer.byteLength(meta);
    if (chunk.items.length && (chunk.items.length === callMessages || chunk.bytes + more > callBytes)) {
      yield chunk;
      chunk = { items: [], values: [], bytes: 0 };
    }
    chunk.items.push(item);
    chunk.values.push(id, whenOf(message, id), payload, meta, windowOf(message));
    chunk.bytes += more;
  }
  if (chunk.items.length) yield chunk;
}

function resultOf(id: string, verdict: number, due: number): Result {
  if (verdict === duplicate) return { id, error: duplicateError(id) };
  if (verdict === malformed) return { id, error: new InvalidError('headers', id, 'the server cannot read them') };
  const at = new Date(due >= parked ? due - parked : due);
  return { id, receipt: { id, due: at, ready: verdict === ready, replaced: verdict === replaced } };
}

function duplicateError(id: string): DuplicateError {
  return new DuplicateError(`${id} is scheduled already, or inside a dedup window`);
}

