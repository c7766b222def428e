// Kinds of messages, and a mux that calls the handler of a message's kind.
import { createHash } from 'node:crypto';
import type { Client } from './client.js';
import { DeadLetter, Release, RetryAfter, Snooze, textOfError } from './delivery.js';
import type { Handler, Message } from './delivery.js';
import { InvalidError } from './errors.js';
import * as limits from './limits.js';
import type { NewMessage, Receipt, ScheduleOptions } from './message.js';

/** The header that names the kind of a message. */
export const kindHeader = 'kind';

/** Snoozes after which a message of an unknown kind becomes a dead letter, but not within unknownKindMs. */
export const maxUnknownSnoozes = 60;

/** Time in ms since a worker's first message of an unknown kind, during which it makes no dead letter of this kind. */
export const unknownKindMs = 55 * 60_000;

const maxUnknownKinds = 1000;

/** A value that helps to identify the thing that a message is about. Numbers are whole. */
export type UniqueValue = string | number | bigint | boolean | null;

export interface KindOptions<T> {
  /** At most 128 bytes. A kind without a name stands for messages of its queue without the header kindHeader. */
  name: string;
  queue: string;
  /** Checks the JSON value of a payload, and returns it. If it throws, the message becomes a dead letter. */
  parse?: (json: unknown) => T;
  /** Instead of JSON, together with decode. */
  encode?: (value: T) => string | Uint8Array;
  /** Instead of JSON, together with encode. It may throw Snooze, Release or RetryAfter. */
  decode?: (payload: Buffer) => T;
  /**
   * Returns the values that identify the thing that a message is about, like the ID of an order. At most one message
   * about the same thing is scheduled; a further one is refused with DuplicateError, or replaces it. The values become
   * the ID and the ordering key.
   */
  uniqueBy?: (value: T) => readonly UniqueValue[];
}

/** The methods for messages of a Client, and of a Memory of duestream/testing. */
export type MessageClient = Pick<Client, 'schedule' | 'send' | 'sendBatch' | 'cancel' | 'reschedule'>;

/** The messages of one purpose: their name, their queue, and the type of their payloads, which are JSON by default. */
export class Kind<T> {
  readonly name: string;
  readonly queue: string;
  readonly #options: KindOptions<T>;

  constructor(options: KindOptions<T>) {
    limits.checkNames('kind field', options, ['name', 'queue', 'parse', 'encode', 'decode', 'uniqueBy']);
    this.name = options.name;
    this.queue = options.queue;
    this.#options = options;
    limits.checkQueue(this.queue);
    checkKindName(this.name);
    if (!options.encode !== !options.decode) {
      throw new InvalidError('kind', this.name, 'must have both encode and decode, or none');
    }
    if (options.parse && options.decode) throw new InvalidError('kind', this.name, 'must not have parse beside decode');
  }

  /** Encodes a value, and sends it as Client.schedule does. */
  async schedule(client: MessageClient, value: T, options: ScheduleOptions = {}): Promise<Receipt> {
    return client.send(this.queue, this.message(value, options));
  }

  /**
   * Cancels the scheduled message about the same thing as a value, as Client.cancel does. It needs uniqueBy.
   * NotScheduledError: there is none.
   */
  async cancel(client: MessageClient, value: T): Promise<void> {
    await client.cancel(this.queue, this.uniqueId(value));
  }

  /** Returns the message that schedule sends, for Client.sendBatch with the queue of the kind. */
  message(value: T, options: ScheduleOptions = {}): NewMessage {
    const own = options.headers?.[kindHeader];
    if (own !== undefined) throw new InvalidError(`header ${kindHeader}`, own, 'is set by the kind alone');
    const message: NewMessage = { ...options, payload: this.#encode(value) };
    if (this.name) message.headers = { ...options.headers, [kindHeader]: this.name };
    if (this.#options.uniqueBy) {
      for (const name of ['id', 'key'] as const) {
        if (options[name] !== undefined) throw new InvalidError(name, options[name], 'is set by uniqueBy alone');
      }
      message.id = message.key = this.uniqueId(value);
    }
    return message;
  }

  /**
   * Returns the ID of the messages about a value, for Client.cancel and Client.reschedule. It is the same in each
   * language: the name, a colon, and the values as JSON, separated by commas. If this text cannot be an ID, the SHA-256
   * of the values takes their place.
   */
  uniqueId(value: T): string {
    if (!this.#options.uniqueBy) throw new InvalidError('kind', this.name, 'has no uniqueBy');
    const values = this.#options.uniqueBy(value).map(uniqueText).join();
    const id = `${this.name}:${values}`;
    try {
      limits.checkText('id', id);
      return id;
    } catch {
      return `${this.name}:#${createHash('sha256').update(values).digest('hex')}`;
    }
  }

  /** Decodes the payload of a message. A payload that does not fit throws DeadLetter. */
  valueOf(message: Message): T {
    const { decode, parse } = this.#options;
    try {
      if (decode) return decode(message.payload);
      const json: unknown = JSON.parse(message.payload.toString());
      return parse ? parse(json) : json as T;
    } catch (error) {
      const asked = [DeadLetter, Snooze, Release, RetryAfter].some((one) => error instanceof one);
      if (asked) throw error;
      throw new DeadLetter(`the payload does not fit ${inWords(this.name)}: ${textOfError(error)}`, { cause: error });
    }
  }

  #encode(value: T): string | Uint8Array {
    if (this.#options.encode) return this.#options.encode(value);
    let json: string | undefined;
    try {
      json = JSON.stringify(value);
    } catch (error) {
      throw new InvalidError('value', typeof value, `cannot be encoded: ${textOfError(error)}`);
    }
    if (json === undefined) throw new InvalidError('value', typeof value, 'cannot be encoded as JSON');
    return json;
  }
}

/**
 * Calls the handler of a message's kind. A message of a kind without a handler is snoozed for some time, because a
 * worker of a newer release may know the kind. Then it becomes a dead letter: see maxUnknownSnoozes.
 */
export class Mux {
  readonly #handlers = new Map<string, Map<string, Handler>>(); // by queue and kind
  readonly #since = new Map<string, number>(); // when the first message of an unknown kind came
  #otherwise: Handler | undefined;

  /** Sets the handler of a kind. It returns the mux. */
  handle<T>(kind: Kind<T>, handler: (value: T, message: Message) => unknown): this {
    let ofQueue = this.#handlers.get(kind.queue);
    if (!ofQueue) this.#handlers.set(kind.queue, ofQueue = new Map<string, Handler>());
    if (ofQueue.has(kind.name)) {
      throw new InvalidError('kind', kind.name, `has two handlers for queue "${kind.queue}"`);
    }
    ofQueue.set(kind.name, (message) => handler(kind.valueOf(message), message));
    return this;
  }

  /** Sets the handler of messages whose kind has no handler in their queue. It returns the mux. */
  otherwise(handler: Handler): this {
    if (this.#otherwise) throw new InvalidError('handler of other kinds', '', 'is set twice');
    this.#otherwise = handler;
    return this;
  }

  /** Returns the queues of the kinds, in alphabetical order. */
  queues(): string[] {
    return [...this.#handlers.keys()].sort();
  }

  /** Returns the handler for a message. */
  handlerOf(message: Message): Handler {
    const known = this.#handlers.get(message.queue)?.get(kindOf(message));
    return known ?? this.#otherwise ?? ((one) => this.#unknown(one));
  }

  #unknown(message: Message): never {
    const name = kindOf(message);
    try {
      checkKindName(name);
    } catch (error) {
      throw new DeadLetter(textOfError(error));
    }
    const key = JSON.stringify([message.queue, name]);
    const now = performance.now();
    if (!this.#since.has(key) && this.#since.size < maxUnknownKinds) this.#since.set(key, now);
    const age = now - (this.#since.get(key) ?? now);
    const text = message.extra.get('snoozes') ?? '';
    const snoozes = /^\d{1,9}$/.test(text) ? Number(text) : 0;
    if (snoozes >= maxUnknownSnoozes && age >= unknownKindMs) {
      throw new DeadLetter(
        `no worker of group "${message.group}" knows ${inWords(name)}: it was snoozed ${snoozes} times`);
    }
    throw new Snooze(snoozes < 6 ? 1000 * 2 ** snoozes : 60_000);
  }
}

/** Returns the name of a message's kind. A retry holds a name that is not UTF-8 as base64, in another field. */
function kindOf(message: Message): string {
  const encoded = message.extra.get(`b64:h:${kindHeader}`);
  return message.headers[kindHeader] ?? Buffer.from(encoded ?? '', 'base64').toString();
}

function inWords(name: string): string {
  return name ? `kind "${name}"` : 'messages without a kind';
}

function checkKindName(name: string): void {
  if (name !== '') limits.checkText('kind', name, 128);
}

/** Returns a value as JSON, with the same bytes as in Go. */
function uniqueText(value: UniqueValue): string {
  if (typeof value === 'bigint' || (typeof value === 'number' && Number.isSafeInteger(value))) return String(value);
  if (typeof value === 'number' || (value !== null && !['string', 'boolean'].includes(typeof value))) {
    throw new InvalidError('unique by', value, 'must be a string, a whole number, a boolean or null');
  }
  if (typeof value === 'string') limits.utf8Bytes('unique by', value);
  return JSON.stringify(value).replaceAll('\u2028', '\\u2028').replaceAll('\u2029', '\\u2029');
}
