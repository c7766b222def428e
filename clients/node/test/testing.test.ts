// The client in memory. It needs no server.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DeadLetter, DuplicateError, InvalidError, Kind, Mux, NotScheduledError, Release, RetryAfter,
  Snooze } from '../src/index.js';
import type { Message } from '../src/index.js';
import { Memory } from '../src/testing.js';

/** Delivers to a handler that throws an error, or returns without one. It returns the settlements. */
async function settlements(memory: Memory, error?: Error): Promise<string[]> {
  const delivered = await memory.deliver(() => {
    if (error) throw error;
  });
  return delivered.map((one) => one.settlement);
}

async function idsOf(memory: Memory): Promise<string[]> {
  return (await memory.deliver(() => {})).map(({ message }) => message.id);
}

test('delivers at the due time', async () => {
  const memory = new Memory({ now: new Date('2030-01-01T00:00:00Z') });
  const receipt = await memory.schedule('q', 'x', { id: 'a', delayMs: 1_800_000, headers: { h: '1' }, key: 'k' });
  assert.deepEqual(receipt, { id: 'a', due: new Date('2030-01-01T00:30:00Z'), ready: false, replaced: false });
  memory.advance(1_799_999);
  assert.deepEqual(await settlements(memory), []);
  memory.advance(1);
  const [done] = await memory.deliver(async () => {});
  assert.equal(done?.settlement, 'acknowledged');
  assert.equal(String(done.message.payload), 'x');
  assert.deepEqual(done.message.headers, { h: '1' });
  assert.equal(done.message.extra.get('key'), 'k');
  assert.deepEqual(done.message.due, receipt.due);
  assert.deepEqual([await settlements(memory), memory.scheduled('q')], [[], []]);
});

test('refuses as a client does', async () => {
  const memory = new Memory();
  await memory.schedule('q', '', { id: 'a', delayMs: 60_000 });
  await memory.schedule('q', '', { id: 'b', dedupMs: 60_000 });
  assert.deepEqual(await idsOf(memory), ['b']);
  for (const id of ['a', 'b']) await assert.rejects(memory.schedule('q', '', { id }), DuplicateError);
  await assert.rejects(memory.schedule('q', '', { delayMs: -1 }), InvalidError);
  await assert.rejects(memory.schedule('q', '', { id: 'a', delayMs: 30_000, replace: 'later' }), DuplicateError);
  assert.ok((await memory.schedule('q', 'new', { id: 'a', delayMs: 90_000, replace: 'later' })).replaced);
  const results = await memory.sendBatch('q', [{ id: 'a' }, {}]);
  assert.deepEqual(results.map(({ error }) => error instanceof DuplicateError), [true, false]);
  assert.deepEqual(await memory.reschedule('q', 'a', { delayMs: 5000 }), new Date(memory.now.getTime() + 5000));
  await memory.cancel('q', 'a');
  await assert.rejects(memory.cancel('q', 'a'), NotScheduledError);
  assert.throws(() => new Memory({ policy: { maxAttempt: 3 } as object }), InvalidError);
});

test('retries by the policy until the message is dead', async () => {
  const memory = new Memory({ policy: { maxAttempts: 3, retryMinMs: 1000 } });
  await memory.schedule('q', '', { id: 'a' });
  assert.deepEqual(await settlements(memory, new Error('one')), ['retried']);
  memory.advance(999);
  assert.deepEqual(await settlements(memory), []);
  memory.advance(1);
  const [message] = memory.scheduled('q');
  assert.deepEqual([message?.attempt, message?.error], [2, 'one']);
  assert.deepEqual(await settlements(memory, new RetryAfter(10_000, 'two')), ['retried']);
  memory.advance(10_000);
  assert.deepEqual(await settlements(memory, new Error('three')), ['dead']);
  assert.deepEqual(memory.dead.map(({ reason, error }) => [reason, error]), [['max_attempts', 'three']]);
});

test('releases, snoozes, dead letters and expiry', async () => {
  const memory = new Memory();
  await memory.schedule('q', '', { id: 'a', maxSnoozes: 1 });
  assert.deepEqual(await settlements(memory, new Release()), ['released']);
  assert.deepEqual(await settlements(memory, new Snooze(60_000)), ['snoozed']);
  memory.advance(60_000);
  assert.deepEqual(await settlements(memory, new Snooze(60_000)), ['dead']);
  await memory.schedule('q', '', { id: 'b' });
  assert.deepEqual(await settlements(memory, new DeadLetter('never')), ['dead']);
  await memory.schedule('q', '', { id: 'c', retryForMs: 5000, retryDelaysMs: [10_000] });
  assert.deepEqual(await settlements(memory, new Error('late')), ['dead']);
  await memory.schedule('q', '', { id: 'd', expiresInMs: 5000, delayMs: 1000 });
  memory.advance(5000);
  assert.deepEqual(await settlements(memory), []);
  assert.deepEqual(memory.dead.map(({ reason }) => reason), ['max_snoozes', 'dead_letter', 'retry_for', 'expired']);
});

test('the next attempt goes on from the progress', async () => {
  const memory = new Memory();
  await memory.schedule('q', '', { retryDelaysMs: [1000] });
  const got: string[] = [];
  const handler = async (message: Message) => {
    got.push(String(message.progress));
    await message.saveProgress('7');
    throw new Error('again');
  };
  await memory.deliver(handler);
  memory.advance(1000);
  await memory.deliver(handler);
  assert.deepEqual(got, ['', '7']);
});

test('a kind cancels the message about the same thing', async () => {
  const memory = new Memory();
  const close = new Kind<number>({ name: 'close', queue: 'q', uniqueBy: (order) => [order] });
  await close.schedule(memory, 42, { delayMs: 1000 });
  await close.cancel(memory, 42);
  await assert.rejects(close.cancel(memory, 42), NotScheduledError);
});

test('a message waits for the retry of another one with its key', async () => {
  const memory = new Memory();
  await memory.schedule('q', '', { id: 'a', key: 'k', retryDelaysMs: [5000] });
  await memory.schedule('q', '', { id: 'b', key: 'k' });
  await memory.schedule('q', '', { id: 'c' });
  const got: string[] = [];
  const handler = (message: Message) => {
    got.push(message.id);
    if (message.id === 'a' && message.attempt === 1) throw new Error('again');
  };
  await memory.deliver(handler);
  assert.deepEqual(got, ['a', 'c']);
  memory.advance(5000);
  await memory.deliver(handler);
  assert.deepEqual(got, ['a', 'c', 'a', 'b']);
});

test('delivers kinds to a mux, from one queue or from all', async () => {
  const memory = new Memory();
  const report = new Kind<{ day: number }>({ name: 'report', queue: 'reports' });
  const days: number[] = [];
  const mux = new Mux().handle(report, async ({ day }) => days.push(day));
  await report.schedule(memory, { day: 1 });
  await memory.schedule('mails');
  const [first] = await memory.deliver(mux, 'reports');
  assert.deepEqual([first?.settlement, days], ['acknowledged', [1]]);
  const [unknown] = await memory.deliver(mux);
  assert.deepEqual([unknown?.message.queue, unknown?.settlement], ['mails', 'snoozed']);
});
