from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest

from duestream import (DeadLetter, DuplicateError, InvalidError, Kind, Message, Mux, NewMessage, NotScheduledError,
                       Policy, Release, RetryAfter, Settlement, Snooze)
from duestream.testing import Memory

REPORT: Kind[dict[str, int]] = Kind("report", "reports")


def settlements(memory: Memory, error: Exception | None = None) -> list[Settlement]:
    def handle(_: Message) -> None:
        if error is not None:
            raise error

    return [one.settlement for one in memory.deliver(handle)]


def test_delivers_at_the_due_time() -> None:
    memory = Memory(now=datetime(2030, 1, 1, tzinfo=timezone.utc))
    receipt = memory.schedule("q", "x", id="a", delay=timedelta(minutes=30), headers={"h": "1"})
    assert receipt.due == datetime(2030, 1, 1, 0, 30, tzinfo=timezone.utc)
    memory.advance(30 * 60 - 0.001)
    assert not memory.deliver(print)
    memory.advance(0.001)
    (done,) = memory.deliver(lambda message: None)
    assert (done.settlement, done.message.payload, done.message.headers) == (Settlement.ACKNOWLEDGED, b"x", {"h": "1"})
    assert not memory.deliver(print) and not memory.scheduled("q")


def test_refuses_as_a_client_does() -> None:
    memory = Memory()
    memory.schedule("q", id="a", delay=60)
    memory.schedule("q", id="b", dedup=60)
    for id in ("a", "b"):
        with pytest.raises(DuplicateError):
            memory.schedule("q", id=id)
    with pytest.raises(InvalidError):
        memory.schedule("q", delay=-1)
    with pytest.raises(DuplicateError):
        memory.schedule("q", id="a", delay=30, replace="later")
    assert memory.schedule("q", "new", id="a", delay=90, replace="later").replaced
    assert [r.error is None for r in memory.send_batch("q", [NewMessage(id="a"), NewMessage()])] == [False, True]
    assert memory.reschedule("q", "a", delay=5) == memory.now + timedelta(seconds=5)
    memory.cancel("q", "a")
    with pytest.raises(NotScheduledError):
        memory.cancel("q", "a")


def test_retries_by_the_policy_until_the_message_is_dead() -> None:
    memory = Memory(policy=Policy(max_attempts=3, retry_min_ms=1000))
    memory.schedule("q", id="a")
    assert settlements(memory, RuntimeError("one")) == [Settlement.RETRIED]
    memory.advance(0.999)
    assert not memory.deliver(print)
    memory.advance(0.001)
    (message,) = memory.scheduled("q")
    assert (message.attempt, message.error) == (2, "one")
    assert settlements(memory, RetryAfter(10, "two")) == [Settlement.RETRIED]
    memory.advance(10)
    assert settlements(memory, RuntimeError("three")) == [Settlement.DEAD]
    assert [(dead.reason, dead.error) for dead in memory.dead] == [("max_attempts", "three")]


def test_releases_snoozes_dead_letters_and_expiry() -> None:
    memory = Memory()
    memory.schedule("q", id="a", max_snoozes=1)
    assert settlements(memory, Release()) == [Settlement.RELEASED]
    assert settlements(memory, Snooze(60)) == [Settlement.SNOOZED]
    memory.advance(60)
    assert settlements(memory, Snooze(60)) == [Settlement.DEAD]
    memory.schedule("q", id="b")
    assert settlements(memory, DeadLetter("never")) == [Settlement.DEAD]
    memory.schedule("q", id="c", retry_for=5, retry_delays=[10])
    assert settlements(memory, RuntimeError()) == [Settlement.DEAD]
    memory.schedule("q", id="d", expires_in=5, delay=1)
    memory.advance(5)
    assert settlements(memory) == []
    assert [dead.reason for dead in memory.dead] == ["max_snoozes", "dead_letter", "retry_for", "expired"]


def test_a_kind_cancels_the_message_about_the_same_thing() -> None:
    memory = Memory()
    close = Kind("close", "q", int, unique_by=lambda order: [order])
    close.schedule(memory, 42, delay=1)
    close.cancel(memory, 42)

    async def cancel() -> None:
        await close.schedule(memory.asyncio, 43, delay=1)
        await close.cancel(memory.asyncio, 43)

    asyncio.run(cancel())
    with pytest.raises(NotScheduledError):
        close.cancel(memory, 42)


def test_progress_goes_on() -> None:
    memory = Memory()
    memory.schedule("q", retry_delays=[1])
    got: list[bytes] = []

    def handle(message: Message) -> None:
        got.append(message.progress)
        message.save_progress("7")
        raise RuntimeError

    memory.deliver(handle)
    memory.advance(1)
    memory.deliver(handle)
    assert got == [b"", b"7"]


def test_a_key_waits_for_its_retry() -> None:
    memory = Memory()
    memory.schedule("q", id="a", key="k", retry_delays=[5])
    memory.schedule("q", id="b", key="k")
    memory.schedule("q", id="c")
    got: list[str] = []

    def handle(message: Message) -> None:
        got.append(message.id)
        if message.attempt == 1 and message.id == "a":
            raise RuntimeError

    memory.deliver(handle)
    assert got == ["a", "c"]
    memory.advance(5)
    memory.deliver(handle)
    assert got == ["a", "c", "a", "b"]


def test_kinds_and_coroutines() -> None:
    memory, mux = Memory(), Mux()
    got: list[dict[str, int]] = []

    @mux.handle(REPORT)
    async def report(value: dict[str, int], _: Message) -> None:
        got.append(value)

    REPORT.schedule(memory, {"day": 1})

    async def send() -> None:
        await REPORT.schedule(memory.asyncio, {"day": 2})
        await memory.asyncio.schedule("reports", id="x", delay=9)
        await memory.asyncio.cancel("reports", "x")

    asyncio.run(send())
    assert [one.settlement for one in memory.deliver(mux)] == [Settlement.ACKNOWLEDGED] * 2
    assert got == [{"day": 1}, {"day": 2}]
