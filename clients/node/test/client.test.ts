import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'node:test';
import { Client, ClosedError, DeniedError, DuplicateError, FullError, InvalidError, NoRecurrenceError,
  NotScheduledError, OldBridgeError, UnavailableError, UnsupportedError, WrongTypeError } from '../src/index.js';
import type { ClientOptions, NewMessage, Recurrence } from '../src/index.js';
import { serverError } from '../src/errors.js';
import { whenOf } from '../src/message.js';
import { partitionOf } from '../src/wire.js';
import { proxy, serverOfThisFile } from './server.js';

const in2030 = new Date('2030-01-01T00:00:00Z');
const in2031 = new Date('2031-01-01T00:00:00Z');

const server = serverOfThisFile();
let client: Client;

beforeEach(() => {
  client = new Client(server.url, { name: 'client test' });
});
afterEach(() => client.close());

async function withClient(options: ClientOptions, use: (other: Client) => Promise<void>, url = server.url) {
  const other = new Client(url, options);
  try {
    await use(other);
  } finally {
    await other.close();
  }
}

test('schedules payload, headers and settings', async () => {
  const receipt = await client.schedule('q', 'close the order', {
    id: 'order-42', at: in2030, headers: { trace: '7f3a' }, maxAttempts: 5, retryDelaysMs: [1000, 2500],
    retryForMs: 60_000, expires: in2031, key: 'customer-7', handlerTimeoutMs: 500, keepResultMs: 60_000,
  });
  assert.deepEqual(receipt, { id: 'order-42', due: in2030, ready: false, replaced: false });
  assert.equal(await server.due('order-42'), in2030.getTime());
  assert.equal(await server.redis.hget('duestream:{q}:payload', 'order-42'), 'close the order');
  assert.deepEqual(JSON.parse(await server.redis.hget('duestream:{q}:meta', 'order-42') ?? ''), {
    'h:trace': '7f3a', max_attempts: '5', retry_delays_ms: '1000,2500', retry_for_ms: '60000',
    expires_ms: String(in2031.getTime()), key: 'customer-7', handler_timeout_ms: '500', result_ms: '60000',
  });
  assert.deepEqual(await server.redis.hgetall('duestream:queues'), { q: '1' });
});

test('a message that is due is ready at once, with any bytes', async () => {
  const receipt = await client.schedule('q', Uint8Array.of(0, 255));
  assert.ok(receipt.ready);
  assert.match(receipt.id, /^[0-9A-HJKMNP-TV-Z]{26}$/);
  const [entry] = await server.redis.xrangeBuffer('duestream:{q}:stream', '-', '+');
  const fields = entry?.[1] ?? [];
  assert.equal(String(fields[fields.findIndex((f) => String(f) === 'id') + 1]), receipt.id);
  assert.deepEqual(fields[fields.findIndex((f) => String(f) === 'payload') + 1], Buffer.from([0, 255]));
});

test('a later message needs no token, and a queue with a history gets its entry', async () => {
  const receipt = await client.schedule('q', 'p', { delayMs: 3_600_000, headers: { a: 'b' } });
  assert.equal(receipt.due.getTime(), await server.due(receipt.id));
  assert.deepEqual(await server.redis.hgetall('duestream:{q}:payload'), { [receipt.id]: 'p' });
  assert.deepEqual(await server.redis.hgetall('duestream:{q}:meta'), { [receipt.id]: '{"h:a":"b"}' });
  assert.equal(await server.redis.zcard('duestream:{q}:seen'), 0);
  await server.redis.hset('duestream:{q}:policy', 'history', '100');
  await client.schedule('q', 'p', { delayMs: 3_600_000 });
  await client.schedule('q', 'p', { delayMs: 3_600_000 });
  assert.equal(await server.redis.zcard('duestream:{q}:due'), 3);
  assert.equal(await server.redis.xlen('duestream:{q}:history'), 2);
});

test('an ID is refused while it is scheduled, and inside its dedup window', async () => {
  await client.schedule('q', 'one', { id: 'a', at: in2030 });
  await assert.rejects(client.schedule('q', 'two', { id: 'a', at: in2030 }), DuplicateError);
  assert.equal(await server.redis.hget('duestream:{q}:payload', 'a'), 'one');
  assert.ok((await client.schedule('q', '', { id: 'b', dedupMs: 3_600_000 })).ready);
  await assert.rejects(client.schedule('q', '', { id: 'b' }), DuplicateError);
});

test('replaces', async () => {
  await client.schedule('q', 'one', { id: 'a', at: in2030, headers: { n: '1' } });
  assert.ok((await client.schedule('q', 'two', { id: 'a', at: in2031, replace: 'later' })).replaced);
  await assert.rejects(client.schedule('q', 'three', { id: 'a', at: new Date('2032-01-01'), replace: 'earlier' }),
    DuplicateError);
  assert.deepEqual(await server.redis.hgetall('duestream:{q}:payload'), { a: 'two' });
  assert.deepEqual(await server.redis.hgetall('duestream:{q}:meta'), {});
});

test('a batch answers each message', async () => {
  await client.schedule('q', '', { id: 'b', at: in2030 });
  const messages: NewMessage[] = [{ id: 'a', at: in2030 }, { id: 'b', at: in2030 }, { id: 'c\n' }];
  for (let n = 0; n < 300; n++) messages.push({ delayMs: 3_600_000 }); // more than one call
  const results = await client.sendBatch('q', messages);
  assert.equal(results.length, 303);
  assert.deepEqual(results.slice(0, 4).map(({ error }) => error?.name),
    [undefined, 'DuplicateError', 'InvalidError', undefined]);
  assert.equal(await server.redis.zcard('duestream:{q}:due'), 302);
});

test('cancels and reschedules', async () => {
  await client.schedule('q', 'x', { id: 'a', delayMs: 3_600_000 });
  assert.deepEqual(await client.reschedule('q', 'a', { at: in2030 }), in2030);
  assert.equal(await server.due('a'), in2030.getTime());
  await client.cancel('q', 'a');
  await assert.rejects(client.cancel('q', 'a'), NotScheduledError);
  await assert.rejects(client.reschedule('q', 'a', { delayMs: 1 }), NotScheduledError);
  assert.equal(await server.redis.exists('duestream:{q}:due', 'duestream:{q}:payload'), 0);
});

/** Returns the first of name-0, name-1 and so on that belongs to a partition of four. */
function inPartition(partition: number, name: string): string {
  for (let n = 0; ; n++) if (partitionOf(`${name}-${n}`, 4) === partition) return `${name}-${n}`;
}

test('an ID is found in all partitions', async () => {
  await server.redis.hset('duestream:queues', 'q', '1,4');
  const id = inPartition(2, 'm');
  await client.schedule('q', '', { id, at: in2030 });
  assert.equal(await server.due(id, 'q/2'), in2030.getTime());
  const key = inPartition(3, 'k');
  await assert.rejects(client.schedule('q', '', { id, key, at: in2031 }), DuplicateError);
  await assert.rejects(client.schedule('q', '', { id, key, at: in2031, replace: 'replace' }), UnsupportedError);
  await client.cancel('q', id);
  await client.schedule('q', '', { id, key, at: in2030 });
  assert.equal(await server.due(id, 'q/3'), in2030.getTime());
  // Without a key the replacement goes to where the message is.
  assert.ok((await client.schedule('q', 'new', { id, at: in2031, replace: 'replace' })).replaced);
  assert.equal(await server.due(id, 'q/3'), in2031.getTime());
  assert.equal(await server.due(id, 'q/2'), null);
  assert.deepEqual(await client.reschedule('q', id, { at: in2030 }), in2030);
  await client.cancel('q', id);
  assert.equal(await server.due(id, 'q/3'), null);
});

test('a call whose reply was lost is repeated, and stores the message once', async () => {
  await client.schedule('q', '', { id: 'warm' }); // loads the script
  const broken = await proxy(server.url, '\r\nonce\r\n'); // it cuts the first enqueue
  try {
    await withClient({}, async (other) => {
      assert.ok((await other.schedule('q', '', { id: 'once' })).id);
    }, broken.url);
  } finally {
    broken.close();
  }
  assert.equal(broken.cuts(), 1);
  assert.equal(await server.redis.xlen('duestream:{q}:stream'), 2);
});

test('a later message whose reply was lost is found when the call is repeated', async () => {
  await client.schedule('q', 'warm', { delayMs: 3_600_000 }); // loads the script
  const broken = await proxy(server.url, '\r\nonce\r\n'); // it cuts the first call
  try {
    await withClient({}, async (other) => {
      const receipt = await other.schedule('q', 'once', { delayMs: 7_200_000 });
      assert.equal(receipt.due.getTime(), await server.due(receipt.id));
      const remembered = await server.redis.zrange('duestream:{q}:seen', 0, -1, 'WITHSCORES');
      assert.equal(remembered.length, 2); // the repeat, and the end of its window
    }, broken.url);
  } finally {
    broken.close();
  }
  assert.equal(broken.cuts(), 1);
  assert.equal(await server.redis.zcard('duestream:{q}:due'), 2);
});

test('forgets the partitions of a deleted queue', async () => {
  await server.redis.hset('duestream:queues', 'q', '4');
  await server.redis.hset('duestream:queues', '/deleted/q', '');
  const id = inPartition(1, 'm');
  await client.schedule('q', '', { id, at: in2030 });
  assert.equal(await server.due(id, 'q/1'), in2030.getTime());
  await server.redis.flushall();
  await server.redis.hset('duestream:queues', '/deleted/q', '4');
  await assert.rejects(client.cancel('q', id), NotScheduledError); // reads the registry anew
  await client.schedule('q', '', { id, at: in2030 });
  assert.equal(await server.due(id), in2030.getTime());
});

test('close leaves no token behind', async () => {
  await client.schedule('q', '', { id: 'a', delayMs: 3_600_000 });
  assert.equal(await server.redis.zcard('duestream:{q}:seen'), 1);
  await client.close();
  assert.equal(await server.redis.zcard('duestream:{q}:seen'), 0);
  await assert.rejects(client.schedule('q'), ClosedError);
});

test('keys need bridges that serve them', async () => {
  const beat = Date.now() + 4000;
  await server.redis.zadd('duestream:bridges', beat, '01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v0.1.0');
  await assert.rejects(client.schedule('q', '', { key: 'k' }), OldBridgeError);
  await withClient({ allowOldBridges: true }, async (careless) => {
    await careless.schedule('q', '', { key: 'k' });
  });
  await server.redis.del('duestream:bridges');
  await server.redis.zadd('duestream:bridges', beat, '01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v0.1.0 p2');
  await withClient({}, async (other) => {
    await other.schedule('q', '', { key: 'k' });
  });
});

test('keeps recurrences', async () => {
  await client.recur({ name: 'nightly', queue: 'reports', payload: '{}', cron: '0 9 * * 1-5', zone: 'Europe/Paris',
    start: in2030 });
  const spec: unknown = JSON.parse(await server.redis.hget('duestream:{reports}:recurring', 'nightly') ?? '');
  assert.deepEqual(spec, { name: 'nightly', queue: 'reports', cron: '0 9 * * 1-5', zone: 'Europe/Paris', payload: '{}',
    start_ms: in2030.getTime() });
  assert.equal(await server.redis.hget('duestream:{reports}:planned', ''), '1');
  await client.recur({ name: 'bytes', queue: 'reports', payload: Uint8Array.of(255), everyMs: 60_000, phaseMs: 5000 });
  const [one, two] = await client.recurrences('reports');
  assert.deepEqual(one, { name: 'bytes', queue: 'reports', headers: {}, payload: Buffer.from([255]), everyMs: 60_000,
    phaseMs: 5000 });
  assert.deepEqual(two, { name: 'nightly', queue: 'reports', headers: {}, payload: Buffer.from('{}'),
    cron: '0 9 * * 1-5', zone: 'Europe/Paris', start: in2030 });
  await client.removeRecurrence('reports', 'nightly');
  await assert.rejects(client.removeRecurrence('reports', 'nightly'), NoRecurrenceError);
});

test('refuses cron expressions', async () => {
  for (const cron of ['* * * *', '60 * * * *', '0 9 * * mon-sat,8', '*/0 * * * *', '5-1 * * * *', '@every',
    'TZ=UTC 0 9 * * *', '0 9 32 * *', 'x * * * *', '1/ * * * *', '1- * * * *']) {
    await assert.rejects(client.recur({ name: 'r', queue: 'q', cron }), InvalidError, cron);
  }
  assert.equal(await server.redis.dbsize(), 0);
});

test('refuses wrong arguments before Redis is asked', async () => {
  const nowhere = new Client('redis://127.0.0.1:1');
  const manyHeaders = Object.fromEntries(Array.from({ length: 65 }, (_, n) => [String(n), '']));
  const messages: NewMessage[] = [
    { id: '' }, { id: '\ud800' }, { id: 'x'.repeat(257) }, { payload: new Uint8Array((16 << 20) + 1) },
    { headers: { a: 'x'.repeat(9000) } }, { headers: manyHeaders }, { delayMs: -1 }, { delayMs: NaN },
    { delayMs: 3651 * 86_400_000 }, { delayMs: 1, at: in2030 }, { at: new Date('') }, { at: new Date(1_784_000_000) },
    { maxAttempts: 0 }, { maxAttempts: 1.5 }, { dedupMs: 1 }, { replace: 'replace' },
    { id: 'a', replace: 'never' as 'replace' }, { delayMs: 5, expiresInMs: 5 }, { at: in2031, expires: in2030 },
    { key: '' }, { retryDelaysMs: Array<number>(101).fill(1) }, { retryDelaysMs: [0] }, { keepResultMs: 1 },
    { delay: 5 } as NewMessage,
  ];
  for (const [n, message] of messages.entries()) {
    await assert.rejects(nowhere.send('q', message), InvalidError, `message ${n}`);
  }
  const recurrences: Recurrence[] = [
    { name: 'r', queue: 'q' }, { name: 'r', queue: 'q', cron: '@daily', zone: 'Mars/Base' },
    { name: 'r', queue: 'q', cron: '@daily', zone: '+01:00' },
    { name: 'r', queue: 'q', cron: '@daily', zone: 'europe/paris' },
    { name: 'r', queue: 'q', everyMs: 500 }, { name: 'r', queue: 'q', everyMs: 60_000, phaseMs: 60_000 },
  ];
  for (const recurrence of recurrences) await assert.rejects(nowhere.recur(recurrence), InvalidError);
  await assert.rejects(nowhere.schedule('no queue'), InvalidError);
  await assert.rejects(nowhere.cancel('q', ''), InvalidError);
  assert.throws(() => new Client('http://127.0.0.1'), InvalidError);
  assert.throws(() => new Client(server.url, { prefix: 'a b' }), InvalidError);
});

test('spreads and chooses partitions as every client does', () => {
  assert.equal(whenOf({ spreadMs: 600_000 }, 'order-42'), '+126703');
  assert.equal(partitionOf('order-42', 8), 6);
  assert.equal(partitionOf('order-45', 2), 1);
});

test('a cluster is refused', () => {
  for (const text of ['MOVED 4096 127.0.0.1:7001', 'ASK 1 127.0.0.1:7001']) {
    const refused = serverError('HGET', new Error(text));
    assert.ok(refused instanceof UnsupportedError);
    assert.match(refused.message, /cluster/);
  }
});

test('errors of the server become errors of the package', async () => {
  await server.redis.set('duestream:{wrong}:due', 'text');
  await assert.rejects(client.schedule('wrong', '', { id: 'a' }), WrongTypeError);
  await server.redis.call('ACL', 'SETUSER', 'weak', 'on', '>pw', '+ping');
  const as = (login: string) => server.url.replace('//', `//${login}@`);
  await withClient({}, async (weak) => {
    await assert.rejects(weak.schedule('q'), DeniedError);
  }, as('weak:pw'));
  await withClient({}, async (wrong) => {
    await assert.rejects(wrong.schedule('q'), DeniedError);
  }, as('weak:wrong'));
  await server.redis.call('ACL', 'DELUSER', 'weak');
  await withClient({ retryTimeoutMs: 0 }, async (none) => {
    await assert.rejects(none.schedule('q'), (error) => error instanceof UnavailableError && !error.sent);
  }, 'redis://127.0.0.1:1');
  try {
    await server.redis.config('SET', 'maxmemory', '1');
    await assert.rejects(client.schedule('q', '', { id: 'b' }), FullError);
  } finally {
    await server.redis.config('SET', 'maxmemory', '0');
  }
});
