// Adds jobs with the real BullMQ, for TestJobsOfTheRealBullMQ.
//
//   node jobs.js URL COUNT SPREAD_MS
//
// Adds COUNT jobs, whose data is {"n": 0}, {"n": 1} and so on. Delayed jobs are due at times up to SPREAD_MS from now.
// Some jobs have failed and wait for their retry, and some are active, with a worker that is gone. At the end it prints
// JSON: the due times and the next attempts of the jobs, both in the order of n.
import { Queue, UnrecoverableError, Worker } from 'bullmq';
import { Redis } from 'ioredis';

const [url, count, spread] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const connection = new Redis(url, { maxRetriesPerRequest: null });
const queues = Object.fromEntries(['mail', 'held', 'flaky', 'busy'].map((name) => [name, new Queue(name, { connection })]));
await queues.held.pause();

const activeCount = 20;
const due = new Array(count);
const attempt = new Array(count).fill(1);
const jobs = { mail: [], held: [], flaky: [], busy: [] };
const now = Date.now();
for (let n = 0; n < count; n++) {
  due[n] = now;
  const delay = 1 + Math.floor((n * spread) / count);
  const job = { name: `kind-${n % 3}`, data: { n, text: 'Ünï ✓' }, opts: { timestamp: now } };
  if (n < activeCount) {
    jobs.busy.push({ ...job, opts: { ...job.opts, attempts: 3 } });
    continue;
  }
  switch (n % 10) {
    case 0: case 1: case 2:
      jobs.mail.push(job);
      break;
    case 3:
      jobs.mail.push({ ...job, opts: { ...job.opts, priority: 1 + (n % 7) } });
      break;
    case 4:
      jobs.held.push(job);
      break;
    case 5:
      jobs.flaky.push({ ...job, opts: { ...job.opts, attempts: 50, backoff: { type: 'fixed', delay: spread } } });
      break;
    default:
      jobs.mail.push({ ...job, opts: { ...job.opts, delay } });
      due[n] = now + delay;
  }
}
for (const [name, all] of Object.entries(jobs)) {
  for (let i = 0; i < all.length; i += 1000) await queues[name].addBulk(all.slice(i, i + 1000));
}

// until waits for a condition.
async function until(condition) {
  while (!(await condition())) await new Promise((done) => { setTimeout(done, 20); });
}

const options = { connection: new Redis(url, { maxRetriesPerRequest: null }), concurrency: 50 };
const failing = new Worker('flaky', async () => { throw new Error('not yet'); }, options);
const tried = new Set();
failing.on('failed', (job) => tried.add(job.id));
await until(() => tried.size === jobs.flaky.length);
await failing.close();
const scores = await connection.zrange('bull:flaky:delayed', 0, -1, 'WITHSCORES');
const dueOf = Object.fromEntries(scores.map((id, i) => [id, Math.floor(Number(scores[i + 1]) / 4096)]));
// On a slow machine some have failed twice, or wait for a worker again.
for (const job of await queues.flaky.getJobs(['delayed', 'waiting'])) {
  due[job.data.n] = dueOf[job.id] ?? now;
  attempt[job.data.n] = job.attemptsMade + 1;
}

const hanging = new Worker('busy', () => new Promise(() => {}), { ...options, lockDuration: 3000 });
await until(async () => (await queues.busy.getActiveCount()) === activeCount);

// Two jobs that are not moved: one is done, one has failed for good.
await new Queue('ended', { connection }).addBulk([{ name: 'done', data: {} }, { name: 'bad', data: {} }]);
const ended = new Queue('ended', { connection });
const ending = new Worker('ended', async (job) => { if (job.name === 'bad') throw new UnrecoverableError('no'); }, options);
await until(async () => (await ended.getCompletedCount()) === 1 && (await ended.getFailedCount()) === 1);

process.stdout.write(JSON.stringify({ due, attempt }), () => process.exit(0)); // the worker of busy is not closed: it dies
