// The code of the guides runs.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { eventually, serverOfThisFile } from './server.js';

const guides = new URL('../../../../docs/guides/', import.meta.url);
const dist = fileURLToPath(new URL('..', import.meta.url)); // a program in this folder may import the package by name

const server = serverOfThisFile();

// run runs the blocks of JavaScript of a page as one program, until its worker has joined a queue, and returns what the
// program prints.
async function run(page: string, leastBlocks: number, queue: string): Promise<string> {
  const text = await readFile(new URL(page, guides), 'utf8');
  const blocks = [...text.matchAll(/^```js\n(.*?)^```/gms)].map(([, code]) => code);
  assert.ok(blocks.length >= leastBlocks);
  const dir = await mkdtemp(join(dist, 'guide-'));
  try {
    const program = join(dir, 'guide.mjs');
    await writeFile(program, blocks.join('').replaceAll('redis://127.0.0.1:6379', server.url));
    const running = spawn(process.execPath, [program], { stdio: ['ignore', 'pipe', 'inherit'] });
    const exited = once(running, 'exit');
    let output = '';
    running.stdout.on('data', (some: Buffer) => {
      output += String(some);
    });
    await eventually(async () => {
      assert.equal(running.exitCode, null, 'the program ended');
      return await server.redis.exists(`duestream:{${queue}}:stream`) === 1; // its worker has joined
    });
    running.kill('SIGTERM');
    const [code] = await exited;
    assert.equal(code, 0);
    return output;
  } finally {
    await rm(dir, { recursive: true });
  }
}

test('the code of the guide runs', async () => {
  assert.match(await run('node.md', 8, 'orders'), /^close-42 .*close 42 attempt 1\n$/s);
});

test('the code of the guide for BullMQ runs', async () => {
  assert.equal(await run('migrate-from-bullmq.md', 1, 'mails'), '');
  assert.equal(await server.redis.zcard('duestream:{mails}:due'), 1);
});
