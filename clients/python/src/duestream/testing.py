"""A client in memory, for tests of programs. It needs no server, and its clock moves when the test moves it.

    memory = Memory()
    place_order(memory, order)  # the program under test, which calls memory.schedule in place of client.schedule
    assert [message.id for message in memory.scheduled("orders")] == ["close-42"]

    memory.advance(timedelta(minutes=30))
    (done,) = memory.deliver(mux)
    assert done.settlement is Settlement.ACKNOWLEDGED
"""
from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Optional, Union, Unpack

from . import limits
from .delivery import Handler, Message, Settlement, outcome_of
from .errors import DuestreamError, DuplicateError, NotScheduledError
from .kind import Mux
from .limits import Duration
from .message import NewMessage, Options, Receipt, Result, new_id
from .policy import Policy


@dataclasses.dataclass(frozen=True)
class Delivered:
    """A delivery, how it ended, and the error that its handler raised."""

    message: Message
    settlement: Settlement
    error: Optional[Exception] = None


@dataclasses.dataclass(frozen=True)
class Dead:
    """A dead letter."""

    message: Message
    reason: str
    error: str


@dataclasses.dataclass
class _Scheduled:
    id: str
    new: NewMessage
    due: int  # Unix ms
    order: int  # of messages that are due at the same time
    first_due: int
    expires: Optional[int]
    attempt: int = 1
    snoozes: int = 0
    error: str = ""
    progress: bytes = b""
    is_retry: bool = False


class Memory:
    """A client in memory: it has the methods of Client for messages, and delivers the messages to one group.

    It checks messages, IDs and dedup windows, keeps the order of keys, and retries, snoozes and dead-letters by policy,
    without the random factor of delays. It has no partitions and no recurrences. Only one thread may use it.
    """

    def __init__(self, *, now: Optional[datetime] = None, policy: Policy = Policy(), group: str = "test") -> None:
        self._now = limits.unix_millis("now", now or datetime.now(timezone.utc))
        self._policy, self._group = policy, group
        self._queues: dict[str, list[_Scheduled]] = {}
        self._windows: dict[tuple[str, str], int] = {}  # by queue and ID: the end of the dedup window
        self._order = 0
        self.dead: list[Dead] = []

    @property
    def asyncio(self) -> "AsyncMemory":
        """The same memory with the methods of AsyncClient."""
        return AsyncMemory(self)

    @property
    def now(self) -> datetime:
        return limits.from_unix_millis(self._now)

    # ---- client --------------------------------------------------------------------------------------------------

    def schedule(self, queue: str, payload: Union[bytes, str] = b"", **options: Unpack[Options]) -> Receipt:
        """See Client.schedule."""
        return self.send(queue, NewMessage(payload, **options))

    def send(self, queue: str, message: NewMessage) -> Receipt:
        """See Client.send."""
        limits.check_queue(queue)
        message.check()
        id = new_id() if message.id is None else message.id
        when = message.when(id)
        due = max(self._now, self._now + int(when) if when.startswith("+") else int(when))
        present = self._find(queue, id)
        windowed = self._windows.get((queue, id), 0) > self._now
        if present is None and windowed or present is not None and not _may_replace(message, present.due, due):
            raise DuplicateError(f"{id} is scheduled already, or inside a dedup window")
        if present is not None:
            self._queues[queue].remove(present)
        if message.dedup is not None:
            self._windows[queue, id] = self._now + limits.millis("dedup", message.dedup)
        expires: Optional[int] = None
        if message.expires is not None:
            expires = limits.unix_millis("expires", message.expires)
        elif message.expires_in is not None:
            expires = self._now + limits.millis("expires_in", message.expires_in)
        self._order += 1
        self._queues.setdefault(queue, []).append(_Scheduled(id, message, due, self._order, due, expires))
        return Receipt(id, limits.from_unix_millis(due), due == self._now, present is not None)

    def send_batch(self, queue: str, messages: Iterable[NewMessage]) -> list[Result]:
        """See Client.send_batch."""
        results = []
        for message in messages:
            id = new_id() if message.id is None else message.id
            try:
                results.append(Result(id, self.send(queue, dataclasses.replace(message, id=id))))
            except DuestreamError as error:
                results.append(Result(id, error=error))
        return results

    def cancel(self, queue: str, id: str) -> None:
        """See Client.cancel."""
        self._queues[queue].remove(self._scheduled(queue, id))
        self._windows.pop((queue, id), None)

    def reschedule(self, queue: str, id: str, *, delay: Duration = 0, at: Optional[datetime] = None) -> datetime:
        """See Client.reschedule."""
        message = NewMessage(id=id, delay=delay, at=at)
        message.check()
        when = message.when(id)
        found = self._scheduled(queue, id)
        found.due = self._now + int(when) if when.startswith("+") else int(when)
        return limits.from_unix_millis(found.due)

    # ---- test ----------------------------------------------------------------------------------------------------

    def advance(self, duration: Duration) -> None:
        """Moves the clock. Call deliver then for the messages that have become due."""
        self._now += limits.millis("duration", duration)

    def scheduled(self, queue: str) -> list[Message]:
        """Returns the scheduled messages of a queue, retries included, in the order of due times."""
        waiting = sorted(self._queues.get(queue, []), key=lambda one: (one.due, one.order))
        return [self._message(queue, one) for one in waiting]

    def deliver(self, handler: Union[Handler, Mux], queue: Optional[str] = None) -> list[Delivered]:
        """Calls a handler, or the handlers of a mux, for the due messages of one queue, or of all queues.

        It delivers each message once, in the order of due times. Call it again for messages that are due again. Each
        call of a coroutine function runs in a new event loop.
        """
        delivered: list[Delivered] = []
        seen: set[int] = set()  # the orders of messages
        while (found := self._next(queue, seen)) is not None:
            name, one = found
            seen.add(one.order)
            self._queues[name].remove(one)
            message = self._message(name, one)
            if one.expires is not None and self._now >= one.expires:
                self.dead.append(Dead(message, "expired", one.error))
                continue
            error: Optional[Exception] = None
            try:
                call = handler.handler_of(message) if isinstance(handler, Mux) else handler
                result = call(message)
                if inspect.iscoroutine(result):
                    asyncio.run(result)
            except Exception as raised:
                error = raised
            delivered.append(Delivered(message, self._settle(name, one, message, error), error))
        return delivered

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _find(self, queue: str, id: str) -> Optional[_Scheduled]:
        return next((one for one in self._queues.get(queue, []) if one.id == id and not one.is_retry), None)

    def _scheduled(self, queue: str, id: str) -> _Scheduled:
        limits.check_queue(queue)
        limits.check_text("id", id)
        found = self._find(queue, id)
        if found is None:
            raise NotScheduledError(f"{queue}/{id}: not scheduled")
        return found

    def _next(self, queue: Optional[str], seen: set[int]) -> Optional[tuple[str, _Scheduled]]:
        """Returns the earliest due message that does not wait for the retry of another message with its key."""
        due: list[tuple[str, _Scheduled]] = []
        for name, waiting in self._queues.items():
            held = {one.new.key: one for one in waiting if one.is_retry and one.new.key is not None}
            due += [(name, one) for one in waiting if queue in (None, name) and one.due <= self._now
                    and one.order not in seen and held.get(one.new.key or "", one) is one]
        if not due:
            return None
        return min(due, key=lambda found: (found[1].due, found[1].order))

    def _message(self, queue: str, one: _Scheduled) -> Message:
        extra = {"key": one.new.key} if one.new.key is not None else {}
        if one.snoozes:
            extra["snoozes"] = str(one.snoozes)
        expires = limits.from_unix_millis(one.expires) if one.expires is not None else None
        return Message(one.id, one.new.body(), dict(one.new.headers), one.attempt, queue, self._group, "test",
                       entry_id=f"{one.due}-{one.order}", due=limits.from_unix_millis(one.due),
                       max_attempts=one.new.max_attempts, expires=expires,
                       recipient=self._group if one.is_retry else "", error=one.error, progress=one.progress,
                       extra=extra)

    def _settle(self, queue: str, one: _Scheduled, message: Message, error: Optional[Exception]) -> Settlement:
        if error is None:
            return Settlement.ACKNOWLEDGED
        outcome = outcome_of(error)
        reason, delay = outcome.reason, outcome.delay_ms or 0
        is_dead = outcome.action == "dead"
        if outcome.action == "snooze":
            is_dead = one.snoozes >= (one.new.max_snoozes or self._policy.max_snoozes or 1000)
        elif outcome.action == "retry":
            if outcome.delay_ms is None:
                delay = self._delay(one)
            limit = self._retry_for(one)
            is_dead = one.attempt >= (one.new.max_attempts or self._policy.max_attempts)
            if not is_dead and limit and self._now + delay > one.first_due + limit:
                is_dead, reason = True, "retry_for"
        if is_dead:
            self.dead.append(Dead(message, reason, outcome.error))
            return Settlement.DEAD
        again = dataclasses.replace(one, due=self._now + delay, is_retry=True, error=outcome.error or one.error)
        again.progress = message.progress
        ends = {"snooze": Settlement.SNOOZED, "release": Settlement.RELEASED}
        settlement = ends.get(outcome.action, Settlement.RETRIED)
        again.attempt += settlement is Settlement.RETRIED
        again.snoozes += settlement is Settlement.SNOOZED
        self._queues[queue].append(again)
        return settlement

    def _delay(self, one: _Scheduled) -> int:
        own = [limits.millis("retry_delays", delay) for delay in one.new.retry_delays]
        delays = own or self._policy.retry_delays_ms
        if delays:
            return delays[min(one.attempt, len(delays)) - 1]
        return int(min(self._policy.retry_min_ms * 2 ** min(one.attempt - 1, 60), self._policy.retry_max_ms))

    def _retry_for(self, one: _Scheduled) -> int:
        if one.new.retry_for is not None:
            return limits.millis("retry_for", one.new.retry_for)
        return self._policy.retry_for_ms


class AsyncMemory:
    """A Memory with the methods of AsyncClient."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def schedule(self, queue: str, payload: Union[bytes, str] = b"", **options: Unpack[Options]) -> Receipt:
        """See Client.schedule."""
        return self._memory.schedule(queue, payload, **options)

    async def send(self, queue: str, message: NewMessage) -> Receipt:
        """See Client.send."""
        return self._memory.send(queue, message)

    async def send_batch(self, queue: str, messages: Iterable[NewMessage]) -> list[Result]:
        """See Client.send_batch."""
        return self._memory.send_batch(queue, messages)

    async def cancel(self, queue: str, id: str) -> None:
        """See Client.cancel."""
        self._memory.cancel(queue, id)

    async def reschedule(self, queue: str, id: str, *, delay: Duration = 0, at: Optional[datetime] = None) -> datetime:
        """See Client.reschedule."""
        return self._memory.reschedule(queue, id, delay=delay, at=at)


def _may_replace(message: NewMessage, present_due: int, due: int) -> bool:
    if message.replace == "later":
        return due > present_due
    if message.replace == "earlier":
        return due < present_due
    return message.replace == "replace"


