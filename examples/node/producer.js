#!/usr/bin/env node
// Schedules a message from Node.js: ioredis (npm install).
//
//   node producer.js emails order-42 --in 900 --payload 'close the order' --header kind=order
//
// If a message with this ID is still scheduled, the ID is refused where the functions library is loaded (duestream functions load). Otherwise
// the new message replaces it. DUESTREAM_REDIS_URL and DUESTREAM_PREFIX are as for worker.js.
import { randomUUID } from 'node:crypto';
import { parseArgs } from 'node:util';
import { pathToFileURL } from 'node:url';
import { connect, Queue, repeatedly } from './duestream.js';

// The CRC-32 that zlib and gzip use. Node has its own since 20.15.
function crc32(bytes) {
  let crc = ~0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (0xedb88320 & -(crc & 1));
  }
  return ~crc >>> 0;
}

// Returns a JSON object of strings, or an empty string if there are no fields.
function metaOf({ headers = {}, maxAttempts, expiresMs }) {
  const fields = Object.fromEntries(Object.entries(headers).map(([name, value]) => [`h:${name}`, value]));
  if (maxAttempts !== undefined) fields.max_attempts = String(maxAttempts);
  if (expiresMs !== undefined) fields.expires_ms = String(expiresMs);
  return Object.keys(fields).length ? JSON.stringify(fields) : '';
}

export class Producer {
  #done = new Map(); // by partition: the token of the last call whose reply arrived

  constructor(redis, queue, { patienceMs = 15000 } = {}) {
    Object.assign(this, { redis, queue: new Queue(redis, queue), patienceMs });
  }

  // Schedules { id, dueMs, payload, headers, maxAttempts, expiresMs, dedupMs }; all but the first two may be left out. Returns false if the ID is
  // known already. The ID stays known for dedupMs, even after the message was delivered; only the functions library supports this.
  // A call that fails because the connection broke is repeated for patienceMs. Any other error, such as OOM of a full server, is thrown.
  async schedule(message) {
    const again = (err, ms) => ms < this.patienceMs && (/^(READONLY|LOADING) /.test(err.message) || !/^[A-Z]+ /.test(err.message));
    const token = randomUUID(); // with it, the script recognizes a repeated call
    // The partition is decided before the first attempt: a repetition must use the same one, even if the queue has
    // grown meanwhile.
    const partition = crc32(Buffer.from(message.id)) % await repeatedly(() => this.queue.partitions(), again);
    return repeatedly(async () => await this.#call(partition, message, token) ?? this.#plainly(partition, message), again);
  }

  async #call(partition, message, token) {
    const keys = this.queue.keys('due payload meta stream wake seen policy', partition);
    const reply = await this.queue.fcall('schedule', keys, token, this.#done.get(partition) ?? '', 60000,
      message.id, message.dueMs, message.payload ?? '', metaOf(message), message.dedupMs ?? 0);
    if (reply === null) return null;
    this.#done.set(partition, token);
    return reply[0] !== 0;
  }

  async #plainly(partition, { id, dueMs, payload, ...rest }) {
    const [due, payloads, metas, wake] = this.queue.keys('due payload meta wake', partition);
    const meta = metaOf(rest);
    const multi = this.redis.multi(); // a bridge never sees only a part of it
    // The fields that an earlier message with this ID left behind are overwritten or deleted.
    if (payload?.length) multi.hset(payloads, id, payload); else multi.hdel(payloads, id);
    if (meta) multi.hset(metas, id, meta); else multi.hdel(metas, id);
    multi.zadd(due, dueMs, id); // after the body
    multi.xadd(wake, 'MAXLEN', 1, '*', 'due_ms', dueMs);
    let replies;
    try {
      replies = await multi.exec();
    } catch (err) {
      throw err.previousErrors?.[0] ?? err; // the reason why EXEC was refused
    }
    const failed = replies.find(([err]) => err); // EXEC continues after a command that fails
    if (failed) throw failed[0];
    return true;
  }
}

async function main() {
  const { values, positionals: [queue, id] } = parseArgs({
    allowPositionals: true,
    options: { in: { type: 'string', default: '0' }, payload: { type: 'string' }, header: { type: 'string', multiple: true, default: [] } },
  });
  if (!id) throw new Error('usage: producer.js QUEUE ID [--in SECONDS] [--payload TEXT] [--header NAME=VALUE]');
  const headers = Object.fromEntries(values.header.map((h) => [h.slice(0, h.indexOf('=')), h.slice(h.indexOf('=') + 1)]));
  const redis = connect();
  try {
    const [seconds, micros] = await redis.time(); // the server's clock decides
    const dueMs = seconds * 1000 + Math.floor(micros / 1000) + Math.round(values.in * 1000);
    if (!await new Producer(redis, queue).schedule({ id, dueMs, payload: values.payload, headers })) throw new Error(`${id}: scheduled already`);
    console.log(`${id} is due at ${dueMs}`);
  } finally {
    redis.disconnect();
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  main().catch((err) => {
    console.error(`producer.js: ${err.message}`);
    process.exitCode = 1;
  });
}
