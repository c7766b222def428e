// The queue part of a shop: it reminds of unpaid orders, closes them, and tells a partner about paid ones.
import { DeadLetter, DuplicateError, Kind, Mux, NotScheduledError } from 'duestream';

const minute = 60_000;
export const remindAfterMs = 20 * minute;
export const closeAfterMs = 30 * minute;
export const gapsMs = [1, 3, 5, 7, 9].map((n) => n * minute); // between calls of a partner that does not answer

// The payload of each message is the ID of an order, as JSON. uniqueBy makes the ID of a message from it, so there is
// at most one message of each kind about an order, and the payment can cancel it.
const uniqueBy = (order) => [order];
const remindOrder = new Kind({ name: 'remind-order', queue: 'orders', uniqueBy });
const closeOrder = new Kind({ name: 'close-order', queue: 'orders', uniqueBy });
const tellPartner = new Kind({ name: 'tell-partner', queue: 'partner', uniqueBy });

/** The partner will never take this order. */
export class PartnerRefused extends Error {}

/**
 * Orders, and their messages.
 *
 * The store of orders decides: a message may come twice, or after a payment, so a handler does nothing if the order
 * does not fit any more. The store of this example is a Map. A shop has a database, and change is one statement there:
 * UPDATE orders SET … WHERE id = $1 AND state = 'unpaid'.
 */
export class Shop {
  #orders = new Map(); // by ID: { state, reminded }
  #client;
  #mail;
  #callPartner;

  constructor({ client, mail, callPartner }) {
    this.#client = client;
    this.#mail = mail;
    this.#callPartner = callPartner;
  }

  /** Stores an unpaid order. If the process dies on the way, the messages find no order, and do nothing. */
  async place(order) {
    await unless(DuplicateError, remindOrder.schedule(this.#client, order, { delayMs: remindAfterMs }));
    await unless(DuplicateError, closeOrder.schedule(this.#client, order, { delayMs: closeAfterMs }));
    if (!this.#orders.has(order)) this.#orders.set(order, { state: 'unpaid', reminded: false });
  }

  /**
   * Marks an order as paid, and returns whether it is paid now: not if it was closed.
   *
   * A provider of payments repeats its call until it is answered. If the process dies on the way, the next call does the
   * rest. The dedup window keeps repeated calls from telling the partner twice.
   */
  async pay(order) {
    this.#change(order, { state: 'paid' });
    if (this.state(order) !== 'paid') return false;
    await unless(DuplicateError, tellPartner.schedule(this.#client, order,
      { retryDelaysMs: gapsMs, maxAttempts: 1 + gapsMs.length, dedupMs: 7 * 24 * 60 * minute }));
    // They were delivered, or an earlier call cancelled them.
    await unless(NotScheduledError, remindOrder.cancel(this.#client, order));
    await unless(NotScheduledError, closeOrder.cancel(this.#client, order));
    return true;
  }

  state(order) {
    return this.#orders.get(order)?.state;
  }

  /** Returns the handlers of all messages. */
  mux() {
    return new Mux()
      .handle(remindOrder, async (order) => {
        if (this.#orders.get(order)?.reminded) return;
        if (this.#change(order, { reminded: true })) await this.#mail(order, 'Please pay your order.');
      })
      .handle(closeOrder, async (order) => {
        if (this.#change(order, { state: 'closed' })) await this.#mail(order, 'We have closed your order.');
      })
      .handle(tellPartner, async (order, message) => {
        try {
          await this.#callPartner(order, message.signal);
        } catch (error) {
          if (error instanceof PartnerRefused) throw new DeadLetter(error.message, { cause: error });
          throw error;
        }
      });
  }

  /** Changes an unpaid order. Returns whether there was one. */
  #change(order, fields) {
    const found = this.#orders.get(order);
    if (found?.state !== 'unpaid') return false;
    Object.assign(found, fields);
    return true;
  }
}

/** Awaits a call, and ignores one class of errors. */
async function unless(errors, call) {
  try {
    await call;
  } catch (error) {
    if (!(error instanceof errors)) throw error;
  }
}
