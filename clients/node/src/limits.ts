// The limits of arguments (docs/reference/protocol.md, section 13), durations and points in time.
import { InvalidError } from './errors.js';

export const maxPayloadBytes = 16 << 20;
export const maxBatch = 100_000;
export const maxAttempts = 1_000_000;
export const maxDelays = 100;
export const maxResultBytes = 64 << 10;
export const maxProgressBytes = 4 << 10;
export const dayMs = 24 * 3_600_000;
export const tenYearsMs = 3650 * dayMs;

export function checkQueue(name: string): void {
  if (typeof name !== 'string' || !/^[A-Za-z0-9._:-]{1,128}$/.test(name)) {
    throw new InvalidError('queue', name, 'must be 1 to 128 characters of A-Z a-z 0-9 . _ : -');
  }
}

export function checkPrefix(prefix: string): void {
  if (typeof prefix !== 'string' || !/^[A-Za-z0-9._:/-]{1,128}$/.test(prefix)) {
    throw new InvalidError('prefix', prefix, 'must be 1 to 128 characters of A-Z a-z 0-9 . _ : / -');
  }
}

/** Refuses names that are empty, too long, not UTF-8, or hold control characters. */
export function checkText(field: string, value: string, most = 256): void {
  if (value === '') throw new InvalidError(field, value, 'must not be empty');
  if (utf8Bytes(field, value) > most) throw new InvalidError(field, value, `must be at most ${most} bytes`);
  if (/[\x00-\x1f\x7f]/.test(value)) throw new InvalidError(field, value, 'must not hold control characters');
}

/** Returns the length of a text in UTF-8. It refuses half of a surrogate pair, which has no form in UTF-8. */
export function utf8Bytes(field: string, value: string): number {
  if (typeof value !== 'string') throw new InvalidError(field, value, 'must be a string');
  // With the flag u, whole pairs do not match.
  if (/[\ud800-\udfff]/u.test(value)) throw new InvalidError(field, JSON.stringify(value), 'must be UTF-8');
  return Buffer.byteLength(value);
}

/** Returns a payload as bytes. */
export function payloadBytes(payload: string | Uint8Array, most = maxPayloadBytes, field = 'payload'): Buffer {
  if (typeof payload === 'string') utf8Bytes(field, payload);
  else if (!(payload instanceof Uint8Array)) throw new InvalidError(field, payload, 'must be a string or bytes');
  const bytes = typeof payload === 'string'
    ? Buffer.from(payload)
    : Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength);
  if (bytes.length > most) throw new InvalidError(field, `of ${bytes.length} bytes`, `must be at most ${most} bytes`);
  return bytes;
}

export function checkHeaders(headers: Readonly<Record<string, string>>): void {
  const pairs = Object.entries(headers);
  if (pairs.length > 64) throw new InvalidError('headers', pairs.length, 'must be at most 64');
  let total = 0;
  for (const [name, value] of pairs) {
    checkText('header name', name, 128);
    const size = utf8Bytes(`header ${name}`, value);
    if (size > 8 << 10) throw new InvalidError(`header ${name}`, value, 'must be at most 8192 bytes');
    total += Buffer.byteLength(name) + size;
  }
  if (total > 32 << 10) throw new InvalidError('headers', `${total} bytes`, 'must be at most 32768 bytes together');
}

export function checkBetween(field: string, value: number, least: number, most: number): void {
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new InvalidError(field, value, `must be a whole number between ${least} and ${most}`);
  }
}

/** Refuses unknown fields of an object, like delay instead of delayMs. */
export function checkNames(what: string, given: object, known: readonly string[]): void {
  for (const name of Object.keys(given)) {
    if (!known.includes(name)) throw new InvalidError(what, name, `is unknown: it takes ${known.join(', ')}`);
  }
}

/** Returns a duration in whole ms, rounded up. */
export function wholeMillis(field: string, ms: number, least = 0, most = tenYearsMs): number {
  if (typeof ms !== 'number' || !Number.isFinite(ms)) throw new InvalidError(field, ms, 'must be a number of ms');
  const whole = Math.ceil(ms);
  if (whole < least || whole > most) {
    const limit = most === tenYearsMs ? `${most} (ten years)` : String(most);
    throw new InvalidError(field, ms, `must be between ${least} and ${limit}`);
  }
  return whole;
}

/** Returns a point in time as Unix ms. */
export function unixMillis(field: string, at: Date): number {
  if (!(at instanceof Date) || Number.isNaN(at.getTime())) throw new InvalidError(field, at, 'must be a valid Date');
  const ms = at.getTime();
  if (ms < 1e12 || ms > 1e13) {
    throw new InvalidError(field, at.toISOString(), 'must be between 2001-09-09 and 2286-11-20');
  }
  return ms;
}

/** Percent-encodes the name of a group for names of keys and settings: all bytes but A-Z a-z 0-9 - _ . ~ */
export function percent(name: string): string {
  return encodeURIComponent(name).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

/** Cuts an error text to 1 KiB of UTF-8, which an entry holds at most. */
export function cutText(text: string): string {
  // A character that is cut in two becomes U+FFFD at the end.
  return Buffer.from(text).subarray(0, 1024).toString().replace(/\ufffd+$/, '');
}
