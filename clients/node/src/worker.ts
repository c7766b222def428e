// The worker: reads messages of one or several queues, and calls handlers.
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { fieldsOf, Message, outcomeOf, textOfError, timeoutOutcome } from './delivery.js';
import type { Handler, Outcome, Settlement } from './delivery.js';
import { AbandonedError, CancelledError, DuestreamError, HandlerTimeoutError, InvalidError, LostError, NoGroupError,
  StoppingError, UnreachableError } from './errors.js';
import type { Mux } from './kind.js';
import * as limits from './limits.js';
import { newId } from './message.js';
import { Policy } from './policy.js';
import { Counts } from './registry.js';
import { callTimeoutMs, Connection, defaultPrefix, defaultUrl, listOf, pairsOf, Partition, separator,
  textOf } from './wire.js';
import type { Argument, Command, Reply } from './wire.js';

const defaultConcurrency = 16;
const defaultBlockMs = 2000;
const learnWithinMs = 4500; // within which a handler learns that its message was cancelled
const refreshMs = 2500; // between two looks at policies and registry
const pauseLookMs = 1000; // between two looks whether workers are paused
const lateReadMs = 100; // within which a read that failed may still reach the server
const longestTimerMs = 2 ** 31 - 1; // of setTimeout
const extendBatch = 200;
const ackBatch = 200;
const failBatch = 100;
const fetchBatch = 20;
const pendingPage = 500;
const reclaimer = 'duestream-reclaim';
const retryKeys = 'stream due payload meta dead wake turns policy history';
const ackKeys = 'stream due wake turns policy history';

// Answers of the script extend.
const notHeld = 0;
const heldCancelled = 2;

// By the answer of the script retry.
const settlements = new Map<number, Settlement>([[-1, 'stuck'], [0, 'lost'], [1, 'retried'], [2, 'dead'],
  [3, 'released'], [4, 'skipped'], [5, 'snoozed'], [6, 'cancelled']]);

/** The logger of a worker. console is one, and so are the loggers of pino and winston. */
export interface Logger {
  info(text: string): void;
  warn(text: string): void;
  error(text: string): void;
}

const quiet: Logger = { info: () => {}, warn: (text) => console.warn(text), error: (text) => console.error(text) };

export interface WorkerOptions {
  /** The group that works on the messages: each group of a queue gets every message. */
  group: string;
  /** At most 100. A mux names its queues itself. */
  queues?: readonly string[];
  /** Gets the messages. Give either a handler and queues, or a mux. */
  handler?: Handler;
  /** Calls a handler for each kind. */
  mux?: Mux;
  /** Prefix of all keys. The default is duestream. */
  prefix?: string;
  /** Names this worker in the group. Two live workers must not share a name. The default is new for each worker. */
  consumer?: string;
  /** How many handlers run at once, for all queues together: 16 by default. Give at least one for each partition. */
  concurrency?: number;
  /** How long handlers may go on after a stop, until the signals of their messages are aborted. The default is 20 s. */
  shutdownTimeoutMs?: number;
  /** How long handlers may go on after that, until the worker ends with AbandonedError. The default is 2 s. */
  cancelGraceMs?: number;
  /**
   * Time limit of a handler if neither its message nor the policy has one. At its end the signal of the message is
   * aborted. 0, the default: no limit.
   */
  handlerTimeoutMs?: number;
  /**
   * How long a handler may go on after that, until it is abandoned: its attempt has failed, and its place is free. The
   * default is 10 s.
   */
  abandonAfterMs?: number;
  /** Called with each message and the settlement of its delivery. */
  settled?: (message: Message, settlement: Settlement) => void;
  /** The default writes warnings and errors to standard error. */
  logger?: Logger;
  /** @internal The longest wait of one read. A stop waits for its end, so tests shorten it. */
  blockMs?: number;
}

const optionNames = ['group', 'queues', 'handler', 'mux', 'prefix', 'consumer', 'concurrency', 'shutdownTimeoutMs',
  'cancelGraceMs', 'handlerTimeoutMs', 'abandonAfterMs', 'settled', 'logger', 'blockMs'];

/** Wakes those who wait until something happens. */
class Bell {
  readonly #waiting = new Set<() => void>();

  ring(): void {
    for (const wake of this.#waiting) wake();
  }

  /** Waits until the bell rings, but not longer than some ms. */
  wait(ms?: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        this.#waiting.delete(wake);
        resolve();
      };
      const timer = ms === undefined ? undefined : setTimeout(wake, ms);
      this.#waiting.add(wake);
    });
  }
}

/** A queue that the worker serves. */
class Queue {
  policy: Policy;
  paused = false;

  constructor(readonly name: string, readonly counts: Counts, group: string) {
    this.policy = new Policy(new Map(), new Map(), group);
  }
}

/** One partition of a queue. */
class Part {
  start: string | undefined; // last entry that the group read before this worker; undefined: the worker has not joined
  readonly held = new Map<string, Delivery>(); // by entry
  readonly stream: string;

  constructor(readonly queue: Queue, readonly place: Partition) {
    this.stream = place.key('stream');
  }
}

/** An entry that this worker holds, from its read until its settlement. */
interface Delivery {
  readonly part: Part;
  readonly message: Message;
  readonly rawId: Buffer;
  readonly foreign: boolean; // for another group
  extended: number; // a time before the server last restarted its visibility timeout
  begun: boolean;
  ended: boolean; // the handler returned, or was abandoned
  timer?: NodeJS.Timeout;
  timeoutMs: number;
  outcome?: Outcome; // left out: acknowledge it
}

/**
 * Delivers the messages of queues to the handlers of one group, at least once.
 *
 * When a handler returns, its message is acknowledged. When it throws an error, the message is delivered again after
 * the delay of the policy, or becomes a dead letter when its attempts are used up. RetryAfter, DeadLetter, Snooze and
 * Release choose another outcome.
 */
export class Worker {
  readonly consumer: string;
  /** The number of deliveries with each settlement. */
  readonly stats: Record<Settlement, number> = { acknowledged: 0, retried: 0, dead: 0, released: 0, snoozed: 0,
    skipped: 0, cancelled: 0, lost: 0, unknown: 0, stuck: 0 };

  readonly #group: string;
  readonly #prefix: string;
  readonly #actor: string;
  readonly #handlerOf: (message: Message) => Handler;
  readonly #queues: readonly Queue[];
  readonly #concurrency: number;
  readonly #shutdownMs: number;
  readonly #graceMs: number;
  readonly #handlerTimeoutMs: number;
  readonly #abandonAfterMs: number;
  readonly #settledCall: WorkerOptions['settled'];
  readonly #log: Logger;
  readonly #blockMs: number;

  readonly #reader: Connection; // a blocked connection serves nothing else
  readonly #connection: Connection;
  readonly #parts = new Map<string, Part>(); // by stream
  #waiting: Delivery[] = []; // read, and no place is free yet
  #running = 0; // places in use
  #step: number; // entries of the next read
  #looked = -Infinity; // when the worker last asked whether it is paused
  #inDoubt = false; // a read failed, and the server may execute it after the worker has rejoined
  #unsettled: Delivery[] = [];
  #settling = false;

  #began = false;
  #stopping = false;
  #over = false; // deliveries that are not settled yet stay pending
  readonly #stopBell = new Bell();
  readonly #overBell = new Bell();
  readonly #freedBell = new Bell();
  readonly #changedBell = new Bell(); // the settings of a queue

  constructor(url = defaultUrl, options: WorkerOptions) {
    limits.checkNames('option', options, optionNames);
    this.#group = options.group;
    limits.checkText('group', this.#group);
    this.#prefix = options.prefix ?? defaultPrefix;
    limits.checkPrefix(this.#prefix);
    this.consumer = options.consumer ?? `${hostname().slice(0, 64)}-${process.pid}-${newId()}`.toLowerCase();
    limits.checkText('consumer', this.consumer);
    if (this.consumer === reclaimer) throw new InvalidError('consumer', this.consumer, "is the reclaimer's own name");
    this.#actor = `worker ${this.consumer}`;
    const { handler, mux } = options;
    if (!handler === !mux) throw new InvalidError('handler', handler, 'must be given, or a mux, and not both');
    this.#handlerOf = (message) => handler ?? mux?.handlerOf(message) ?? (() => {});
    this.#queues = queueNames(options.queues ?? [], mux)
      .map((name) => new Queue(name, new Counts(this.#prefix, name), this.#group));
    this.#concurrency = options.concurrency ?? defaultConcurrency;
    limits.checkBetween('concurrency', this.#concurrency, 1, 10_000);
    this.#step = this.#concurrency;
    this.#shutdownMs = limits.wholeMillis('shutdownTimeoutMs', options.shutdownTimeoutMs ?? 20_000);
    this.#graceMs = limits.wholeMillis('cancelGraceMs', options.cancelGraceMs ?? 2000);
    this.#handlerTimeoutMs = limits.wholeMillis('handlerTimeoutMs', options.handlerTimeoutMs ?? 0);
    this.#abandonAfterMs = limits.wholeMillis('abandonAfterMs', options.abandonAfterMs ?? 10_000);
    this.#settledCall = options.settled;
    this.#log = options.logger ?? quiet;
    this.#blockMs = options.blockMs ?? defaultBlockMs;
    this.#reader = new Connection(url, this.#blockMs + callTimeoutMs);
    this.#connection = new Connection(url);
  }

  // ---- begin and end ------------------------------------------------------------------------------------------------

  /** Does the same as serve, and also stops at SIGTERM and SIGINT. */
  async run(): Promise<void> {
    const stop = () => this.stop();
    process.on('SIGTERM', stop).on('SIGINT', stop);
    try {
      await this.serve();
    } finally {
      process.off('SIGTERM', stop).off('SIGINT', stop);
    }
  }

  /** Makes the worker end: it reads nothing more, and finishes the messages that it has begun. */
  stop(): void {
    this.#stopping = true;
    this.#stopBell.ring();
    this.#freedBell.ring();
  }

  /**
   * Reads, handles and settles until stop. Then it lets handlers finish, and releases messages whose handlers have not
   * begun. An outage of Redis does not end it. It throws AbandonedError if handlers did not return in time: their
   * entries come back after the visibility timeout.
   */
  async serve(): Promise<void> {
    if (this.#began) throw new DuestreamError('a worker runs once: make another one');
    this.#began = true;
    const loops = [this.#extendLoop(), this.#watchLoop()];
    try {
      await this.#readLoop();
      await this.#end();
    } finally {
      this.#over = true;
      this.#overBell.ring();
      this.#changedBell.ring();
      this.#reader.close();
      this.#connection.close();
      for (const { timer } of this.#allHeld()) clearTimeout(timer);
      await Promise.all(loops);
    }
  }

  /** Waits for handlers, settles their messages, and leaves the group. */
  async #end(): Promise<void> {
    for (const delivery of this.#waiting) this.#settle(delivery, { action: 'release' });
    this.#waiting = [];
    if (!await this.#nothingHeld(this.#shutdownMs)) {
      for (const delivery of this.#allHeld()) this.#tell(delivery, new StoppingError('the worker stops'));
      await this.#nothingHeld(this.#graceMs);
    }
    const left = this.#allHeld().filter((delivery) => !delivery.ended);
    for (const { message } of left) this.#say('warn', 'handler did not return: its entry stays pending', message);
    this.#over = true;
    this.#overBell.ring();
    if (this.#inDoubt) await sleep(lateReadMs);
    try {
      await within(callTimeoutMs, async () => {
        for (const part of this.#parts.values()) {
          if (part.start !== undefined && !part.held.size) await this.#leave(part);
        }
      });
    } catch (error) {
      this.#log.warn(`duestream: could not leave the group: ${textOfError(error)}`);
    }
    if (left.length) throw new AbandonedError(`${left.length} handlers did not return: their entries stay pending`);
  }

  async #nothingHeld(withinMs: number): Promise<boolean> {
    const end = performance.now() + withinMs;
    while (this.#allHeld().length) {
      const left = end - performance.now();
      if (left <= 0) return false;
      await this.#freedBell.wait(Math.min(left, longestTimerMs));
    }
    return true;
  }

  /** Releases the entries that this consumer was given in lost replies, and removes the consumer. */
  async #leave(part: Part): Promise<void> {
    for (let unseen; (unseen = await this.#unseen(part)).length;) {
      const items = unseen.map((entry) => [entry, '', 'release', '', '', '']);
      // The stream of dead letters refuses one, which would be found again and again.
      if ((await this.#retry(part, items)).includes(-1)) return;
    }
    await this.#connection.evaluate('drop_consumer', [part.stream], this.#group, this.consumer);
  }

  // ---- read ---------------------------------------------------------------------------------------------------------

  async #readLoop(): Promise<void> {
    let joined = false;
    for (let pause = 100; !this.#stopping;) {
      try {
        if (!joined) await this.#rejoin();
        joined = true;
        await this.#readOnce();
        pause = 100;
        if (this.#inDoubt) joined = this.#inDoubt = false;
      } catch (error) {
        if (error instanceof NoGroupError) {
          await this.#insist(() => this.#recreateGroups());
          continue;
        }
        this.#failing(error);
        joined = false;
        this.#inDoubt = true;
        await this.#pauseUntilStop(pause);
        pause = Math.min(2 * pause, 2000);
      }
    }
  }

  async #readOnce(): Promise<void> {
    for (const part of this.#parts.values()) {
      if (part.start === undefined) await this.#join(part); // a partition was added
    }
    const free = this.#concurrency - this.#running - this.#waiting.length;
    if (free <= 0) {
      if (!this.#stopping) await this.#freedBell.wait();
      return;
    }
    await this.#lookForPause();
    const parts = [...this.#parts.values()].filter((part) => !part.queue.paused);
    if (!parts.length) {
      await this.#pauseUntilStop(pauseLookMs);
      return;
    }
    if (this.#stopping) return;
    // COUNT holds for each stream. With few free places some entries wait for one, and are extended meanwhile.
    const count = Math.max(1, Math.floor(Math.min(free, this.#step) / parts.length));
    const began = performance.now();
    let reply: Reply | undefined;
    try {
      [reply] = await this.#reader.ask(['XREADGROUP', 'GROUP', this.#group, this.consumer, 'COUNT', count,
        'BLOCK', this.#blockMs, 'STREAMS', ...parts.map((part) => part.stream), ...parts.map(() => '>')]);
    } catch (error) {
      // The entries may be large, and the connection slow.
      if (performance.now() - began > callTimeoutMs) this.#step = Math.max(1, Math.floor(this.#step / 2));
      throw error;
    }
    this.#step = Math.min(2 * this.#step, this.#concurrency);
    for (const one of listOf(reply)) {
      const [stream, entries] = listOf(one);
      const part = this.#parts.get(textOf(stream));
      if (part) this.#take(part, listOf(entries));
    }
  }

  /** Begins the work on entries that this consumer was given. */
  #take(part: Part, entries: readonly Reply[]): void {
    const now = performance.now();
    for (const one of entries) {
      const [entry = null, values = null] = listOf(one);
      if (values === null) continue; // somebody deleted it meanwhile
      const fields = fieldsOf(values);
      const { queue, number } = part.place;
      const message = new Message(textOf(entry), fields, queue, number, this.#group, this.consumer);
      const recipient = fields.get('for');
      const delivery: Delivery = {
        part, message, rawId: fields.get('id') ?? Buffer.from(message.entryId), extended: now,
        foreign: !!recipient?.length && !recipient.equals(Buffer.from(this.#group)),
        begun: false, ended: false, timeoutMs: 0,
      };
      message.saver = (cursor) => this.#saveProgress(delivery, cursor);
      part.held.set(message.entryId, delivery);
      if (delivery.foreign) this.#settle(delivery);
      else if (this.#stopping) this.#settle(delivery, { action: 'release' });
      else this.#waiting.push(delivery);
    }
    this.#startWaiting();
  }

  /** Learns whether the workers of queues are paused. It looks at most once a second. */
  async #lookForPause(): Promise<void> {
    const now = performance.now();
    if (now - this.#looked < pauseLookMs) return;
    const held = await this.#connection.ask(...this.#queues.map(({ name }): Command =>
      ['HGET', new Partition(this.#prefix, name).key('policy'), 'held_workers']));
    this.#queues.forEach((queue, i) => {
      queue.paused = textOf(held[i]) === '1';
    });
    this.#looked = now;
  }

  /**
   * Joins at the start. After a broken connection it takes up the entries that the server has given away since. Entries
   * that a consumer of this name was given before this worker started are left alone: one of them may have crashed that
   * consumer.
   */
  async #rejoin(): Promise<void> {
    await this.#refresh();
    for (const part of this.#parts.values()) {
      if (part.start === undefined) await this.#join(part);
      await this.#extend(part);
      for (let unseen; (unseen = await this.#unseen(part)).length;) await this.#takeUp(part, unseen);
    }
  }

  async #join(part: Part): Promise<void> {
    await this.#connection.evaluate('ensure_group', [part.stream], this.#group);
    const [groups] = await this.#connection.ask(['XINFO', 'GROUPS', part.stream]);
    for (const group of listOf(groups)) {
      const known = new Map(pairsOf(group).map(([name, value]) => [textOf(name), textOf(value)]));
      if (known.get('name') === this.#group) part.start = known.get('last-delivered-id');
    }
  }

  async #recreateGroups(): Promise<void> {
    for (const part of this.#parts.values()) {
      if (await this.#connection.evaluate('ensure_group', [part.stream], this.#group)) {
        this.#log.warn(`duestream: consumer group was lost: created again at 0: ${part.stream}`);
        part.start = '0-0';
      }
      part.queue.counts.stale(); // the registration may be lost as well
    }
  }

  /** Returns entries that are pending for this worker since it started, and that it does not know. */
  async #unseen(part: Part): Promise<string[]> {
    const unseen: string[] = [];
    for (let after = part.start ?? '0-0'; unseen.length < fetchBatch;) {
      const [page] = await this.#connection.ask(
        ['XPENDING', part.stream, this.#group, `(${after}`, '+', pendingPage, this.consumer]);
      const entries = listOf(page).map((row) => textOf(listOf(row)[0]));
      unseen.push(...entries.filter((entry) => !part.held.has(entry)));
      if (entries.length < pendingPage) break;
      after = entries.at(-1) ?? after;
    }
    return unseen.slice(0, fetchBatch);
  }

  /** Begins the work on entries of a lost reply. It extends them first, so that no bridge takes them back. */
  async #takeUp(part: Part, entries: readonly string[]): Promise<void> {
    const answers = await this.#extendEntries(part, entries.map((entry) => [entry, '']));
    const cancelled = entries.filter((_, i) => answers[i] === heldCancelled);
    if (cancelled.length) await this.#retry(part, cancelled.map((entry) => [entry, '', 'cancel', '', '', '']));
    for (const [i, entry] of entries.entries()) {
      if (answers[i] === notHeld || answers[i] === heldCancelled) continue;
      const [found] = await this.#connection.ask(['XRANGE', part.stream, entry, entry]);
      this.#take(part, listOf(found));
    }
  }

  // ---- handle -------------------------------------------------------------------------------------------------------

  #startWaiting(): void {
    while (this.#running < this.#concurrency) {
      const delivery = this.#waiting.shift();
      if (!delivery) return;
      this.#running++;
      delivery.begun = true;
      void this.#handle(delivery);
    }
  }

  async #handle(delivery: Delivery): Promise<void> {
    this.#setTimeout(delivery);
    let outcome: { error: unknown } | undefined;
    try {
      await this.#handlerOf(delivery.message)(delivery.message);
    } catch (error) {
      outcome = { error };
    }
    clearTimeout(delivery.timer);
    if (!delivery.ended) this.#finish(delivery, outcome); // else it was abandoned before
  }

  /** Decides the outcome of a message whose handler returned, threw an error, or was abandoned. */
  #finish(delivery: Delivery, failure: { error: unknown } | undefined): void {
    delivery.ended = true;
    const { message, timeoutMs } = delivery;
    const { cause } = message;
    if (cause instanceof LostError) {
      this.#done(delivery, 'lost');
    } else if (cause instanceof CancelledError) {
      this.#settle(delivery, { action: 'cancel' });
    } else if (!failure) {
      this.#settle(delivery);
    } else if (cause instanceof HandlerTimeoutError) {
      this.#say('warn', `handler timed out after ${timeoutMs / 1000} s`, message);
      this.#settle(delivery, timeoutOutcome(failure.error, timeoutMs));
    } else if (cause instanceof StoppingError || cause instanceof UnreachableError) {
      this.#settle(delivery, { action: 'release' }); // it was interrupted, and did not fail
    } else {
      const outcome = outcomeOf(failure.error);
      if (outcome.action === 'retry' || outcome.action === 'dead') {
        this.#say('info', `handler failed: ${textOfError(failure.error)}`, message);
      }
      this.#settle(delivery, outcome);
    }
  }

  /** Tells a handler that it should stop. */
  #tell(delivery: Delivery, cause: DuestreamError): void {
    delivery.message.tell(cause);
    if (delivery.begun || !this.#waiting.includes(delivery)) return;
    this.#waiting = this.#waiting.filter((one) => one !== delivery);
    this.#finish(delivery, { error: cause });
  }

  #setTimeout(delivery: Delivery): void {
    const own = delivery.message.extra.get('handler_timeout_ms') ?? '';
    const ms = /^\d{1,15}$/.test(own) && Number(own) <= limits.tenYearsMs ? Number(own) : 0;
    delivery.timeoutMs = ms || delivery.part.queue.policy.handlerTimeoutMs || this.#handlerTimeoutMs;
    if (!delivery.timeoutMs || delivery.timeoutMs > longestTimerMs) return;
    delivery.timer = setTimeout(() => {
      this.#tell(delivery, new HandlerTimeoutError("the handler's time is over"));
      delivery.timer = setTimeout(() => this.#abandon(delivery), Math.min(this.#abandonAfterMs, longestTimerMs));
    }, delivery.timeoutMs);
  }

  /** Settles a delivery whose handler does not stop. The handler goes on, without effect on the message. */
  #abandon(delivery: Delivery): void {
    if (delivery.ended) return;
    this.#say('error', 'handler abandoned: it ignores that its time is over', delivery.message);
    this.#finish(delivery, { error: new Error(`the handler went on for another ${this.#abandonAfterMs / 1000} s`) });
  }

  // ---- progress -----------------------------------------------------------------------------------------------------

  async #saveProgress(delivery: Delivery, cursor: Buffer): Promise<void> {
    const { message, part, rawId } = delivery;
    const answer = await this.#connection.evaluate('save_progress', part.place.keys('stream progress'), this.#group,
      this.consumer, message.entryId, rawId, cursor);
    if (answer === heldCancelled) {
      const cancelled = new CancelledError('the message was cancelled');
      this.#tell(delivery, cancelled);
      throw cancelled;
    }
    if (answer === notHeld) {
      const lost = new LostError('the entry was reclaimed, or its body deleted');
      if (this.#holds(delivery)) this.#tell(delivery, lost); // a delivery that was settled meanwhile is not lost
      throw lost;
    }
  }

  /** Deletes the progress of settled deliveries. If it fails, a bridge deletes it. */
  async #forgetProgress(deliveries: readonly Delivery[]): Promise<void> {
    const storing = deliveries.filter(({ message }) => message.stored);
    const [place] = storing.map(({ part }) => part.place);
    if (!place) return;
    const fields = storing.map(({ message }) => `${message.entryId}${separator}${this.#group}`);
    try {
      await this.#connection.ask(['HDEL', place.key('progress'), ...fields]);
    } catch {
      // A bridge deletes it.
    }
  }

  // ---- settle -------------------------------------------------------------------------------------------------------

  /** Takes an entry out of the pending list. Messages that end while a call is on its way share the next one. */
  #settle(delivery: Delivery, outcome?: Outcome): void {
    if (outcome) delivery.outcome = outcome;
    this.#unsettled.push(delivery);
    if (!this.#settling) void this.#settleAll();
  }

  async #settleAll(): Promise<void> {
    this.#settling = true;
    await null; // messages that end in the same moment share a call
    while (this.#unsettled.length) {
      const batch = this.#unsettled;
      this.#unsettled = [];
      for (const part of new Set(batch.map((delivery) => delivery.part))) {
        const here = batch.filter((delivery) => delivery.part === part);
        const done = here.filter(({ outcome }) => !outcome);
        await this.#settleSome(done, ackBatch, (some) => this.#acknowledge(part, some));
        const failed = here.filter(({ outcome }) => outcome);
        await this.#settleSome(failed, failBatch, (some) => this.#fail(part, some));
      }
    }
    this.#settling = false;
  }

  async #settleSome(deliveries: readonly Delivery[], size: number,
    call: (some: readonly Delivery[]) => Promise<Settlement[]>): Promise<void> {
    for (let start = 0; start < deliveries.length; start += size) {
      const some = deliveries.slice(start, start + size);
      let failed = false;
      const answers = await this.#insist(async () => {
        try {
          return await call(some);
        } catch (error) {
          failed = true;
          throw error;
        }
      });
      if (answers) await this.#forgetProgress(some);
      some.forEach((delivery, i) => {
        const answer = answers?.[i] ?? 'unknown';
        // A try that failed may have settled the entry, and only its reply was lost.
        this.#done(delivery, answer === 'lost' && failed ? 'unknown' : answer);
      });
    }
  }

  async #acknowledge(part: Part, deliveries: readonly Delivery[]): Promise<Settlement[]> {
    const plain = deliveries.filter((delivery) => !keepsResult(delivery));
    const items = plain.map((delivery) => [delivery.message.entryId, nameForAck(delivery)]);
    const answers = await this.#connection.evaluateEach('ack', part.place.keys(ackKeys), [this.#group], items,
      this.#actor);
    const won = new Map(plain.map((delivery, i) => [delivery, answers[i] === 1]));
    for (const delivery of deliveries) {
      if (!won.has(delivery)) won.set(delivery, await this.#acknowledgeWithResult(delivery) === 1);
    }
    return deliveries.map((delivery) => {
      if (!won.get(delivery)) return 'lost';
      return delivery.foreign ? 'skipped' : 'acknowledged';
    });
  }

  #acknowledgeWithResult({ part, message, rawId }: Delivery): Promise<Reply> {
    const result = part.place.key(`result:${limits.percent(this.#group)}:${message.id}`);
    return this.#connection.evaluate('ack_result', [...part.place.keys(ackKeys), result], this.#group, message.entryId,
      rawId, message.extra.get('key') ?? '', message.attempt, message.extra.get('result_ms') ?? '', message.result,
      this.#actor);
  }

  async #fail(part: Part, deliveries: readonly Delivery[]): Promise<Settlement[]> {
    const items = deliveries.map(({ message, rawId, outcome }) => [message.entryId, rawId,
      message.stored ? Buffer.concat([Buffer.from(`${outcome?.action}\n`), message.stored]) : outcome?.action ?? '',
      outcome?.delayMs ?? '', outcome?.reason ?? '', outcome?.error ?? '']);
    return (await this.#retry(part, items)).map((answer) => settlements.get(answer) ?? 'unknown');
  }

  #retry(part: Part, items: ReadonlyArray<readonly Argument[]>): Promise<number[]> {
    const { policy } = part.queue;
    return this.#connection.evaluateEach('retry', part.place.keys(retryKeys),
      [this.#group, policy.attempts(), policy.delays()], items, this.#actor);
  }

  /** Forgets a delivery, and gives its place to the next one. */
  #done(delivery: Delivery, settlement: Settlement): void {
    delivery.part.held.delete(delivery.message.entryId);
    if (delivery.begun) this.#running--;
    this.stats[settlement]++;
    try {
      this.#settledCall?.(delivery.message, settlement);
    } catch (error) {
      this.#log.error(`duestream: settled threw an error: ${textOfError(error)}`);
    }
    this.#startWaiting();
    this.#freedBell.ring();
  }

  // ---- extend, and look at settings ---------------------------------------------------------------------------------

  async #extendLoop(): Promise<void> {
    while (!this.#over) {
      const began = performance.now();
      let failed = false;
      for (const part of this.#parts.values()) {
        try {
          await this.#extend(part);
        } catch (error) {
          failed = true;
          if (!this.#over) this.#log.warn(`duestream: extend ${part.stream}: ${textOfError(error)}`);
        }
      }
      const shortest = Math.min(...this.#queues.map((queue) => queue.policy.visibilityMs));
      const pause = failed ? Math.max(50, shortest / 10)
        : Math.min(shortest / 3, learnWithinMs) - (performance.now() - began);
      if (!this.#over) await this.#changedBell.wait(Math.max(10, pause));
    }
  }

  /** Restarts the visibility timeout of held entries. It tells handlers of lost and cancelled messages to stop. */
  async #extend(part: Part): Promise<void> {
    const { visibilityMs } = part.queue.policy;
    const held = [...part.held.values()];
    for (let start = 0; start < held.length; start += extendBatch) {
      const batch = held.slice(start, start + extendBatch);
      const before = performance.now();
      let answers: number[];
      try {
        answers = await within(Math.max(100, Math.min(callTimeoutMs, visibilityMs / 3)), () =>
          this.#extendEntries(part, batch.map(({ message, rawId }) => [message.entryId, rawId])));
      } catch (error) {
        for (const delivery of batch) {
          if (performance.now() - delivery.extended > visibilityMs && this.#holds(delivery)) {
            this.#tell(delivery, new UnreachableError('not extended for a visibility timeout'));
          }
        }
        throw error;
      }
      for (const [i, delivery] of batch.entries()) {
        if (answers[i] !== notHeld) delivery.extended = before;
        if (!this.#holds(delivery) || delivery.ended) continue; // it was settled meanwhile
        if (answers[i] === notHeld) {
          this.#tell(delivery, new LostError('the entry was reclaimed, or its body deleted'));
        } else if (answers[i] === heldCancelled) {
          this.#tell(delivery, new CancelledError('the message was cancelled'));
        }
      }
    }
  }

  #extendEntries(part: Part, items: ReadonlyArray<readonly Argument[]>): Promise<number[]> {
    return this.#connection.evaluateEach('extend', part.place.keys('stream dead policy history'),
      [this.#group, this.consumer], items, this.#actor);
  }

  async #watchLoop(): Promise<void> {
    while (!this.#over) {
      await this.#overBell.wait(refreshMs);
      try {
        if (!this.#over) await this.#refresh();
      } catch {
        // The reads report an outage.
      }
    }
  }

  /** Reads the registry and the policies. New partitions are joined before the next read. */
  async #refresh(): Promise<void> {
    for (const queue of this.#queues) {
      const count = await queue.counts.refresh(this.#connection, true);
      for (let number = 0; number < count; number++) {
        const part = new Part(queue, new Partition(this.#prefix, queue.name, number));
        if (!this.#parts.has(part.stream)) this.#parts.set(part.stream, part);
      }
      const [own, defaults] = await this.#connection.ask(
        ['HGETALL', new Partition(this.#prefix, queue.name).key('policy')], ['HGETALL', `${this.#prefix}:defaults`]);
      const before = queue.policy.visibilityMs;
      queue.policy = new Policy(textsOf(own), textsOf(defaults), this.#group);
      if (queue.policy.visibilityMs !== before) this.#changedBell.ring();
    }
  }

  // ---- helpers ------------------------------------------------------------------------------------------------------

  /** Repeats a call until Redis answers. The call must be harmless to repeat. undefined: the worker has ended. */
  async #insist<T>(call: () => Promise<T>): Promise<T | undefined> {
    for (let pause = 100; !this.#over; pause = Math.min(2 * pause, 2000)) {
      try {
        return await call();
      } catch (error) {
        this.#failing(error);
      }
      if (!this.#over) await this.#overBell.wait(pause);
    }
    return undefined;
  }

  async #pauseUntilStop(ms: number): Promise<void> {
    if (!this.#stopping) await this.#stopBell.wait(ms);
  }

  #holds({ part, message }: Delivery): boolean {
    return part.held.get(message.entryId)?.message === message;
  }

  #allHeld(): Delivery[] {
    return [...this.#parts.values()].flatMap((part) => [...part.held.values()]);
  }

  #failing(error: unknown): void {
    if (!this.#over) this.#log.warn(`duestream: the worker is failing: ${textOfError(error)}`);
  }

  #say(level: keyof Logger, text: string, { queue, id, entryId, attempt }: Message): void {
    this.#log[level](`duestream: ${text}: queue ${queue}, id ${id}, entry ${entryId}, attempt ${attempt}`);
  }
}

function queueNames(given: readonly string[], mux: Mux | undefined): readonly string[] {
  if (!Array.isArray(given)) throw new InvalidError('queues', given, 'must be a list of names');
  const ofMux = mux?.queues() ?? [];
  const names = given.length ? given : ofMux;
  if (names.length < 1 || names.length > 100) {
    throw new InvalidError('queues', names.length, 'must be between 1 and 100');
  }
  for (const name of names) {
    limits.checkQueue(name);
    if (names.filter((one) => one === name).length > 1) throw new InvalidError('queues', name, 'must be named once');
    if (mux && !ofMux.includes(name)) throw new InvalidError('queues', name, 'has no kind in the mux');
  }
  for (const name of ofMux) {
    if (!names.includes(name)) {
      throw new InvalidError('queues', name, 'has a kind in the mux, and must be among the queues');
    }
  }
  return names;
}

function keepsResult({ foreign, message }: Delivery): boolean {
  const age = message.extra.get('result_ms') ?? '';
  return !foreign && /^\d{1,15}$/.test(age) && Number(age) >= 1000 && Number(age) <= 7 * limits.dayMs;
}

/** Returns the argument id of the script ack, with the ordering key if there is one. */
function nameForAck({ message, rawId }: Delivery): Buffer {
  const key = message.extra.get('key') ?? '';
  const named = key !== '' && !key.includes(separator);
  if (!named && !rawId.subarray(0, 1).equals(Buffer.from(separator))) return rawId;
  return Buffer.concat([Buffer.from(`${separator}${named ? key : ''}${separator}`), rawId]);
}

function textsOf(reply: Reply | undefined): Map<string, string> {
  return new Map(pairsOf(reply).map(([name, value]) => [textOf(name), textOf(value)]));
}

/** Rejects if a call takes longer than some ms. The call itself goes on. */
async function within<T>(ms: number, call: () => Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new DuestreamError(`no reply within ${Math.round(ms)} ms`)), ms);
  });
  try {
    return await Promise.race([call(), late]);
  } finally {
    clearTimeout(timer);
  }
}
