// Client and worker need no more rights than those of the documented users.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Client, DeadLetter, RetryAfter, Worker } from '../src/index.js';
import { pairsOf, textOf } from '../src/wire.js';
import type { Reply } from '../src/wire.js';
import { eventually, serverOfThisFile } from './server.js';

const server = serverOfThisFile();
const users = readFileSync(new URL('../../../../docs/operations/users.md', import.meta.url), 'utf8');

/** Makes a user as the documents say, and returns the URL for that user. */
async function urlOf(user: string): Promise<string> {
  const [, line = ''] = new RegExp(`^> ACL SETUSER ${user} (.*)$`, 'm').exec(users) ?? [];
  const words = line.match(/\([^)]*\)|\S+/g) ?? []; // a selector in parentheses is one argument
  await server.redis.call('ACL', 'SETUSER', user, ...words);
  await server.redis.call('ACL', 'LOG', 'RESET');
  const password = words.find((word) => word.startsWith('>'))?.slice(1) ?? '';
  return server.url.replace('//', `//${user}:${password}@`);
}

/** Returns the commands and keys that were denied since urlOf. */
async function denials(): Promise<string[]> {
  const log = await server.redis.call('ACL', 'LOG') as Reply[];
  const rows = log.map((row) => new Map(pairsOf(row).map(([name, value]) => [textOf(name), textOf(value)])));
  return rows.map((row) => row.get('object') ?? '');
}

test('a client needs the rights of a producer', async () => {
  const client = new Client(await urlOf('producer'));
  await server.redis.hset('duestream:queues', 'q', '1,2');
  await client.schedule('new', '', { delayMs: 60_000 });
  for (const id of ['order-42', 'order-45']) { // one in each partition
    await client.schedule('q', 'x', { id, delayMs: 60_000, headers: { a: 'b' }, dedupMs: 60_000, expiresInMs: 90_000 });
    await client.reschedule('q', id, { delayMs: 120_000 });
    await client.cancel('q', id);
    await client.schedule('q', '', { id, key: 'k', delayMs: 60_000 });
  }
  await client.close();
  assert.deepEqual(await denials(), []);
});

test('a worker needs the rights of a worker', async () => {
  const worker = new Worker(await urlOf('worker'), {
    group: 'g', queues: ['q'], blockMs: 100,
    handler: async (message) => {
      await message.saveProgress('1');
      if (message.id === 'retry') throw new RetryAfter(60_000);
      if (message.id === 'dead') throw new DeadLetter();
      message.setResult('done');
    },
  });
  const served = worker.serve();
  const client = new Client(server.url);
  for (const id of ['retry', 'dead', 'done']) await client.schedule('q', '', { id, key: id, keepResultMs: 60_000 });
  await eventually(async () => {
    await server.drain('q'); // a message with a key becomes ready by a drain
    return worker.stats.retried + worker.stats.dead + worker.stats.acknowledged === 3;
  });
  worker.stop();
  await served;
  await client.close();
  assert.deepEqual(await denials(), []);
  assert.deepEqual(await server.redis.xinfo('CONSUMERS', 'duestream:{q}:stream', 'g'), []);
});
