// The code of the guide runs.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { eventually, serverOfThisFile } from './server.js';

const guide = new URL('../../../../docs/guides/node.md', import.meta.url);
const dist = fileURLToPath(new URL('..', import.meta.url)); // a program in this folder may import the package by name

const server = serverOfThisFile();

test('the code of the guide runs', async () => {
  const blocks = [...(await readFile(guide, 'utf8')).matchAll(/^```js\n(.*?)^```/gms)].map(([, code]) => code);
  assert.ok(blocks.length >= 8);
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
      return await server.redis.exists('duestream:{orders}:stream') === 1; // its worker has joined
    });
    running.kill('SIGTERM');
    const [code] = await exited;
    assert.equal(code, 0);
    assert.match(output, /^close-42 .*close 42 attempt 1\n$/s);
  } finally {
    await rm(dir, { recursive: true });
  }
});
