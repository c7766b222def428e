// What happens to an order within minutes, tested in milliseconds, without Redis: npm test
import assert from 'node:assert/strict';
import { beforeEach, test } from 'node:test';
import { Memory } from 'duestream/testing';
import { closeAfterMs, gapsMs, PartnerRefused, remindAfterMs, Shop } from './shop.js';

let memory, shop, mails, calls, partner;

beforeEach(() => {
  memory = new Memory();
  const began = memory.now;
  mails = [];
  calls = []; // times of calls of the partner in ms, since the beginning
  partner = () => {};
  shop = new Shop({
    client: memory,
    mail: (_, text) => mails.push(text),
    callPartner: async () => {
      calls.push(memory.now - began);
      partner();
    },
  });
});

/** Moves the time, and returns how the deliveries ended. */
async function pass(ms) {
  memory.advance(ms);
  return (await memory.deliver(shop.mux())).map(({ settlement }) => settlement);
}

test('an unpaid order is reminded and closed', async () => {
  await shop.place('42');
  await shop.place('42'); // the caller tries again
  assert.deepEqual(await pass(remindAfterMs - 1), []);
  await pass(1);
  assert.deepEqual([mails, shop.state('42')], [['Please pay your order.'], 'unpaid']);
  await pass(closeAfterMs - remindAfterMs);
  assert.deepEqual([mails.slice(1), shop.state('42')], [['We have closed your order.'], 'closed']);
  assert.equal(await shop.pay('42'), false);
  assert.deepEqual(calls, []);
});

test('a payment cancels', async () => {
  await shop.place('42');
  assert.equal(await shop.pay('42'), true);
  assert.deepEqual(memory.scheduled('orders'), []);
  await pass(closeAfterMs);
  assert.deepEqual([shop.state('42'), mails], ['paid', []]);
});

test('the partner is told once', async () => {
  await shop.place('42');
  await shop.pay('42');
  await pass(0);
  await shop.pay('42'); // the provider of payments repeats its call
  await pass(3_600_000);
  assert.equal(calls.length, 1);
});

test('the partner is called with growing gaps, and given up', async () => {
  partner = () => {
    throw new Error('down');
  };
  await shop.place('42');
  await shop.pay('42');
  let now = 0;
  const times = [0, ...gapsMs].map((gap) => now += gap);
  for (const gap of [0, ...gapsMs]) await pass(gap);
  assert.deepEqual(calls, times);
  assert.deepEqual(memory.dead.map(({ reason, error }) => [reason, error]), [['max_attempts', 'down']]);
});

test('a refusal of the partner is final', async () => {
  partner = () => {
    throw new PartnerRefused('unknown order');
  };
  await shop.place('42');
  await shop.pay('42');
  assert.deepEqual(await pass(0), ['dead']);
  assert.equal(memory.dead[0].reason, 'dead_letter');
});

test('a message without its order does nothing', async () => {
  await shop.place('42');
  shop = new Shop({ client: memory, mail: (_, text) => mails.push(text), callPartner: () => {} }); // it has no orders
  assert.deepEqual(await pass(closeAfterMs), ['acknowledged', 'acknowledged']);
  assert.deepEqual(mails, []);
});
