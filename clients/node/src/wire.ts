// The keys, commands and scripts that clients and workers send to Redis.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { ClosedError, connectionError, InvalidError, isServerError, serverError, UnavailableError,
  UncertainError } from './errors.js';
import type { DuestreamError } from './errors.js';

export type Argument = string | number | Buffer;
export type Command = readonly [name: string, ...args: Argument[]];

/** A reply of Redis. An Error is the error reply of the server to one command. */
export type Reply = Buffer | string | number | null | Error | Reply[];

export const defaultUrl = 'redis://127.0.0.1:6379';
export const defaultPrefix = 'duestream';
export const separator = '\x1f';
export const maxPartitions = 256;

/** Time without a reply until a connection counts as broken, in ms. */
export const callTimeoutMs = 5000;

/** One partition of a queue, and the names of its keys. */
export class Partition {
  constructor(readonly prefix: string, readonly queue: string, readonly number = 0) {}

  key(kind: string): string {
    const part = this.number ? `/${this.number}` : '';
    return `${this.prefix}:{${this.queue}${part}}:${kind}`;
  }

  keys(kinds: string): string[] {
    return kinds.split(' ').map((kind) => this.key(kind));
  }
}

/** Returns the partition for the key of a message, or for the ID of a message without a key. */
export function partitionOf(idOrKey: string, count: number): number {
  return count === 1 ? 0 : crc32(Buffer.from(idOrKey)) % count;
}

// The CRC-32 that zlib and gzip use. Node.js has its own since 20.15.
function crc32(bytes: Buffer): number {
  let crc = ~0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (0xedb88320 & -(crc & 1));
  }
  return ~crc >>> 0;
}

/**
 * A connection to one server. It connects at the first call, and anew at the next call after it broke. A call is never
 * sent twice: its caller decides whether it may be repeated.
 */
export class Connection {
  readonly #url: string;
  readonly #replyTimeoutMs: number;
  #redis: Redis | undefined;
  #opening: Promise<Redis> | undefined;
  #cause: Error | undefined; // why the present connection broke
  #closed = false;

  constructor(url: string, replyTimeoutMs = callTimeoutMs) {
    if (!/^rediss?:\/\/./.test(url)) {
      throw new InvalidError('url', url.replace(/\/\/.*@/, '//…@'), 'must begin with redis:// or rediss://');
    }
    this.#url = url;
    this.#replyTimeoutMs = replyTimeoutMs;
  }

  /** Sends commands in one round trip, and returns their replies. It throws the first error among them. */
  async ask(...commands: Command[]): Promise<Reply[]> {
    const replies = await this.#send(commands);
    replies.forEach((reply, i) => {
      const name = commands[i]?.[0] ?? '';
      // Redis goes on with a transaction after an error, so the reply to EXEC may hold errors.
      for (const one of name === 'EXEC' && Array.isArray(reply) ? reply : [reply]) {
        if (one instanceof Error) throw serverError(name, one);
      }
    });
    return replies;
  }

  /** Calls a script, and loads it if the server does not have it. */
  async evaluate(name: string, keys: readonly string[], ...args: Argument[]): Promise<Reply> {
    const code = script(name);
    const rest = [keys.length, ...keys, ...args];
    let [reply = null] = await this.#send([['EVALSHA', code.sha, ...rest]]);
    if (reply instanceof Error && reply.message.startsWith('NOSCRIPT')) {
      [reply = null] = await this.#send([['EVAL', code.text, ...rest]]);
    }
    if (reply instanceof Error) throw serverError(name, reply);
    return reply;
  }

  /**
   * Calls a script that answers an integer for each item. It sends the items that were not looked at (-9) again. The
   * arguments are first, the items and the actor, in this order.
   */
  async evaluateEach(name: string, keys: readonly string[], first: readonly Argument[],
    items: ReadonlyArray<readonly Argument[]>, actor: string): Promise<number[]> {
    const answers: number[] = [];
    while (answers.length < items.length) {
      const left = items.slice(answers.length).flat();
      const reply = numbersOf(await this.evaluate(name, keys, ...first, ...left, actor));
      const unseen = reply.indexOf(-9);
      const done = unseen < 0 ? reply : reply.slice(0, unseen);
      // The protocol excludes this. Without the check the loop would not end.
      if (!done.length) throw new UnavailableError(`${name}: the server looked at none of ${items.length} items`);
      answers.push(...done);
    }
    return answers;
  }

  /** Ends the connection. Calls that wait for a reply fail, and so do later calls. */
  close(): void {
    this.#closed = true;
    this.#redis?.disconnect();
  }

  async #send(commands: readonly Command[]): Promise<Reply[]> {
    const redis = await this.#open();
    const what = commands[0]?.[0] ?? '';
    if (redis.status !== 'ready') throw this.#failure(what, new Error('the connection is closed'), false);
    // ioredis writes the commands in this order, with no other caller's command between them.
    const replies = await Promise.all(commands.map(([name, ...args]) =>
      redis.callBuffer(name, ...args).then((reply) => reply as Reply, (error: Error) => error)));
    for (const reply of replies) {
      if (reply instanceof Error && !isServerError(reply)) throw this.#failure(what, reply, true);
    }
    return replies;
  }

  /** Returns the error for a connection that broke. If the server refused the connection, it is the server's error. */
  #failure(what: string, error: Error, sent: boolean): DuestreamError {
    const cause = this.#cause ?? error;
    return isServerError(cause) ? serverError('connect', cause) : connectionError(what, cause, sent);
  }

  async #open(): Promise<Redis> {
    if (this.#closed) throw new ClosedError('the connection is closed');
    if (this.#redis?.status === 'ready') return this.#redis;
    this.#opening ??= this.#connect().finally(() => {
      this.#opening = undefined;
    });
    return this.#opening;
  }

  async #connect(): Promise<Redis> {
    this.#redis?.disconnect();
    const redis = new Redis(this.#url, {
      lazyConnect: true,
      connectTimeout: callTimeoutMs,
      // When no reply comes, ioredis closes the connection, so that a late reply is not taken for that of another call.
      socketTimeout: this.#replyTimeoutMs,
      // Without these, ioredis would repeat commands whose replies were lost, or send them later.
      retryStrategy: () => null,
      autoResendUnfulfilledCommands: false,
      enableOfflineQueue: false,
      enableReadyCheck: false,
      disableClientInfo: true,
    });
    this.#redis = redis;
    this.#cause = undefined;
    redis.on('error', (error: Error) => {
      if (redis === this.#redis) this.#cause = error;
    });
    try {
      await redis.connect();
    } catch (error) {
      throw this.#failure('connect', error as Error, false);
    }
    if (this.#closed) redis.disconnect(); // closed meanwhile
    return redis;
  }
}

interface Script {
  readonly text: string;
  readonly sha: string;
}

const scripts = new Map<string, Script>();

/** Returns a script of duestream, without its first line, which is a comment for readers. */
export function script(name: string): Script {
  let found = scripts.get(name);
  if (!found) {
    const file = readFileSync(new URL(`../lua/${name}.lua`, import.meta.url), 'utf8');
    const text = file.slice(file.indexOf('\n') + 1);
    found = { text, sha: createHash('sha1').update(text).digest('hex') };
    scripts.set(name, found);
  }
  return found;
}

/**
 * Repeats a call after temporary errors, but not if the failed try began after until, in performance.now(). If a try
 * may have been executed although no reply came, the error is an UncertainError. If the call is harmless, the error is
 * that of the last try.
 */
export async function repeat<T>(call: () => Promise<T>, until: number, harmless = false): Promise<T> {
  let sent = false;
  for (let pause = 20; ; pause = Math.min(2 * pause, 1000)) {
    const began = performance.now();
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof UnavailableError)) throw error;
      sent ||= error.sent;
      if (began >= until) {
        if (!sent || harmless) throw error;
        throw new UncertainError(`it may have been executed: ${error.message}`, { cause: error });
      }
    }
    await sleep(pause * (0.5 + Math.random() / 2));
  }
}

// ---- replies --------------------------------------------------------------------------------------------------------

/** Returns a reply as text. The text is empty if there is no reply. */
export function textOf(reply: Reply | undefined): string {
  return reply === null || reply === undefined ? '' : String(reply);
}

/** Returns a reply as a list. The list is empty if the reply is not a list. */
export function listOf(reply: Reply | undefined): Reply[] {
  return Array.isArray(reply) ? reply : [];
}

/** Returns the pairs of a flat list, as HGETALL and XRANGE answer it. */
export function pairsOf(reply: Reply | undefined): Array<[Reply, Reply]> {
  const flat = listOf(reply);
  const pairs: Array<[Reply, Reply]> = [];
  for (let i = 0; i + 1 < flat.length; i += 2) pairs.push([flat[i] ?? null, flat[i + 1] ?? null]);
  return pairs;
}

/** Returns a list of integers. */
export function numbersOf(reply: Reply | undefined): number[] {
  return listOf(reply).map(Number);
}

/** Returns the reply to TIME as Unix ms. */
export function serverTime(reply: Reply | undefined): number {
  const [seconds = 0, micros = 0] = numbersOf(reply);
  return seconds * 1000 + Math.floor(micros / 1000);
}
