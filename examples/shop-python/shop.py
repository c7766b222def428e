"""The queue part of a shop: it reminds of unpaid orders, closes them, and tells a partner about paid ones."""
from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta

from duestream import DeadLetter, DuplicateError, Kind, Message, MessageClient, Mux, NotScheduledError

REMIND_AFTER, CLOSE_AFTER = timedelta(minutes=20), timedelta(minutes=30)
GAPS = [timedelta(minutes=minutes) for minutes in (1, 3, 5, 7, 9)]  # between calls of a partner that does not answer


def order_of(order: str) -> list[str]:
    return [order]


# The payload of each message is the ID of an order, as JSON. unique_by makes the ID of a message from it, so there is
# at most one message of each kind about an order, and the payment can cancel it.
REMIND_ORDER = Kind("remind-order", "orders", str, unique_by=order_of)
CLOSE_ORDER = Kind("close-order", "orders", str, unique_by=order_of)
TELL_PARTNER = Kind("tell-partner", "partner", str, unique_by=order_of)


class PartnerRefused(Exception):
    """The partner will never take this order."""


class Shop:
    """Orders in a database, and their messages.

    The database decides: a message may come twice, or after a payment, so a handler does nothing if the order does not
    fit any more.
    """

    def __init__(self, database: str, client: MessageClient, mail: Callable[[str, str], None],
                 call_partner: Callable[[str], None]) -> None:
        self._database, self._client, self._mail, self._call_partner = database, client, mail, call_partner
        with self._transaction() as db:
            db.execute("CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, state text NOT NULL, "
                       "reminded integer NOT NULL DEFAULT 0)")

    def place(self, order: str) -> None:
        """Stores an unpaid order. If the process dies on the way, the messages find no order, and do nothing."""
        for kind, after in ((REMIND_ORDER, REMIND_AFTER), (CLOSE_ORDER, CLOSE_AFTER)):
            with contextlib.suppress(DuplicateError):  # the caller tries again
                kind.schedule(self._client, order, delay=after)
        with self._transaction() as db:
            db.execute("INSERT INTO orders (id, state) VALUES (?, 'unpaid') ON CONFLICT DO NOTHING", [order])

    def pay(self, order: str) -> bool:
        """Marks an order as paid, and returns whether it is paid now: not if it was closed.

        A provider of payments repeats its call until it is answered. If the process dies on the way, the next call does
        the rest. The dedup window keeps repeated calls from telling the partner twice.
        """
        with self._transaction() as db:
            db.execute("UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'unpaid'", [order])
        if self.state(order) != "paid":
            return False
        with contextlib.suppress(DuplicateError):
            TELL_PARTNER.schedule(self._client, order, retry_delays=GAPS, max_attempts=1 + len(GAPS),
                                  dedup=timedelta(days=7))
        for kind in (REMIND_ORDER, CLOSE_ORDER):
            with contextlib.suppress(NotScheduledError):  # it was delivered, or an earlier call cancelled it
                kind.cancel(self._client, order)
        return True

    def state(self, order: str) -> str:
        with self._transaction() as db:
            row = db.execute("SELECT state FROM orders WHERE id = ?", [order]).fetchone()
        return str(row[0]) if row else ""

    def mux(self) -> Mux:
        """Returns the handlers of all messages."""
        mux = Mux()

        @mux.handle(REMIND_ORDER)
        def remind(order: str, _: Message) -> None:
            self._update_and_mail("UPDATE orders SET reminded = 1 WHERE id = ? AND state = 'unpaid' AND reminded = 0",
                                  order, "Please pay your order.")

        @mux.handle(CLOSE_ORDER)
        def close(order: str, _: Message) -> None:
            self._update_and_mail("UPDATE orders SET state = 'closed' WHERE id = ? AND state = 'unpaid'",
                                  order, "We have closed your order.")

        @mux.handle(TELL_PARTNER)
        def tell_partner(order: str, _: Message) -> None:
            try:
                self._call_partner(order)
            except PartnerRefused as refused:
                raise DeadLetter(refused) from refused

        return mux

    def _update_and_mail(self, statement: str, order: str, text: str) -> None:
        """Sends a mail if the statement changes the order. A crash before the commit sends the mail twice."""
        with self._transaction() as db:
            if db.execute(statement, [order]).rowcount:
                self._mail(order, text)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Each handler has a thread, so each transaction has a connection."""
        db = sqlite3.connect(self._database, isolation_level="IMMEDIATE")
        try:
            with db:
                yield db
        finally:
            db.close()
