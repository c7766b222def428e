#!/usr/bin/env node
// Runs the package's worker or producer in the form that `duestream conformance` tests, after npm run build.
//
//   duestream conformance --producer --level complete -- node clients/node/conformance.js producer
import { createInterface } from 'node:readline';
import { Client } from './dist/src/index.js';

const { DUESTREAM_REDIS_URL, DUESTREAM_PREFIX, QUEUE } = process.env;
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

if (process.argv[2] === 'producer') await produce();
else throw new Error('usage: conformance.js producer');
