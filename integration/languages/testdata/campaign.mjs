// Runs a worker or a producer of integration/campaign with the Node.js package: see campaign.Language.
import { openSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { AbandonedError, Client, DeadLetter, DuplicateError, FullError, NotScheduledError, OldBridgeError, Snooze,
  UnavailableError, Worker } from '../../../clients/node/dist/src/index.js';

const part = JSON.parse(process.env.DUESTREAM_CAMPAIGN_PART);
const rules = part.Rules;
const visibility = part.Visibility / 1e6; // ms
const queues = { m: 'main', s: 'sacrificial' };
const abandoned = 4; // exit status
const features = 'zyqkvbtiju';

// ---- ledger ---------------------------------------------------------------------------------------------------------

let file;

/** Records steps of this process by one write. */
function write(...lines) {
  const now = Math.floor((performance.timeOrigin + performance.now()) * 1000);
  const wall = Math.abs(now / 1000 - Date.now()) > 1.5 ? Date.now() * 1000 : now; // the clock was set
  const text = lines.map((line) => `${[wall, ...line].join(' ')}\n`).join('');
  try {
    if (writeSync(file, text) === Buffer.byteLength(text)) return;
  } catch {
    // below
  }
  process.exit(3); // the audit would miss what this process does
}

function openLedger() {
  file = openSync(part.Ledger, 'a', 0o644);
  write(['is', part.Name, part.Role, part.Group || '-']);
  let last = Date.now();
  setInterval(() => {
    const now = Date.now();
    if (now - last > 250) write(['stall', '-', last * 1000]);
    last = now;
  }, 20).unref();
}

// ---- plans ----------------------------------------------------------------------------------------------------------

function planOf(id) {
  const text = id.split('@')[0].split('!')[0].split('-').at(-1);
  return { queue: queues[text[0]], kind: text[1], n: Number(text.slice(2)) };
}

function fnv(text) {
  let hashed = 14695981039346656037n;
  for (const byte of Buffer.from(text)) hashed = BigInt.asUintN(64, (hashed ^ BigInt(byte)) * 1099511628211n);
  return hashed;
}

/** Returns the name of a message in ledgers: a version is a message of its own. */
function bookedAs(id, payload) {
  return planOf(id).kind === 'v' ? `${id}!${Buffer.from(payload).toString().split(';')[0]}` : id;
}

// A small generator of random numbers (mulberry32), because Math.random takes no seed.
function chanceOf(text) {
  let state = Number(BigInt.asUintN(32, fnv(text)));
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// ---- worker ---------------------------------------------------------------------------------------------------------

/** Returns how long a handler takes, how it ends, and whether it stops when it is told to. */
function handling({ id, attempt, group }, { kind, n }) {
  const share = chanceOf(`${id}/${attempt}`)();
  const slow = rules.SlowMin + share * (rules.SlowMax - rules.SlowMin);
  const long = visibility + share * visibility;
  switch (kind) {
    case 's': return [slow, 'ok', false];
    case 'f': return [0, attempt <= n ? 'fail' : 'ok', false];
    case 'g': return [slow, attempt <= n ? 'fail' : 'ok', false];
    case 'p':
      if (group !== 'a') return [visibility + long, 'ok', true];
      return attempt === 1 ? [2 * slow, 'fail', false] : [0, 'ok', false];
    case 'd': return [0, 'fail', false];
    case 'e': return [slow, 'fail', false];
    case 'x': return [slow, 'dead', false];
    case 'n': return [3 * slow, 'ok', true];
    case 'l': return [long, 'ok', true];
    default: return [0, 'ok', false];
  }
}

/** Returns how a handler of a message with a special feature ends. */
function featured({ attempt, group, extra }, { kind, n }) {
  const snoozes = Number(extra.get('snoozes') ?? 0);
  if (kind === 'z' && snoozes < n) return 'snooze';
  if (kind === 'k' && group !== 'a' && snoozes < rules.Patient) return 'snooze';
  if (kind === 'q' || (kind === 'y' && attempt <= n) || (kind === 'j' && attempt < n)) return 'fail';
  return 'ok';
}

async function handler(message) {
  const { id, payload, entryId, attempt, recipient, due, signal } = message;
  const name = bookedAs(id, payload);
  const plan = planOf(id);
  write(['s', name, entryId, attempt, recipient || '-', due ? due.getTime() : 0]);
  if (plan.kind === 'u') { // its end is recorded beforehand, because the worker may abandon it
    write(['e', name, entryId, 'hang']);
    await sleep(rules.HangFor, undefined, fnv(id) % 2n ? { signal } : {});
    throw new Error('hung');
  }
  let [takes, end, heeds] = handling(message, plan);
  if (takes > 0) {
    try {
      await sleep(takes, undefined, heeds ? { signal } : {});
    } catch {
      write(['e', name, entryId, 'cut']);
      throw signal.reason;
    }
  }
  if (features.includes(plan.kind)) end = featured(message, plan);
  write(['e', name, entryId, end]);
  if (end === 'snooze') throw new Snooze(rules.SnoozeFor);
  if (end === 'fail') throw new Error('this one fails');
  if (end === 'dead') throw new DeadLetter('this one is dead-lettered by its handler');
}

async function work() {
  const worker = new Worker(part.URL, { prefix: part.Prefix, queues: Object.values(queues), group: part.Group,
    consumer: part.Name, concurrency: part.Concurrency, handler, shutdownTimeoutMs: rules.Shutdown,
    cancelGraceMs: rules.StopWithin, abandonAfterMs: rules.AbandonAfter, logger: { info() {}, warn() {}, error() {} },
    settled({ id, payload, entryId }, settlement) {
      if (settlement !== 'skipped') write(['x', bookedAs(id, payload), entryId, settlement]);
    } });
  process.on('SIGTERM', () => worker.stop());
  openLedger();
  try {
    await worker.serve();
  } catch (error) {
    if (!(error instanceof AbandonedError)) throw error;
    return abandoned;
  }
  return 0;
}

// ---- producer -------------------------------------------------------------------------------------------------------

let stopped = false;
let number = 0;
const later = new Set(); // what follows on messages that were sent

/** Returns the ledger's line for the result of a send. */
function verdict(name, { receipt, error }) {
  if (receipt) return ['taken', name, receipt.due.getTime()];
  if (error instanceof DuplicateError) return ['dup', name];
  if (error instanceof UnavailableError) return ['maybe', name];
  if (error instanceof FullError) return ['refused', name, 'full'];
  if (error instanceof OldBridgeError) return ['refused', name, 'old-bridge'];
  console.error(`${part.Name}: ${name}:`, error);
  return ['refused', name, 'other'];
}

/** Makes a change, and returns its result for the ledger, and its value. */
async function change(call) {
  try {
    return ['ok', await call()];
  } catch (error) {
    if (error instanceof NotScheduledError) return ['no'];
    if (!(error instanceof UnavailableError)) console.error(`${part.Name}:`, error);
    return ['maybe'];
  }
}

function draw(chance) {
  const queue = queues[chance() * 100 < rules.SidePercent ? 's' : 'm'];
  let at = chance() * 1000;
  for (const { Kind: kind, Weight, Most } of rules.Kinds) {
    if ((at -= Weight) < 0) {
      const n = Most ? 1 + Math.floor(chance() * Most) : 0;
      return { queue, kind, n: kind === 'v' ? n + 1 : n };
    }
  }
  return { queue, kind: 'o', n: 0 };
}

function delayOf(chance) {
  if (chance() < 1 / 3) return 0;
  return Math.floor(Math.min(-Math.log(1 - chance()), 5) * 1000);
}

function messageOf({ queue, kind, n }, chance) {
  const id = `${part.Name}-${++number}-${queue[0]}${kind}${n || ''}`;
  const size = chance();
  const payload = Buffer.alloc(size < 0.2 ? 0 : Math.floor(chance() * (size < 0.97 ? 300 : 8 << 10)));
  const message = { id, payload, delayMs: delayOf(chance) };
  if ('deu'.includes(kind)) message.maxAttempts = n;
  if ('crbt'.includes(kind)) message.delayMs = 2000 + Math.floor(chance() * 3000);
  if ('bt'.includes(kind)) message.headers = { bulk: kind === 'b' ? 'cancel' : 'move' };
  if (kind === 'w') message.dedupMs = rules.DedupWindow;
  if (kind === 'y') message.retryDelaysMs = rules.Gaps;
  if (kind === 'q') Object.assign(message, { retryForMs: rules.Oldest, retryDelaysMs: [rules.AgeGap] });
  if (kind === 'k') message.maxCrashes = n;
  if (kind === 'v') Object.assign(message, { delayMs: 1000 + Math.floor(chance() * 2000), payload: '1;' });
  if (kind === 'i') message.spreadMs = rules.Spread;
  if (kind === 'j') message.key = `key-${fnv(id) % BigInt(rules.Keys)}`;
  if (kind === 'u') message.handlerTimeoutMs = rules.HangLimit;
  return message;
}

async function line(client, chance) {
  const rate = part.Rate / rules.Lines;
  let owed = 0;
  for (let last = performance.now(); !stopped;) {
    await sleep(rules.Tick);
    const now = performance.now();
    owed = Math.min(owed + (now - last) / 1000 * rate, rules.CatchUp / 1000 * rate);
    last = now;
    const batches = new Map(Object.values(queues).map((queue) => [queue, []]));
    for (; owed >= 1; owed--) {
      const plan = draw(chance);
      batches.get(plan.queue).push(messageOf(plan, chance));
    }
    for (const [queue, batch] of batches) {
      if (batch.length) await send(client, queue, batch, chance);
    }
  }
}

async function send(client, queue, batch, chance) {
  const names = batch.map(({ id, payload }) => bookedAs(id, payload));
  write(...batch.map(({ delayMs }, i) => ['try', names[i], delayMs]));
  let results;
  try {
    results = await client.sendBatch(queue, batch);
  } catch (error) {
    results = batch.map(() => ({ error }));
  }
  const verdicts = results.map((result, i) => verdict(names[i], result));
  write(...verdicts);
  batch.forEach((message, i) => follow(client, queue, message, verdicts[i][0], results[i].receipt, chance));
}

/** Does the producer's part of a plan after the message was sent. */
function follow(client, queue, message, said, receipt, chance) {
  const { id } = message;
  const { kind, n } = planOf(id);
  const wait = chance() * 2500;
  const go = (steps) => {
    const task = steps().finally(() => later.delete(task));
    later.add(task);
  };
  if (kind === 'v' && receipt) {
    const drawn = Array.from({ length: n + 1 }, () => Math.floor(chance() * 1500));
    go(() => replace(client, queue, id, receipt.due, n, drawn));
  } else if (kind === 'c' && said === 'taken') {
    go(async () => {
      await sleep(wait);
      write(['cancel', id, 'asked']);
      const [result] = await change(() => client.cancel(queue, id));
      write(['cancel', id, result]);
    });
  } else if (kind === 'r' && said === 'taken') {
    const delayMs = delayOf(chance) + 50;
    go(async () => {
      await sleep(wait);
      write(['move', id, 'asked', 0]);
      const [result, due] = await change(() => client.reschedule(queue, id, { delayMs }));
      write(['move', id, result, due ? due.getTime() : 0]);
    });
  } else if (kind === 'w' && (said === 'taken' || said === 'maybe')) {
    go(async () => {
      await sleep(wait);
      write(['try', id, message.delayMs]);
      write(verdict(id, await one(client, queue, message)));
    });
  }
}

async function one(client, queue, message) {
  try {
    return { receipt: await client.send(queue, message) };
  } catch (error) {
    return { error };
  }
}

/** Sends the versions 2 to last of a message, one after another. */
async function replace(client, queue, id, due, last, drawn) {
  for (let n = 2; n <= last; n++) {
    await sleep(drawn[n]);
    const before = `${id}!${n - 1}`;
    const delayMs = 300 + drawn[n - 1];
    write(['over', before, 'asked'], ['try', `${id}!${n}`, delayMs]);
    const result = await one(client, queue, { id, payload: `${n};`, delayMs, replace: 'replace' });
    const notDue = Date.now() < due.getTime(); // so the version before cannot have been delivered
    const answer = verdict(`${id}!${n}`, result);
    let replaced = 'maybe';
    if (result.receipt && (result.receipt.replaced || notDue)) replaced = 'ok';
    else if (answer[0] === 'refused') replaced = 'no';
    write(answer, ['over', before, replaced]);
    if (!result.receipt) return;
    due = result.receipt.due;
  }
}

async function produce() {
  process.on('SIGTERM', () => { stopped = true; });
  openLedger();
  const client = new Client(part.URL, { prefix: part.Prefix, retryTimeoutMs: rules.RetryTimeout });
  const chances = Array.from({ length: rules.Lines }, (_, i) => chanceOf(`${part.Name}/${part.Seed}/${i}`));
  await Promise.all(chances.map((chance) => line(client, chance)));
  while (later.size) await Promise.all(later);
  await client.close();
  return 0;
}

process.exit(await (part.Role === 'worker' ? work() : produce()));
