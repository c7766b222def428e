// Messages that are scheduled again and again.
import { InvalidError } from './errors.js';
import * as limits from './limits.js';

/**
 * A message that a bridge schedules again and again, with the ID <name>@<Unix ms of the occurrence>. Set either cron or
 * everyMs. Queue and name identify a recurrence. Durations are in ms.
 */
export interface Recurrence {
  name: string;
  queue: string;
  /** At most 1 MiB. A string is sent as UTF-8. */
  payload?: string | Uint8Array;
  headers?: Readonly<Record<string, string>>;
  /**
   * Five fields (minute, hour, day of the month, month, day of the week), six with seconds in front, or @daily and the
   * like.
   */
  cron?: string;
  /** Time zone of cron, like Europe/Paris. Left out: UTC. */
  zone?: string;
  /** Interval, in place of cron: from a second to ten years. */
  everyMs?: number;
  /** Less than everyMs: occurrences are at 1970-01-01T00:00:00Z + phaseMs + n × everyMs. */
  phaseMs?: number;
  start?: Date;
  end?: Date;
  /** Greatest number of occurrences. 0: no limit. */
  count?: number;
  /** Greatest extra delay of a message, chosen by hashing its ID: at most a day. */
  jitterMs?: number;
  /**
   * The occurrences that are planned late if no bridge was alive at their time: the last one (once, the default), none
   * (skip), or the last 100 (all).
   */
  missed?: 'once' | 'skip' | 'all';
  /** skip: no occurrence is planned while the message of the one before is unfinished. The default is allow. */
  overlap?: 'allow' | 'skip';
  paused?: boolean;
  /** Label of the program that keeps the recurrence. `duestream recur apply` changes only those with its label. */
  owner?: string;
}

/** A recurrence as Redis holds it. */
export interface StoredRecurrence extends Recurrence {
  payload: Buffer;
  headers: Readonly<Record<string, string>>;
}

const names = ['name', 'queue', 'payload', 'headers', 'cron', 'zone', 'everyMs', 'phaseMs', 'start', 'end', 'count',
  'jitterMs', 'missed', 'overlap', 'paused', 'owner'];

/** Returns the JSON that Redis stores. A field with its default is left out. Throws InvalidError for a wrong field. */
export function specOf(recurrence: Recurrence): string {
  check(recurrence);
  const { cron, zone, everyMs, start, end, missed = 'once', overlap = 'allow', headers = {} } = recurrence;
  const fields: Record<string, unknown> = {
    name: recurrence.name, queue: recurrence.queue, cron, zone: zone ?? (cron === undefined ? undefined : 'UTC'),
    every_ms: everyMs === undefined ? 0 : limits.wholeMillis('everyMs', everyMs, 1000),
    phase_ms: limits.wholeMillis('phaseMs', recurrence.phaseMs ?? 0),
    start_ms: start && limits.unixMillis('start', start), end_ms: end && limits.unixMillis('end', end),
    count: recurrence.count, jitter_ms: limits.wholeMillis('jitterMs', recurrence.jitterMs ?? 0, 0, limits.dayMs),
    missed: missed === 'once' ? undefined : missed, overlap: overlap === 'allow' ? undefined : overlap,
    paused: recurrence.paused, owner: recurrence.owner, headers: Object.keys(headers).length ? headers : undefined,
  };
  const payload = limits.payloadBytes(recurrence.payload ?? '');
  try {
    fields.payload = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(payload);
  } catch {
    fields.payload_base64 = payload.toString('base64');
  }
  return JSON.stringify(Object.fromEntries(Object.entries(fields).filter(([, value]) => value)));
}

function check(recurrence: Recurrence): void {
  limits.checkNames('recurrence field', recurrence, names);
  const { cron, zone, everyMs, phaseMs = 0, start, end, missed = 'once', overlap = 'allow', owner } = recurrence;
  limits.checkQueue(recurrence.queue);
  limits.checkText('name', recurrence.name, 200);
  limits.checkHeaders(recurrence.headers ?? {});
  limits.payloadBytes(recurrence.payload ?? '', 1 << 20);
  if ((cron === undefined) === (everyMs === undefined)) {
    throw new InvalidError('cron', cron ?? '', 'must be given if everyMs is not, and only then');
  }
  if (cron !== undefined) {
    checkCron(cron);
    if (zone !== undefined) checkZone(zone);
    if (phaseMs) throw new InvalidError('phaseMs', phaseMs, 'must not be given beside cron');
  }
  if (everyMs !== undefined) {
    const every = limits.wholeMillis('everyMs', everyMs, 1000);
    limits.wholeMillis('phaseMs', phaseMs, 0, every - 1);
    if (zone !== undefined) throw new InvalidError('zone', zone, 'must not be given beside everyMs');
  }
  if (start && end && end <= start) throw new InvalidError('end', end.toISOString(), 'must be after start');
  limits.checkBetween('count', recurrence.count ?? 0, 0, 1_000_000_000);
  if (!['once', 'skip', 'all'].includes(missed)) throw new InvalidError('missed', missed, 'must be skip, once or all');
  if (!['allow', 'skip'].includes(overlap)) throw new InvalidError('overlap', overlap, 'must be allow or skip');
  if (owner !== undefined) limits.checkText('owner', owner, 128);
}

// The fields of a spec, as far as this package knows them.
interface Spec {
  payload?: string;
  payload_base64?: string;
  headers?: Record<string, string>;
  cron?: string;
  zone?: string;
  every_ms?: number;
  phase_ms?: number;
  start_ms?: number;
  end_ms?: number;
  count?: number;
  jitter_ms?: number;
  missed?: 'once' | 'skip' | 'all';
  overlap?: 'allow' | 'skip';
  paused?: boolean;
  owner?: string;
}

/** Returns the recurrence of a spec. */
export function parseSpec(queue: string, name: string, json: string): StoredRecurrence {
  const spec = JSON.parse(json) as Spec;
  return {
    name, queue, headers: spec.headers ?? {},
    payload: spec.payload_base64 ? Buffer.from(spec.payload_base64, 'base64') : Buffer.from(spec.payload ?? ''),
    ...(spec.cron && { cron: spec.cron }),
    ...(spec.zone && { zone: spec.zone }),
    ...(spec.every_ms && { everyMs: spec.every_ms }),
    ...(spec.phase_ms && { phaseMs: spec.phase_ms }),
    ...(spec.start_ms && { start: new Date(spec.start_ms) }),
    ...(spec.end_ms && { end: new Date(spec.end_ms) }),
    ...(spec.count && { count: spec.count }),
    ...(spec.jitter_ms && { jitterMs: spec.jitter_ms }),
    ...(spec.missed && { missed: spec.missed }),
    ...(spec.overlap && { overlap: spec.overlap }),
    ...(spec.paused && { paused: spec.paused }),
    ...(spec.owner && { owner: spec.owner }),
  };
}

function checkZone(zone: string): void {
  try {
    // JavaScript also takes names in another letter case, and offsets. Bridges do not know them.
    const { timeZone } = new Intl.DateTimeFormat('en', { timeZone: zone }).resolvedOptions();
    if (/^[A-Za-z]/.test(zone) && (timeZone === zone || timeZone.toLowerCase() !== zone.toLowerCase())) return;
  } catch {
    // refused below
  }
  throw new InvalidError('zone', zone, 'must be a time zone like Europe/Paris or UTC');
}

interface CronField {
  name: string;
  least: number;
  most: number;
  names: readonly string[];
}

const cronWords = ['@yearly', '@annually', '@monthly', '@weekly', '@daily', '@midnight', '@hourly'];
const cronFields: readonly CronField[] = [
  { name: 'second', least: 0, most: 59, names: [] },
  { name: 'minute', least: 0, most: 59, names: [] },
  { name: 'hour', least: 0, most: 23, names: [] },
  { name: 'day of the month', least: 1, most: 31, names: [] },
  { name: 'month', least: 1, most: 12,
    names: ['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'] },
  { name: 'day of the week', least: 0, most: 7, names: ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat'] },
];

/** Refuses expressions that bridges cannot plan. */
function checkCron(cron: string): void {
  if (limits.utf8Bytes('cron', cron) > 512) throw new InvalidError('cron', cron, 'must be at most 512 bytes');
  const text = cron.trim().toLowerCase();
  if (text.startsWith('@')) {
    if (cronWords.includes(text)) return;
    throw new InvalidError('cron', cron,
      'must be @yearly, @monthly, @weekly, @daily or @hourly if it begins with @');
  }
  if (text.includes('=')) {
    throw new InvalidError('cron', cron, 'must not name a time zone: use the field zone');
  }
  const words = text.split(/\s+/);
  if (words.length !== 5 && words.length !== 6) {
    throw new InvalidError('cron', cron, 'must have 5 fields (minute, hour, day of the month, month, day of the week), '
      + `or 6 with seconds in front; it has ${words.length}`);
  }
  cronFields.slice(-words.length).forEach((field, i) => {
    for (const part of (words[i] ?? '').split(',')) checkCronPart(cron, part, field);
  });
}

function checkCronPart(cron: string, part: string, { name, least, most, names: words }: CronField): void {
  const slash = part.indexOf('/');
  const span = slash < 0 ? part : part.slice(0, slash);
  const step = slash < 0 ? '1' : part.slice(slash + 1);
  if (!/^\d+$/.test(step) || Number(step) < 1 || (slash >= 0 && Number(step) > most)) {
    throw new InvalidError('cron', cron, `the ${name} is "${part}": a step must be 1 to ${most}`);
  }
  if (span === '*' || span === '?') return;
  const dash = span.indexOf('-');
  const ends = dash < 0 ? [span] : [span.slice(0, dash), span.slice(dash + 1)];
  const values = ends.map((end) => {
    const word = words.indexOf(end);
    const value = word >= 0 ? least + word : /^\d+$/.test(end) ? Number(end) : -1;
    if (value < least || value > most) {
      throw new InvalidError('cron', cron, `the ${name} is "${end}": must be ${least} to ${most}`);
    }
    return value;
  });
  const [from = 0, to = from] = values;
  if (from > to) throw new InvalidError('cron', cron, `the ${name} is "${part}": a range must not run backwards`);
}
