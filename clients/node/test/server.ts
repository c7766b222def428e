// A redis-server for the tests of a file, and a drain in place of a bridge.
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect as connectTo, createServer } from 'node:net';
import type { AddressInfo, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Partition } from '../src/wire.js';

const patienceMs = 60_000;
const drain = readFileSync(new URL('../../../../lua/generated/drain.lua', import.meta.url), 'utf8');

/** A redis-server with a connection for looking at it. */
export class Server {
  url = '';
  #redis: Redis | undefined;

  get redis(): Redis {
    if (!this.#redis) throw new Error('the server has not begun');
    return this.#redis;
  }

  connect(url: string): void {
    this.url = url;
    this.#redis = new Redis(url);
    this.#redis.on('error', () => {}); // until the server listens
  }

  /** Returns the due time of a scheduled message in ms, or null. */
  async due(id: string, part = 'q'): Promise<number | null> {
    const score = await this.redis.zscore(`duestream:{${part}}:due`, id);
    return score === null ? null : Number(score);
  }

  /** Makes due messages ready, as a bridge does. */
  async drain(queue: string): Promise<void> {
    const keys = new Partition('duestream', queue).keys('due payload meta stream dead turns policy rate history');
    await this.redis.eval(drain, keys.length, ...keys, 1000, 1 << 20, 'bridge test');
  }
}

/** Starts a redis-server for the tests of a file, and empties it before each test. */
export function serverOfThisFile(): Server {
  const server = new Server();
  let end = async () => {};
  before(async () => {
    const port = await freePort();
    const dir = await mkdtemp(join(tmpdir(), 'duestream-node-'));
    const redis = spawn('redis-server', ['--port', String(port), '--save', '', '--dir', dir], { stdio: 'ignore' });
    const ended = new Promise<void>((resolve) => redis.on('exit', () => resolve()));
    redis.on('error', (error) => {
      throw new Error(`no redis-server on the PATH: install the package redis-server: ${error.message}`);
    });
    server.connect(`redis://127.0.0.1:${port}`);
    end = async () => {
      server.redis.disconnect();
      redis.kill('SIGKILL');
      await ended;
      await rm(dir, { recursive: true });
    };
    await eventually(async () => await server.redis.ping().catch(() => '') === 'PONG');
  });
  beforeEach(() => server.redis.flushall());
  after(() => end());
  return server;
}

async function freePort(): Promise<number> {
  const listener = createServer();
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
  const { port } = listener.address() as AddressInfo;
  await new Promise((resolve) => listener.close(resolve));
  return port;
}

/** Waits until a condition holds. */
export async function eventually(holds: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + patienceMs;
  while (!await holds()) {
    if (performance.now() > end) throw new Error('the condition did not become true');
    await sleep(10);
  }
}

/** Passes everything on to a server. It cuts the first connection on which a text was sent, before the reply. */
export async function proxy(url: string, text: string) {
  const { port } = new URL(url);
  let cuts = 0;
  const listener = createServer((socket) => {
    const upstream = connectTo(Number(port), '127.0.0.1');
    let cut = false;
    socket.on('data', (data) => {
      if (!cuts && data.includes(text)) {
        cut = true;
        cuts++;
      }
      upstream.write(data);
    });
    upstream.on('data', (data) => (cut ? socket.destroy() : socket.write(data)));
    socket.on('close', () => upstream.destroy()).on('error', () => {});
    upstream.on('close', () => socket.destroy()).on('error', () => {});
  });
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
  return {
    url: `redis://127.0.0.1:${(listener.address() as AddressInfo).port}`,
    cuts: () => cuts,
    close: () => listener.close(),
  };
}

/** Passes everything on to a server. It breaks the connection of the first read, and sends this read with the next. */
export async function lateReader(url: string) {
  const { port } = new URL(url);
  let first: { upstream: Socket; request: Buffer } | undefined;
  let sent = false;
  const listener = createServer((socket) => {
    const upstream = connectTo(Number(port), '127.0.0.1');
    socket.on('data', (request) => {
      const reads = request.includes('XREADGROUP');
      if (reads && !first) {
        first = { upstream, request };
        socket.destroy();
      } else if (reads && first && !sent) {
        sent = true;
        first.upstream.once('data', () => upstream.write(request));
        first.upstream.write(first.request);
      } else {
        upstream.write(request);
      }
    });
    upstream.on('data', (reply) => socket.write(reply)).on('error', () => {});
    socket.on('error', () => {}).on('close', () => {
      if (first?.upstream !== upstream || sent) upstream.destroy();
    });
    upstream.on('close', () => socket.destroy());
  });
  await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
  return {
    url: `redis://127.0.0.1:${(listener.address() as AddressInfo).port}`,
    close: () => listener.close(),
  };
}
