// The settings of a queue and a group, as Redis stores them.
import { dayMs, maxAttempts, maxDelays, percent, tenYearsMs } from './limits.js';

type Settings = ReadonlyMap<string, string>;

// By name: the built-in value, the minimum and the maximum.
const numbers = {
  visibility_ms: [30_000, 100, 7 * dayMs],
  max_attempts: [40, 1, maxAttempts],
  retry_min_ms: [1000, 1, tenYearsMs],
  retry_max_ms: [3_600_000, 1, tenYearsMs],
  retry_for_ms: [0, 0, tenYearsMs],
  max_snoozes: [0, 0, maxAttempts],
  handler_timeout_ms: [0, 0, tenYearsMs],
} as const;

/** The settings of a queue's policy that a worker needs, for one group. */
export class Policy {
  readonly visibilityMs: number;
  readonly handlerTimeoutMs: number;
  readonly #number: (name: keyof typeof numbers) => number;
  readonly #delays: readonly number[];

  /** The first valid value counts: of the group, of the queue, of the stored defaults, the built-in value. */
  constructor(own: Settings, defaults: Settings, group: string) {
    const values = (name: string) => [own.get(`group:${percent(group)}:${name}`), own.get(name), defaults.get(name)];
    this.#number = (name) => {
      const [builtIn, least, most] = numbers[name];
      const found = values(name).find((text) =>
        text !== undefined && /^\d{1,15}$/.test(text) && Number(text) >= least && Number(text) <= most);
      return found === undefined ? builtIn : Number(found);
    };
    const lists = values('retry_delays_ms').map((text) => (text === '0' ? [] : parseDelays(text)));
    this.#delays = lists.find((list) => list !== undefined) ?? [];
    this.visibilityMs = this.#number('visibility_ms');
    this.handlerTimeoutMs = this.#number('handler_timeout_ms');
  }

  /** Returns the argument max_attempts of the script retry, with the limits of age and of snoozes. */
  attempts(): string {
    let text = String(this.#number('max_attempts'));
    for (const name of ['retry_for_ms', 'max_snoozes'] as const) {
      if (this.#number(name)) text += ` ${name}=${this.#number(name)}`;
    }
    return text;
  }

  /** Returns the argument delays of the script retry: the list, or doubling delays, each with a random factor. */
  delays(): string {
    if (this.#delays.length) return this.#delays.join();
    const least = this.#number('retry_min_ms');
    const most = Math.max(least, this.#number('retry_max_ms'));
    const delays: number[] = [];
    for (let step = least; ; step *= 2) {
      const factor = 0.5 + Math.random();
      delays.push(Math.max(1, Math.min(most, Math.round(Math.min(step, most) * factor))));
      if (step >= most) return delays.join();
    }
  }
}

/** Returns a list of delays in ms, or undefined if the text is not a valid list. */
function parseDelays(text: string | undefined): number[] | undefined {
  if (text === undefined || !/^\d{1,15}(,\d{1,15})*$/.test(text)) return undefined;
  const delays = text.split(',').map(Number);
  return delays.length <= maxDelays && delays.every((ms) => ms >= 1 && ms <= tenYearsMs) ? delays : undefined;
}
