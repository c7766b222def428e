// Measures the steps of a benchmark of a client in Node.js.
import { createRequire } from 'node:module';

const { Redis } = createRequire(new URL('../node/', import.meta.url))('ioredis');

export const payload = JSON.stringify({ order: 42 });
export const [url, messages, concurrency] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const steps = {};
const server = new Redis(url);

async function cpu() {
  const text = await server.info('cpu');
  const used = (name) => Number(new RegExp(`^${name}:(.*)`, 'm').exec(text)[1]);
  return used('used_cpu_user') + used('used_cpu_sys');
}

/** Runs a step, and notes its time and the time of the server's CPU, in seconds. */
export async function measured(step, work) {
  const before = await cpu();
  const began = performance.now();
  await work();
  steps[step] = { seconds: (performance.now() - began) / 1000, cpu: await cpu() - before };
}

export function report(client) {
  console.log(JSON.stringify({ language: 'Node.js', client, steps }));
  server.disconnect();
}

/** Returns the numbers of messages of the calls that send them in bulk. */
export function bulks() {
  return Array.from({ length: Math.ceil(messages / 1000) }, (_, n) => Math.min(1000, messages - 1000 * n));
}
