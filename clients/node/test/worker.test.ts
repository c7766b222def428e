import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { AbandonedError, CancelledError, Client, DeadLetter, HandlerTimeoutError, InvalidError, Kind, LostError,
  maxUnknownSnoozes, Message, Mux, NoResultError, Release, RetryAfter, Snooze, unknownKindMs,
  Worker } from '../src/index.js';
import type { Handler, Settlement, WorkerOptions } from '../src/index.js';
import { fieldsOf } from '../src/delivery.js';
import { Policy } from '../src/policy.js';
import { partitionOf } from '../src/wire.js';
import { eventually, lateReader, proxy, serverOfThisFile } from './server.js';

const server = serverOfThisFile();
const stream = 'duestream:{q}:stream';
const silent = { info: () => {}, warn: () => {}, error: () => {} };
let client: Client;

beforeEach(() => {
  client = new Client(server.url);
});
afterEach(() => client.close());

function newWorker(options: Partial<WorkerOptions>): Worker {
  const queues = options.mux ? {} : { queues: ['q'] };
  return new Worker(server.url, { group: 'g', logger: silent, blockMs: 100, ...queues, ...options });
}

/** Runs a worker while a test uses it. */
async function working(options: Partial<WorkerOptions>, use: (worker: Worker) => Promise<void>): Promise<void> {
  const worker = newWorker(options);
  const served = worker.serve();
  try {
    await use(worker);
  } finally {
    worker.stop();
    await served;
  }
}

/** A promise that is resolved from outside. */
function gate() {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { open, opened };
}

/** Waits until the signal of a message is aborted, and fails then. */
const untilTold = ({ signal }: Message) => sleep(60_000, undefined, { signal });

async function deadLetters(): Promise<Array<Map<string, string>>> {
  const letters = await server.redis.xrangeBuffer('duestream:{q}:dead', '-', '+');
  return letters.map(([, fields]) => new Map([...fieldsOf(fields)].map(([name, value]) => [name, String(value)])));
}

/** Returns how many entries are pending in the group, or -1 while there is no group. */
async function pending(of = stream): Promise<number> {
  const [count] = await server.redis.xpending(of, 'g').catch(() => [-1]);
  return Number(count);
}

function inPartition(partition: number, count: number): string {
  for (let n = 0; ; n++) if (partitionOf(`m-${n}`, count) === partition) return `m-${n}`;
}

test('handles messages, and acknowledges them', async () => {
  const got: Message[] = [];
  let due: Date | undefined;
  await working({ handler: (message) => got.push(message) }, async (worker) => {
    const receipt = await client.schedule('q', Uint8Array.of(0, 255), { id: 'é', headers: { trace: '7f3a' },
      maxAttempts: 3 });
    due = receipt.due;
    await eventually(() => worker.stats.acknowledged === 1);
  });
  const [m] = got;
  assert.deepEqual([m?.id, m?.payload, m?.headers, m?.attempt, m?.maxAttempts, m?.due],
    ['é', Buffer.from([0, 255]), { trace: '7f3a' }, 1, 3, due]);
  assert.deepEqual([m?.queue, m?.group, m?.partition], ['q', 'g', 0]);
  assert.equal(await server.redis.xlen(stream), 0);
  assert.deepEqual(await server.redis.xinfo('CONSUMERS', stream, 'g'), []);
});

test('handlers run side by side', async () => {
  let together = 0;
  const all = gate();
  const handler = async () => {
    if (++together === 20) all.open();
    await all.opened;
  };
  await working({ handler, concurrency: 20 }, async (worker) => {
    await client.sendBatch('q', Array.from({ length: 20 }, () => ({})));
    await eventually(() => worker.stats.acknowledged === 20);
  });
});

test('errors schedule messages again', async () => {
  const cases: Array<[error: unknown, settlement: Settlement, meta: Record<string, string>, delayMs: number]> = [
    [new Error('no answer'), 'retried', { attempt: '2', error: 'no answer', for: 'g' }, 7_200_000],
    ['a string', 'retried', { attempt: '2', error: 'a string' }, 7_200_000],
    [new RetryAfter(3_600_000, 'busy'), 'retried', { attempt: '2', error: 'busy' }, 3_600_000],
    [new Snooze(3_600_000), 'snoozed', { snoozes: '1' }, 3_600_000],
    [new Release(), 'released', {}, 0],
  ];
  for (const [error, settlement, expected, delayMs] of cases) {
    await server.redis.flushall();
    const handler = () => {
      throw error;
    };
    await working({ handler }, async (worker) => {
      await client.schedule('q', '', { id: 'a', retryDelaysMs: [7_200_000] });
      await eventually(() => worker.stats[settlement] === 1);
    });
    const [member = '', due] = await server.redis.zrange('duestream:{q}:due', '0', '-1', 'WITHSCORES');
    const meta = JSON.parse(await server.redis.hget('duestream:{q}:meta', member) ?? '') as Record<string, string>;
    for (const [name, value] of Object.entries(expected)) assert.equal(meta[name], value, `${settlement} ${name}`);
    assert.ok(Math.abs(Number(due) - Date.now() - delayMs) < 600_000, settlement);
  }
});

test('a message with a key that failed comes back', async () => {
  const attempts: number[] = [];
  const handler = ({ attempt }: Message) => {
    attempts.push(attempt);
    if (attempt < 3) throw new RetryAfter(0);
  };
  await working({ handler }, async () => {
    await client.schedule('q', '', { key: 'k' });
    await eventually(async () => {
      await server.drain('q');
      return attempts.join() === '1,2,3';
    });
  });
});

test('makes dead letters', async () => {
  const handler = ({ id }: Message) => {
    throw id === 'asked' ? new DeadLetter('no such account') : new Error('fails');
  };
  await working({ handler }, async (worker) => {
    await client.schedule('q', '', { id: 'asked' });
    await client.schedule('q', '', { id: 'last', maxAttempts: 1 });
    await eventually(() => worker.stats.dead === 2);
  });
  const names = ['id', 'reason', 'error', 'group'];
  const letters = (await deadLetters()).map((letter) => names.map((name) => letter.get(name)).join());
  assert.deepEqual(letters.sort(), ['asked,dead_letter,no such account,g', 'last,max_attempts,fails,g']);
});

test('skips a retry for another group', async () => {
  await server.redis.xgroup('CREATE', stream, 'g', '0', 'MKSTREAM');
  await server.redis.xadd(stream, '*', 'id', 'a', 'for', 'other');
  const got: Message[] = [];
  await working({ handler: (message) => got.push(message) }, (worker) => eventually(() => worker.stats.skipped === 1));
  assert.deepEqual(got, []);
});

test('serves all queues and partitions', async () => {
  const got: string[] = [];
  await server.redis.hset('duestream:queues', 'q', '1,3');
  const handler = ({ queue, partition }: Message) => got.push(`${queue}/${partition}`);
  await working({ handler, queues: ['q', 'other'] }, async (worker) => {
    await eventually(async () => await server.redis.exists('duestream:{q/2}:stream', 'duestream:{other}:stream') === 2);
    for (const n of [0, 1, 2]) await client.schedule('q', '', { id: inPartition(n, 3) });
    await client.schedule('other');
    await eventually(() => worker.stats.acknowledged === 4);
  });
  assert.deepEqual(got.sort(), ['other/0', 'q/0', 'q/1', 'q/2']);
});

test('extends, and tells handlers of lost and cancelled messages', async () => {
  await server.redis.hset('duestream:{q}:policy', 'visibility_ms', '1000');
  const causes = new Map<string, unknown>();
  const handler = (message: Message) => untilTold(message).catch((error: unknown) => {
    causes.set(message.id, message.signal.reason);
    throw error;
  });
  const idleTimes = async () => {
    const rows = await server.redis.xpending(stream, 'g', '-', '+', 9).catch(() => []);
    return (rows as Array<[string, string, number]>).map(([entry, , idle]) => ({ entry, idle }));
  };
  await working({ handler }, async (worker) => {
    await client.schedule('q', '', { id: 'lost' });
    await client.schedule('q', '', { id: 'cancelled' });
    await eventually(async () => (await idleTimes()).length === 2);
    let before = 0;
    await eventually(async () => { // the idle time falls when an entry is extended
      const [first] = await idleTimes();
      const extended = (first?.idle ?? 0) < before;
      before = first?.idle ?? 0;
      return extended;
    });
    const [lost, cancelled] = await idleTimes();
    await server.redis.xack(stream, 'g', lost?.entry ?? '');
    await server.redis.call('XCLAIM', stream, 'g', worker.consumer, 0, cancelled?.entry ?? '', 'RETRYCOUNT',
      1_000_000_000_001, 'JUSTID');
    await eventually(() => worker.stats.lost === 1 && worker.stats.cancelled === 1);
  });
  assert.ok(causes.get('lost') instanceof LostError);
  assert.ok(causes.get('cancelled') instanceof CancelledError);
});

test('handlers have a time limit', async () => {
  const over = gate();
  let cause: unknown;
  const cases: Array<[handler: Handler, error: string]> = [
    [untilTold, 'handler_timeout: not done after 0.2 s'],
    [() => over.opened, 'handler_timeout: not done after 0.2 s: the handler went on for another 0.1 s'],
    [async (message) => {
      await untilTold(message).catch(() => {});
      cause = message.signal.reason;
      throw new Error('interrupted');
    }, 'handler_timeout: not done after 0.2 s: interrupted'],
  ];
  for (const [handler, error] of cases) {
    await server.redis.flushall();
    await working({ handler, abandonAfterMs: 100 }, async (worker) => {
      await client.schedule('q', '', { id: 'a', handlerTimeoutMs: 200, maxAttempts: 1 });
      await eventually(() => worker.stats.dead === 1);
    });
    const [letter] = await deadLetters();
    assert.deepEqual([letter?.get('reason'), letter?.get('error')], ['handler_timeout', error]);
  }
  assert.ok(cause instanceof HandlerTimeoutError);
  over.open();
});

test('a stop finishes what has begun, and releases the rest', async () => {
  const begun = gate();
  const goOn = gate();
  await server.redis.hset('duestream:queues', 'q', '1,2'); // one place for two partitions: one entry has to wait
  const worker = newWorker({ concurrency: 1, handler: () => {
    begun.open();
    return goOn.opened;
  } });
  const served = worker.serve();
  await eventually(async () => await server.redis.exists('duestream:{q/1}:stream') === 1);
  for (const n of [0, 1]) await client.schedule('q', '', { id: inPartition(n, 2) });
  await begun.opened;
  worker.stop();
  goOn.open();
  await served;
  assert.equal(worker.stats.acknowledged, 1);
  assert.deepEqual([await pending(), await pending('duestream:{q/1}:stream')], [0, 0]);
});

test('a stop releases handlers that end when they are told', async () => {
  const begun = gate();
  const worker = newWorker({ shutdownTimeoutMs: 0, handler: (message) => {
    begun.open();
    return untilTold(message);
  } });
  const served = worker.serve();
  await client.schedule('q');
  await begun.opened;
  worker.stop();
  await served;
  assert.equal(worker.stats.released, 1);
});

test('a handler that does not end is reported', async () => {
  const begun = gate();
  const worker = newWorker({ shutdownTimeoutMs: 0, cancelGraceMs: 100, handler: () => {
    begun.open();
    return new Promise(() => {});
  } });
  const served = worker.serve();
  await client.schedule('q');
  await begun.opened;
  worker.stop();
  await assert.rejects(served, AbandonedError);
  assert.equal(await pending(), 1);
});

test('a stop ends the worker while Redis is away', async () => {
  await server.redis.xgroup('CREATE', stream, 'g', '0', 'MKSTREAM');
  const handled = gate();
  const worker = newWorker({ shutdownTimeoutMs: 0, cancelGraceMs: 100, handler: async () => {
    await server.redis.call('CLIENT', 'PAUSE', 60_000, 'WRITE'); // no acknowledgement is answered
    handled.open();
  } });
  const served = worker.serve();
  try {
    await client.schedule('q');
    await handled.opened;
    worker.stop();
    await served;
  } finally {
    await server.redis.call('CLIENT', 'UNPAUSE');
  }
  assert.equal(worker.stats.retried + worker.stats.released, 0);
});

test('a lost group is created again', async () => {
  const got: string[] = [];
  await working({ handler: ({ id }) => got.push(id) }, async () => {
    await client.schedule('q', '', { id: 'a' });
    await eventually(() => got.join() === 'a');
    await server.redis.del(stream);
    await client.schedule('q', '', { id: 'b' });
    await eventually(() => got.join() === 'a,b');
  });
});

// Regression: the entry waited for its visibility timeout, because the worker had looked for it too early.
test('a read that is executed late is taken up', async () => {
  const late = await lateReader(server.url);
  const got: number[] = [];
  const worker = new Worker(late.url, { group: 'g', logger: silent, blockMs: 100, queues: ['q'],
    handler: ({ attempt }) => got.push(attempt) });
  await client.schedule('q');
  const served = worker.serve();
  try {
    await eventually(() => got.length > 0);
  } finally {
    worker.stop();
    await served;
    late.close();
  }
  assert.deepEqual(got, [1]);
});

// Regression: it was lost, as if another worker had the message, although the first try had settled it.
test('a settlement whose reply was lost is unknown', async () => {
  for (const fails of [false, true]) {
    const settled: Settlement[] = [];
    const broken = await proxy(server.url, fails ? 'once fails' : '\r\nonce\r\n');
    const handler = ({ id }: Message) => {
      if (fails) throw new RetryAfter(60_000, `${id} fails`);
    };
    const worker = new Worker(broken.url, { group: 'g', logger: silent, blockMs: 100, queues: [`q-${fails}`], handler,
      settled: (_, settlement) => settled.push(settlement) });
    const served = worker.serve();
    try {
      for (const id of ['warm', 'once']) { // the first one loads the scripts
        const before = settled.length;
        await client.schedule(`q-${fails}`, '', { id });
        await eventually(() => settled.length > before);
      }
    } finally {
      worker.stop();
      await served;
      broken.close();
    }
    assert.deepEqual([settled[1], broken.cuts()], ['unknown', 1]);
  }
});

test('broken connections lose nothing', async () => {
  const got = new Set<string>();
  await working({ handler: ({ id }) => got.add(id) }, async () => {
    for (let n = 0; n < 50; n++) {
      await client.schedule('q', '', { id: String(n) });
      if (n % 10 === 0) await server.redis.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    }
    await eventually(() => got.size === 50);
  });
});

test('waits for a result', async () => {
  await client.schedule('q', '', { id: 'a', keepResultMs: 60_000 });
  await assert.rejects(client.waitFor('q', 'a', 'g', { timeoutMs: 20 }), NoResultError);
  await working({ handler: (message) => message.setResult('done') }, async () => {
    const { value, attempt, done } = await client.waitFor('q', 'a', 'g', { timeoutMs: 60_000 });
    assert.deepEqual([String(value), attempt], ['done', 1]);
    assert.ok(done > new Date('2020-01-01T00:00:00Z'));
  });
  assert.equal(String((await client.result('q', 'a', 'g')).value), 'done');
  await assert.rejects(client.result('q', 'a', 'other'), NoResultError);
});

test('the next attempt gets the progress', async () => {
  const got: Array<[number, string]> = [];
  const steps: Array<[string | Uint8Array | undefined, Error]> = [ // what a delivery stores, and how it ends
    ['page 3', new RetryAfter(0)], [Uint8Array.of(0, 255), new Snooze(0)], [undefined, new Release()],
    ['', new RetryAfter(0)], ['last', new DeadLetter('enough')],
  ];
  const handler = async (message: Message) => {
    const [cursor, error] = steps[got.length] ?? [undefined, new Error('a further delivery')];
    got.push([message.attempt, message.progress.toString('latin1')]);
    if (cursor !== undefined) await message.saveProgress(cursor);
    throw error;
  };
  await working({ handler }, async (worker) => {
    await client.schedule('q', '', { id: 'a' });
    await eventually(async () => {
      await server.drain('q');
      return worker.stats.dead === 1;
    });
  });
  // A snooze and a release do not count as attempts.
  assert.deepEqual(got, [[1, ''], [2, 'page 3'], [2, '\0\xff'], [2, '\0\xff'], [3, '']]);
  assert.equal((await deadLetters())[0]?.get('progress'), 'last');
  assert.equal(await server.redis.exists('duestream:{q}:progress'), 0);
});

test('refuses the progress of a lost or cancelled message', async () => {
  const errors: unknown[] = [];
  const handler = async (message: Message) => {
    await assert.rejects(message.saveProgress('x'.repeat(4097)), InvalidError);
    if (message.id === 'lost') await server.redis.xack(stream, 'g', message.entryId);
    else await server.redis.xclaim(stream, 'g', message.consumer, 0, message.entryId, 'RETRYCOUNT', 1e12);
    await message.saveProgress('1').catch((error: Error) => {
      errors.push(error.constructor);
      assert.equal(message.signal.reason, error);
    });
  };
  await working({ handler, concurrency: 1 }, async (worker) => {
    await client.schedule('q', '', { id: 'lost' });
    await client.schedule('q', '', { id: 'cancelled' });
    await eventually(() => worker.stats.lost === 1 && worker.stats.cancelled === 1);
  });
  assert.deepEqual(errors, [LostError, CancelledError]);
});

test('keeps results', async () => {
  await working({ handler: (message) => message.setResult('done') }, async (worker) => {
    await client.schedule('q', '', { id: 'a', keepResultMs: 60_000 });
    await eventually(() => worker.stats.acknowledged === 1);
  });
  assert.equal((await server.redis.get('duestream:{q}:result:g:a'))?.split('\n')[1], 'done');
});

test('a paused worker takes nothing', async () => {
  const got: string[] = [];
  await server.redis.hset('duestream:{q}:policy', 'held_workers', '1');
  await working({ handler: ({ queue }) => got.push(queue), queues: ['q', 'other'] }, async () => {
    await client.schedule('q');
    await client.schedule('other');
    await eventually(() => got.join() === 'other');
    await server.redis.hdel('duestream:{q}:policy', 'held_workers');
    await eventually(() => got.join() === 'other,q');
  });
});

interface Order {
  id: number;
  total?: string;
}

const closeOrder = new Kind<Order>({
  name: 'close-order', queue: 'q',
  parse: (json) => {
    const order = json as Order | null;
    if (typeof order?.id !== 'number') throw new Error('id is no number');
    return order;
  },
});
const indexOrder = new Kind<Order>({
  name: 'index-order', queue: 'q', uniqueBy: ({ id }) => [id, 'é"<\u2028', true, null],
});

test('a mux calls the handler of each kind', async () => {
  const got: string[] = [];
  const raw = new Kind<Buffer>({ name: '', queue: 'q', encode: (value) => value, decode: (payload) => payload });
  const mux = new Mux()
    .handle(closeOrder, (order, message) => got.push(`${message.id} ${JSON.stringify(order)}`))
    .handle(raw, (value) => got.push(String(value)));
  const headers = { kind: 'close-order' };
  await working({ mux }, async (worker) => {
    await closeOrder.schedule(client, { id: 42, total: '9.90' }, { id: 'a' });
    await client.schedule('q', 'raw');
    await client.schedule('q', '{"id": 1, "laterField": []}', { id: 'b', headers });
    await client.schedule('q', '{"id": "1"}', { id: 'c', headers });
    await client.schedule('q', '{', { id: 'd', headers });
    await client.schedule('q', '', { id: 'e', headers: { kind: 'unknown' } });
    await eventually(() => worker.stats.acknowledged === 3 && worker.stats.dead === 2 && worker.stats.snoozed === 1);
  });
  assert.deepEqual(got.sort(), ['a {"id":42,"total":"9.90"}', 'b {"id":1,"laterField":[]}', 'raw']);
  const errors = new Map((await deadLetters()).map((letter) => [letter.get('id'), letter.get('error')]));
  assert.equal(errors.get('c'), 'the payload does not fit kind "close-order": id is no number');
  assert.deepEqual([...errors.keys()].sort(), ['c', 'd']);
});

test('unique IDs are those of the Go client', () => {
  const id = 'index-order:42,"é\\"<\\u2028",true,null';
  assert.equal(indexOrder.uniqueId({ id: 42 }), id);
  const message = indexOrder.message({ id: 42 }, { delayMs: 5 });
  assert.deepEqual([message.id, message.key, message.headers], [id, id, { kind: 'index-order' }]);
  const long = new Kind<string>({ name: 'k', queue: 'q', uniqueBy: (value) => [value] });
  assert.match(long.uniqueId('x'.repeat(300)), /^k:#[0-9a-f]{64}$/);
  const half = new Kind<number>({ name: 'k', queue: 'q', uniqueBy: (value) => [value / 2] });
  for (const refused of [
    () => indexOrder.message({ id: 1 }, { id: 'x' }), () => closeOrder.uniqueId({ id: 1 }), () => half.message(1),
    () => closeOrder.message({ id: 1 }, { headers: { kind: 'other' } }), () => new Kind({ name: 'a\n', queue: 'q' }),
    () => new Kind({ name: 'k', queue: 'q', encode: String }),
    () => new Mux().handle(half, () => {}).handle(half, () => {}),
  ]) assert.throws(refused, InvalidError);
});

test('messages of unknown kinds are snoozed, and then dead', (t) => {
  const mux = new Mux();
  let now = 0;
  t.mock.method(performance, 'now', () => now);
  const thrown = (snoozes: number, kind = 'later'): unknown => {
    const fields = new Map([['h:kind', Buffer.from(kind)], ['snoozes', Buffer.from(String(snoozes))]]);
    const message = new Message('1-1', fields, 'q', 0, 'g', 'c');
    try {
      return mux.handlerOf(message)(message);
    } catch (error) {
      return error;
    }
  };
  const errors = [0, 1, 5, 6, maxUnknownSnoozes].map((snoozes) => thrown(snoozes));
  const delays = errors.map((error) => (error instanceof Snooze ? error.delayMs : error));
  assert.deepEqual(delays, [1000, 2000, 32_000, 60_000, 60_000]);
  now = unknownKindMs;
  assert.ok(thrown(maxUnknownSnoozes) instanceof DeadLetter);
  assert.ok(thrown(0, 'two\nlines') instanceof DeadLetter);
});

test('reads policies', () => {
  const own = new Map([['max_attempts', '7'], ['group:%C3%A9quipe%201:max_attempts', '5'], ['visibility_ms', '50'],
    ['retry_delays_ms', '0'], ['retry_min_ms', '100'], ['retry_max_ms', '1000']]);
  const defaults = new Map([['visibility_ms', '1000'], ['retry_delays_ms', '5,6'], ['max_snoozes', '3']]);
  const policy = new Policy(own, defaults, 'équipe 1');
  assert.equal(policy.visibilityMs, 1000);
  assert.equal(policy.attempts(), '5 max_snoozes=3');
  const delays = policy.delays().split(',').map(Number);
  assert.equal(delays.length, 5);
  assert.ok(delays[0]! >= 50 && delays[0]! <= 150 && delays[4]! >= 500 && delays[4]! <= 1000, String(delays));
  assert.equal(new Policy(new Map(), defaults, 'g').delays(), '5,6');
});

test('refuses configurations', () => {
  const handler = () => {};
  const refused: Array<Partial<WorkerOptions>> = [
    { handler, queues: [] }, { handler, queues: 'q' as unknown as string[] }, { handler, queues: ['q', 'q'] },
    { handler, queues: ['no queue'] }, { queues: ['q'] }, { handler, concurrency: 0 }, { handler, group: '' },
    { handler, consumer: 'duestream-reclaim' }, { mux: new Mux() },
    { handler, mux: new Mux().handle(closeOrder, handler) },
    { mux: new Mux().handle(closeOrder, handler), queues: ['other'] },
    { handler, lockDuration: 5 } as Partial<WorkerOptions>,
  ];
  for (const [n, options] of refused.entries()) assert.throws(() => newWorker(options), InvalidError, `case ${n}`);
});
