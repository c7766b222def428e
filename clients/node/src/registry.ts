// The partition counts of a queue, and the protocol levels of live bridges.
import { OldBridgeError } from './errors.js';
import { maxPartitions, pairsOf, serverTime, textOf } from './wire.js';
import type { Connection, Reply } from './wire.js';

const lookEveryMs = 5000;

/** Returns the partition counts in a field of the registry. */
function parseCounts(reply: Reply | undefined): number[] {
  const words = textOf(reply).split(',').filter((word) => /^\d{1,3}$/.test(word));
  return words.map(Number).filter((count) => count >= 1 && count <= maxPartitions);
}

/**
 * All partition counts that this client has read from the registry for a queue. Counts that the registry lost are kept.
 * Counts of a deleted queue are forgotten.
 */
export class Counts {
  #known = new Set([1]);
  #read = -Infinity;

  constructor(readonly prefix: string, readonly queue: string) {}

  get latest(): number {
    return Math.max(...this.#known);
  }

  /** Makes the next refresh read the registry. */
  stale(): void {
    this.#read = -Infinity;
  }

  /**
   * Returns how many partitions the queue has. It reads the registry if the last answer is older than 5 s. With
   * register it adds the queue, or counts that the registry lost.
   */
  async refresh(connection: Connection, register: boolean): Promise<number> {
    const began = performance.now();
    if (began - this.#read < lookEveryMs) return this.latest;
    const queues = `${this.prefix}:queues`;
    const [field] = await connection.ask(['HGET', queues, this.queue]);
    const found = new Set([1, ...parseCounts(field)]);
    const lost = [...this.#known].some((count) => !found.has(count));
    if (register && (field === null || lost)) {
      // With "-" the script leaves out the counts of a deleted queue.
      const counts = ['-', ...[...new Set([...this.#known, ...found])].sort((a, b) => a - b)].join();
      if (await connection.evaluate('register', [queues], this.queue, counts)) {
        await connection.ask(['XADD', `${this.prefix}:wake`, 'MAXLEN', 1, '*', 'queues', 1]);
      }
    }
    if (lost) {
      const [now, gone] = await connection.ask(
        ['HGET', queues, this.queue], ['HGET', queues, `/deleted/${this.queue}`]);
      const deleted = parseCounts(gone);
      const kept = [...this.#known].filter((count) => !deleted.includes(count));
      this.#known = new Set([...kept, ...parseCounts(now), 1]);
    } else {
      this.#known = found;
    }
    this.#read = began;
    return this.latest;
  }
}

const ulid = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/;
const aliveMs = 5000;

/** Refuses features that a live bridge does not serve. It reads the bridges at most every 5 s. */
export class Levels {
  #read = -Infinity;
  #lowest: { name: string; level: number } | undefined;

  constructor(readonly prefix: string, readonly allowOld: boolean) {}

  /** Throws OldBridgeError if a live bridge has a lower level. Without a live bridge it allows everything. */
  async allow(connection: Connection, level: number, what: string): Promise<void> {
    if (this.allowOld) return;
    const now = performance.now();
    if (now - this.#read >= lookEveryMs) {
      await this.#look(connection);
      this.#read = now;
    }
    if (this.#lowest && this.#lowest.level < level) {
      const { name, level: lowest } = this.#lowest;
      throw new OldBridgeError(
        `bridge ${name} has protocol level ${lowest}, and ${what} need level ${level}: upgrade it, or stop it`);
    }
  }

  async #look(connection: Connection): Promise<void> {
    const [clock, beats] = await connection.ask(['TIME'], ['ZRANGE', `${this.prefix}:bridges`, 0, -1, 'WITHSCORES']);
    const now = serverTime(clock);
    this.#lowest = undefined;
    for (const [member, beat] of pairsOf(beats)) {
      const [name = '', , , , stated = ''] = textOf(member).split(' ');
      if (!ulid.test(name) || Math.abs(now - Number(beat)) > aliveMs) continue;
      const level = /^p\d{1,6}$/.test(stated) ? Math.max(1, Number(stated.slice(1))) : 1;
      if (!this.#lowest || level < this.#lowest.level) this.#lowest = { name, level };
    }
  }
}
