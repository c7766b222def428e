"""What happens to an order within minutes, tested in milliseconds, without Redis: python3 -m pytest"""
from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from duestream import Mux, Settlement
from duestream.testing import Memory
from shop import CLOSE_AFTER, GAPS, REMIND_AFTER, PartnerRefused, Shop


class Rig:
    """A shop whose time the test moves."""

    def __init__(self, directory: Path) -> None:
        self.memory = Memory()
        self.mails: list[str] = []
        self.calls: list[timedelta] = []  # times of calls of the partner, since the beginning
        self.answer: Exception | None = None  # of the partner
        self._began = self.memory.now
        self.shop = Shop(str(directory / "shop.db"), self.memory, lambda _, text: self.mails.append(text), self._call)
        self._mux: Mux = self.shop.mux()

    def _call(self, _: str) -> None:
        self.calls.append(self.memory.now - self._began)
        if self.answer is not None:
            raise self.answer

    def pass_time(self, duration: timedelta) -> list[Settlement]:
        self.memory.advance(duration)
        return [one.settlement for one in self.memory.deliver(self._mux)]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_an_unpaid_order_is_reminded_and_closed(rig: Rig) -> None:
    rig.shop.place("42")
    rig.shop.place("42")  # the caller tries again
    assert not rig.pass_time(REMIND_AFTER - timedelta(milliseconds=1))
    rig.pass_time(timedelta(milliseconds=1))
    assert rig.mails == ["Please pay your order."] and rig.shop.state("42") == "unpaid"
    rig.pass_time(CLOSE_AFTER - REMIND_AFTER)
    assert rig.mails[1:] == ["We have closed your order."] and rig.shop.state("42") == "closed"
    assert not rig.shop.pay("42") and not rig.calls


def test_a_payment_cancels(rig: Rig) -> None:
    rig.shop.place("42")
    assert rig.shop.pay("42")
    assert not rig.memory.scheduled("orders")
    rig.pass_time(CLOSE_AFTER)
    assert rig.shop.state("42") == "paid" and not rig.mails


def test_the_partner_is_told_once(rig: Rig) -> None:
    rig.shop.place("42")
    rig.shop.pay("42")
    rig.pass_time(timedelta())
    rig.shop.pay("42")  # the provider of payments repeats its call
    rig.pass_time(timedelta(hours=1))
    assert len(rig.calls) == 1


def test_the_partner_is_called_with_growing_gaps_and_given_up(rig: Rig) -> None:
    rig.answer = ConnectionError("down")
    rig.shop.place("42")
    rig.shop.pay("42")
    for gap in [timedelta(), *GAPS]:
        rig.pass_time(gap)
    assert rig.calls == [sum(GAPS[:n], timedelta()) for n in range(len(GAPS) + 1)]
    assert [(letter.reason, letter.error) for letter in rig.memory.dead] == [("max_attempts", "down")]


def test_a_refusal_of_the_partner_is_final(rig: Rig) -> None:
    rig.answer = PartnerRefused("unknown order")
    rig.shop.place("42")
    rig.shop.pay("42")
    assert rig.pass_time(timedelta()) == [Settlement.DEAD]
    assert rig.memory.dead[0].reason == "dead_letter"


def test_a_message_without_its_order_does_nothing(rig: Rig) -> None:
    rig.shop.place("42")
    with rig.shop._transaction() as db:  # as if the process had died before it stored the order
        db.execute("DELETE FROM orders")
    assert rig.pass_time(CLOSE_AFTER) == [Settlement.ACKNOWLEDGED] * 2
    assert not rig.mails
