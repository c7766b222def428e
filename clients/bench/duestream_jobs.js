// Measures the Node.js package: node duestream_jobs.js URL MESSAGES CONCURRENCY. See bench.py.
import { readFileSync } from 'node:fs';
import { Client, Worker } from '../node/dist/src/index.js';
import { bulks, concurrency, measured, messages, payload, report, url } from './measure.js';

const { version } = JSON.parse(readFileSync(new URL('../node/package.json', import.meta.url)));
const queue = 'jobs';
const client = new Client(url);

async function process() {
  let left = messages;
  const settled = () => {
    if (--left === 0) worker.stop();
  };
  const worker = new Worker(url, { group: 'bench', queues: [queue], handler: async () => {}, concurrency, settled });
  await worker.serve();
}

await measured('enqueue', async () => {
  for (let n = 0; n < messages; n++) await client.schedule(queue, payload);
});
await measured('process', process);
await measured('enqueue in bulk', async () => {
  for (const size of bulks()) await client.sendBatch(queue, Array.from({ length: size }, () => ({ payload })));
});
await client.close();
report(`duestream ${version}`);
