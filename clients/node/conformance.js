#!/usr/bin/env node
// Runs the package's worker or producer in the form that `duestream conformance` tests, after npm run build.
//
//   duestream conformance --worker --level complete -- node clients/node/conformance.js worker
//   duestream conformance --producer --level complete -- node clients/node/conformance.js producer
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client, DeadLetter, RetryAfter, Worker } from './dist/src/index.js';

const { DUESTREAM_REDIS_URL, DUESTREAM_PREFIX, QUEUE, GROUP, CONSUMER } = process.env;
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

function messageOf(order) {
  const message = { id: order.id, at: new Date(order.due_ms), payload: Buffer.from(order.payload ?? '', 'base64') };
  if (order.headers) message.headers = order.headers;
  if (order.max_attempts) message.maxAttempts = order.max_attempts;
  if (order.expires_ms) message.expires = new Date(order.expires_ms);
  if (order.dedup_ms) message.dedupMs = order.dedup_ms;
  return message;
}

async function produce() {
  const client = new Client(DUESTREAM_REDIS_URL, { prefix: DUESTREAM_PREFIX });
  for await (const line of createInterface({ input: process.stdin })) {
    const message = messageOf(JSON.parse(line));
    try {
      await client.send(QUEUE, message);
      say({ id: message.id, ok: true });
    } catch (error) {
      say({ id: message.id, ok: false, error: error.message });
    }
  }
  await client.close();
}

async function handler({ id, attempt, payload, headers, signal }) {
  say({ id, attempt, payload: payload.toString('base64'), headers });
  const [what, number] = (headers.work ?? 'ok').split(' ');
  if (what === 'slow') await sleep(Number(number), undefined, { signal });
  if (what === 'fail' && attempt <= number) throw new Error('asked to fail');
  if (what === 'retry' && attempt === 1) throw new RetryAfter(Number(number), 'asked to retry');
  if (what === 'dead') throw new DeadLetter('asked to die');
}

async function work() {
  const options = { prefix: DUESTREAM_PREFIX, queues: [QUEUE], group: GROUP, consumer: CONSUMER, handler };
  await new Worker(DUESTREAM_REDIS_URL, { ...options, shutdownTimeoutMs: 8000, cancelGraceMs: 1000 }).run();
}

if (process.argv[2] === 'producer') await produce();
else if (process.argv[2] === 'worker') await work();
else throw new Error('usage: conformance.js producer, or conformance.js worker');
