#!/usr/bin/env node
// A duestream worker in Node.js: ioredis (npm install).
//
//   QUEUE=emails GROUP=billing node worker.js
//
// Put your work into handle(), or use Worker in your own program. When the handler resolves, the message is acknowledged. When it rejects, the
// message has failed and is delivered again. Each acknowledged message prints one line: ID, attempt. SIGTERM and SIGINT stop the worker after
// the messages that it is working on.
//
// With the functions library (duestream functions load), a failed message comes back after the backoff of the policy, and Retry and DeadLetter
// have their effect. Without it, a failed message comes back after the visibility timeout.
//
// DUESTREAM_REDIS_URL  default redis://127.0.0.1:6379         DUESTREAM_PREFIX  default duestream
// QUEUE, GROUP         required                               CONSUMER          default host-process
// CONCURRENCY          messages handled at the same time, per partition; default 16
// ACK_LOG              file that gets "ID attempt entry" after each acknowledgement
// FAIL_ONCE_PERCENT    this share of first attempts fails, to show that messages come back; default 0
import { appendFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { pathToFileURL } from 'node:url';
import { connect, pause, Queue, repeatedly, say, watched } from './duestream.js';

// Does the work of one message. A message may be delivered again, so doing the work twice must be harmless.
async function handle(message) {
  if (message.attempt === 1 && Math.random() * 100 < (process.env.FAIL_ONCE_PERCENT ?? 0)) throw new Error('failing once, as asked');
}

// A handler throws this to have the message delivered again after delayMs.
export class Retry extends Error {
  constructor(message, delayMs) {
    super(message);
    this.delayMs = delayMs;
  }
}

// A handler throws this when another attempt will not help.
export class DeadLetter extends Error {}

class Message {
  constructor(entry, fields) {
    const raw = {};
    for (let i = 0; i < fields.length; i += 2) raw[fields[i]] = fields[i + 1];
    this.entry = String(entry);
    this.rawId = raw.id ?? entry;
    this.id = String(this.rawId);
    this.payload = raw.payload ?? Buffer.alloc(0);
    this.attempt = /^\d+$/.test(raw.attempt) ? Number(raw.attempt) : 1;
    this.for = String(raw.for ?? '');
    this.headers = Object.fromEntries(Object.entries(raw).filter(([name]) => name.startsWith('h:')).map(([name, v]) => [name.slice(2), String(v)]));
    this.lost = new AbortController();
    this.signal = this.lost.signal; // aborted when the message was given to another worker: long work should stop then
  }
}

// Calls handler(message) for the messages of a group. run() reads every partition until stop() is called.
export class Worker {
  #stopping = new AbortController();
  #ended = new AbortController();
  #held = new Map(); // by partition and entry: the messages that were delivered and not settled
  #policy;

  constructor(redis, queue, group, handler, { consumer = `${hostname()}-${process.pid}`, concurrency = 16, acknowledged = () => {} } = {}) {
    Object.assign(this, { redis, queue: new Queue(redis, queue), group, handler, consumer, concurrency, acknowledged });
  }

  stop() {
    this.#stopping.abort();
  }

  get stopping() {
    return this.#stopping.signal.aborted;
  }

  async run() {
    await this.#insist(() => this.#readPolicy());
    if (!this.#policy) return;
    const extender = this.#extendForever();
    const readers = [];
    while (!this.stopping) {
      try {
        for (const count = await this.queue.partitions(); readers.length < count;) readers.push(this.#read(readers.length));
      } catch (err) {
        say(err);
      }
      await pause(readers.length ? 5000 : 200, this.#stopping);
    }
    await Promise.all(readers);
    this.#ended.abort();
    await extender;
  }

  async #read(partition) {
    const connection = watched(this.redis.duplicate()); // a blocked connection serves nothing else
    const stream = this.queue.key('stream', partition);
    const held = new Map(), running = new Set();
    this.#held.set(partition, held);
    // a bridge takes back the entries that were read before this worker started
    let start = await this.#insist(() => this.#lastDelivered(stream));
    for (let after = '>', delay = 100; !this.stopping;) {
      try {
        while (running.size >= this.concurrency) await Promise.race(running);
        const reply = await connection.xreadgroupBuffer('GROUP', this.group, this.consumer, 'COUNT', this.concurrency - running.size,
          'BLOCK', 2000, 'STREAMS', stream, after);
        const entries = reply?.[0][1] ?? [];
        if (after !== '>') after = entries.at(-1)?.[0] ?? '>';
        for (const [entry, fields] of entries) {
          if (!fields || held.has(String(entry))) continue;
          const message = new Message(entry, fields);
          held.set(message.entry, message);
          const work = this.#work(partition, message).catch(say).finally(() => {
            held.delete(message.entry);
            running.delete(work);
          });
          running.add(work);
        }
        delay = 100;
      } catch (err) {
        // A lost group is always created again at 0. Before 7.2, a key that is deleted during a blocked read gives UNBLOCKED.
        if (/^(NOGROUP|UNBLOCKED)/.test(err.message)) {
          await this.#insist(() => this.#createGroup(stream));
          start = '0-0';
          continue;
        }
        say(err);
        await pause(delay, this.#stopping);
        delay = Math.min(2 * delay, 3000);
        // The entries of a lost reply are pending: read them again. Without the library, failed messages are pending too, and must wait.
        if (!this.queue.plain) after = start;
      }
    }
    await Promise.all(running);
    connection.disconnect();
  }

  async #lastDelivered(stream) {
    // without the library no entry is read again, and the user may lack permission for XINFO
    if (await this.queue.fcall('version', []) === null) return '>';
    try {
      for (const flat of await this.redis.xinfo('GROUPS', stream)) if (flat[1] === this.group) return flat[flat.indexOf('last-delivered-id') + 1];
    } catch (err) {
      if (!/no such key/.test(err.message)) throw err;
    }
    return '0-0';
  }

  async #createGroup(stream) {
    try {
      await this.redis.xgroup('CREATE', stream, this.group, '0', 'MKSTREAM');
    } catch (err) {
      if (!err.message.startsWith('BUSYGROUP')) throw err;
    }
  }

  async #work(partition, message) {
    const own = message.for === '' || message.for === this.group;
    try {
      if (own) await this.handler(message); // a retry for another group is only acknowledged
    } catch (err) {
      say(`${message.id}, attempt ${message.attempt}: ${err.message}`);
      await this.#insist(() => this.#fail(partition, message, err));
      return;
    }
    if (await this.#insist(() => this.#acknowledge(partition, message)) && own) this.acknowledged(message);
  }

  async #acknowledge(partition, { entry, rawId }) {
    const stream = this.queue.key('stream', partition);
    const reply = await this.queue.fcall('ack', [stream], this.group, entry, rawId);
    return (reply ? reply[0] : await this.redis.xack(stream, this.group, entry)) === 1;
  }

  // Without the library a failed message stays pending until the visibility timeout.
  async #fail(partition, { entry, rawId }, err) {
    const keys = this.queue.keys('stream due payload meta dead wake turns policy history', partition);
    const text = String(err.message).slice(0, 340);
    let call = ['retry', this.#limits(), this.#delays(), entry, rawId, 'retry', err.delayMs ?? '', 'max_attempts', text];
    if (err instanceof DeadLetter) call = ['dead_letter', entry, rawId, text];
    const [script, ...args] = call;
    try {
      return await this.queue.fcall(script, keys, this.group, ...args, `worker ${this.consumer}`);
    } catch (refusal) {
      if (!refusal.message.includes(' was given ')) throw refusal;
      return this.queue.fcall(script, keys.slice(0, 6), this.group, ...args); // a library of an earlier release
    }
  }

  // Returns the limit of attempts, and the limit of a message's age if the policy has one.
  #limits() {
    const { max_attempts: attempts, retry_for_ms: limit } = this.#policy;
    return limit ? `${attempts} retry_for_ms=${limit}` : attempts;
  }

  // Returns the delays after failed attempts: the policy's list, or for the n-th retry_min × 2^(n-1) × 0.5 to 1.5,
  // and at most retry_max.
  #delays() {
    const { retry_delays_ms: list, retry_min_ms: least, retry_max_ms: most } = this.#policy;
    if (list !== '0') return list;
    const steps = [least];
    while (steps.at(-1) < most) steps.push(2 * steps.at(-1));
    return steps.map((step) => Math.max(1, Math.min(Math.max(least, most), Math.round(step * (0.5 + Math.random()))))).join();
  }

  // Restarts the visibility timeout of all held messages whenever a third of it has passed.
  async #extendForever() {
    while (!this.#ended.signal.aborted) {
      await pause(Math.min(this.#policy.visibility_ms / 3, 5000), this.#ended);
      try {
        for (const [partition, held] of this.#held) if (held.size) await this.#extend(partition, [...held.values()]);
        await this.#readPolicy();
      } catch (err) {
        say(err);
      }
    }
  }

  async #extend(partition, messages) {
    const [stream, dead] = this.queue.keys('stream dead', partition);
    let extended = await this.queue.fcall('extend', [stream, dead], this.group, this.consumer, ...messages.flatMap((m) => [m.entry, m.rawId]));
    if (extended === null) {
      const still = await this.redis.xclaim(stream, this.group, this.consumer, 0, ...messages.map((m) => m.entry), 'JUSTID');
      extended = messages.map((m) => still.includes(m.entry));
    }
    messages.forEach((m, i) => extended[i] || m.lost.abort());
  }

  async #readPolicy() {
    this.#policy = await this.queue.policy(this.group);
  }

  // Repeats a call until Redis answers. The call must be harmless to repeat. Returns undefined if the worker has to stop before that.
  #insist(call) {
    return repeatedly(call, () => !this.stopping).catch(say);
  }
}

export async function runUntilSignal(worker) {
  for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => worker.stop());
  await worker.run();
  worker.redis.disconnect();
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { QUEUE, GROUP, CONSUMER, CONCURRENCY = 16, ACK_LOG } = process.env;
  if (!QUEUE || !GROUP) throw new Error('set QUEUE and GROUP; see the beginning of worker.js');
  const acknowledged = ({ id, attempt, entry }) => {
    console.log(id, attempt);
    if (ACK_LOG) appendFileSync(ACK_LOG, `${id} ${attempt} ${entry}\n`);
  };
  await runUntilSignal(new Worker(connect(), QUEUE, GROUP, handle, { consumer: CONSUMER, concurrency: Number(CONCURRENCY), acknowledged }));
}
