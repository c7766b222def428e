// Measures bullmq in the same way as duestream_jobs.js, after: npm install --no-save bullmq, in this folder. Completed
// jobs are deleted.
import { createRequire } from 'node:module';
import { bulks, concurrency, measured, messages, payload, report, url } from './measure.js';

const require = createRequire(import.meta.url);
const { Queue, Worker } = require('bullmq');
const { hostname, port } = new URL(url);
const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null };
const options = { removeOnComplete: true };
const queue = new Queue('jobs', { connection });

async function process() {
  const worker = new Worker('jobs', async () => {}, { connection, concurrency });
  await new Promise((resolve) => {
    let left = messages;
    worker.on('completed', () => {
      if (--left === 0) resolve();
    });
  });
  await worker.close();
}

await measured('enqueue', async () => {
  for (let n = 0; n < messages; n++) await queue.add('job', JSON.parse(payload), options);
});
await measured('process', process);
await measured('enqueue in bulk', async () => {
  for (const size of bulks()) {
    await queue.addBulk(Array.from({ length: size }, () => ({ name: 'job', data: JSON.parse(payload), opts: options })));
  }
});
await queue.close();
report(`bullmq ${require('bullmq/package.json').version}`);
