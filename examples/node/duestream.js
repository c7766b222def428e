// The code that producer.js and worker.js share: the keys of a queue, its partitions and settings, and calls of the functions library.
import { setTimeout as sleep } from 'node:timers/promises';
import Redis from 'ioredis';

// By name: the built-in value, the minimum and the maximum. See docs/reference/protocol.md section 11.
const tenYears = 10 * 365 * 24 * 3600 * 1000;
const settings = {
  visibility_ms: [30000, 100, 604800000], max_attempts: [40, 1, 1000000],
  retry_min_ms: [1000, 1, tenYears], retry_max_ms: [3600000, 1, tenYears], retry_for_ms: [0, 0, tenYears],
};

export function say(what) {
  const text = what.message ?? what;
  console.error(`duestream: ${text.startsWith('Reached the max retries') ? 'no connection to Redis' : text}`);
}

// Returns a client for DUESTREAM_REDIS_URL. It reconnects on its own. A command fails when its connection breaks, and callers decide whether to
// repeat it. The time limit of a command is longer than a blocking read.
export function connect() {
  const options = { maxRetriesPerRequest: 0, socketTimeout: 10000 };
  return watched(new Redis(process.env.DUESTREAM_REDIS_URL ?? 'redis://127.0.0.1:6379', options));
}

// Without a listener, each failed attempt to connect would be printed with its stack. The commands that fail report the error themselves.
export const watched = (redis) => redis.on('error', () => {});

// Waits for a time, or until an AbortController aborts.
export const pause = (ms, until) => sleep(ms, null, { signal: until.signal }).catch(() => {});

// Repeats a call while it fails and again(error, milliseconds since the first call) returns true.
export async function repeatedly(call, again) {
  for (let begin = Date.now(), delay = 100; ; delay = Math.min(2 * delay, 3000)) {
    try {
      return await call();
    } catch (err) {
      if (!again(err, Date.now() - begin)) throw err;
      say(err);
      await sleep(delay * (0.5 + Math.random() / 2));
    }
  }
}

// Returns the partition counts in a field of the registry.
const numbers = (text) => (text ?? '').split(',').filter((n) => /^\d+$/.test(n) && n >= 1 && n <= 256).map(Number);

export class Queue {
  plain = true; // whether plain commands must be used, by the last call of the library
  #counts = new Set([1]);
  #lookAgain = 0;
  #plainUntil = 0;

  constructor(redis, name, prefix = process.env.DUESTREAM_PREFIX ?? 'duestream') {
    Object.assign(this, { redis, name, prefix });
  }

  key(kind, partition = 0) {
    return `${this.prefix}:{${this.name}${partition ? `/${partition}` : ''}}:${kind}`;
  }

  keys(kinds, partition) {
    return kinds.split(' ').map((kind) => this.key(kind, partition));
  }

  // Returns how many partitions the queue has. It reads the registry at most every 5 s, and registers the queue if
  // the registry does not have it.
  async partitions() {
    if (Date.now() >= this.#lookAgain) {
      const registered = await this.redis.hget(`${this.prefix}:queues`, this.name);
      if (registered === null) await this.register();
      const counts = [1, ...numbers(registered)];
      if ([...this.#counts].some((n) => !counts.includes(n))) { // the registry lost a count, or the queue was deleted
        const deleted = await this.redis.hget(`${this.prefix}:queues`, `/deleted/${this.name}`);
        for (const n of numbers(deleted)) this.#counts.delete(n);
      }
      for (const n of counts) this.#counts.add(n);
      this.#lookAgain = Date.now() + 5000;
    }
    return Math.max(...this.#counts);
  }

  // Tells the bridges of the queue. Otherwise they find the queue by a scan, which takes seconds or minutes.
  async register() {
    // '-' makes the script leave out the counts of a deleted queue
    const counts = ['-', ...[...this.#counts].sort((a, b) => a - b)].join();
    const added = await this.fcall('register', [`${this.prefix}:queues`], this.name, counts)
      ?? await this.redis.hsetnx(`${this.prefix}:queues`, this.name, '1');
    if (added) await this.redis.xadd(`${this.prefix}:wake`, 'MAXLEN', 1, '*', 'queues', 1);
  }

  // Returns the settings for a group. Each setting comes from the group, else from the queue, else from the defaults,
  // else it is built in.
  async policy(group) {
    const [own, defaults] = await Promise.all([this.redis.hgetall(this.key('policy')), this.redis.hgetall(`${this.prefix}:defaults`)]);
    const encoded = encodeURIComponent(group).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
    const levels = (name) => [own[`group:${encoded}:${name}`], own[name], defaults[name]];
    const found = { retry_delays_ms: levels('retry_delays_ms').find((v) => /^\d+(,\d+)*$/.test(v)) ?? '0' };
    for (const [name, [builtIn, least, most]] of Object.entries(settings)) {
      const values = levels(name);
      found[name] = Number(values.find((v) => /^\d+$/.test(v) && v >= least && v <= most) ?? builtIn);
    }
    return found;
  }

  // Calls a function of the library. Returns null if the library is not loaded: then plain commands must be used.
  // Tries the library again after 5 s.
  async fcall(name, keys, ...args) {
    if (Date.now() < this.#plainUntil) return null;
    try {
      const reply = await this.redis.fcall(`duestream_${name}`, keys.length, ...keys, ...args);
      this.plain = false;
      return reply;
    } catch (err) {
      if (!/^(ERR function not found|ERR unknown command|NOPERM)/i.test(err.message)) throw err;
      this.plain = true;
      this.#plainUntil = Date.now() + 5000;
      return null;
    }
  }
}
