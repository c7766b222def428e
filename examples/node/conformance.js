#!/usr/bin/env node
// Runs the example's worker or producer in the form that `duestream conformance` tests.
//
//   duestream conformance --worker --level complete -- node examples/node/conformance.js worker
//   duestream conformance --producer --level complete -- node examples/node/conformance.js producer
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect } from './duestream.js';
import { Producer } from './producer.js';
import { DeadLetter, Retry, runUntilSignal, Worker } from './worker.js';

const { QUEUE, GROUP, CONSUMER } = process.env;
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

async function handle({ id, attempt, payload, headers, signal }) {
  say({ id, attempt, payload: payload.toString('base64'), headers });
  const [what, number] = (headers.work ?? 'ok').split(' ');
  if (what === 'slow') await sleep(Number(number), null, { signal });
  if (what === 'fail' && attempt <= number) throw new Error('asked to fail');
  if (what === 'retry' && attempt === 1) throw new Retry('asked to retry', Number(number));
  if (what === 'dead') throw new DeadLetter('asked to die');
}

const named = ({ max_attempts: maxAttempts, expires_ms: expiresMs, dedup_ms: dedupMs }) => ({ maxAttempts, expiresMs, dedupMs });

async function produce() {
  const redis = connect();
  const producer = new Producer(redis, QUEUE);
  for await (const line of createInterface({ input: process.stdin })) {
    const { id, due_ms: dueMs, payload = '', headers, ...limits } = JSON.parse(line);
    try {
      const ok = await producer.schedule({ id, dueMs, payload: Buffer.from(payload, 'base64'), headers, ...named(limits) });
      say(ok ? { id, ok } : { id, ok, error: 'scheduled already' });
    } catch (err) {
      say({ id, ok: false, error: err.message });
    }
  }
  redis.disconnect();
}

if (process.argv[2] === 'producer') await produce();
else await runUntilSignal(new Worker(connect(), QUEUE, GROUP, handle, { consumer: CONSUMER }));
