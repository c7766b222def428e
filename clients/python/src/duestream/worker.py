"""The worker: reads messages of one or several queues, and calls handlers."""
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Optional, TypeVar

from . import limits
from .client import DEFAULT_PREFIX, DEFAULT_URL, AsyncDriver
from .delivery import (Handler, Message, Outcome, Saver, Settlement, outcome_of, parse_entry,
                       timeout_outcome)
from .errors import (AbandonedError, CancelledError, DuestreamError, HandlerTimeoutError, InvalidError, LostError,
                     NoGroupError, StoppingError, UnavailableError, UnreachableError)
from .kind import Mux
from .limits import Duration
from .message import new_id
from .policy import Policy
from .registry import Counts
from .threads import DaemonThreads
from .wire import CALL_TIMEOUT, SEPARATOR, Command, Partition, Steps, ask, evaluate, evaluate_each, text_of

T = TypeVar("T")

DEFAULT_CONCURRENCY = 16
_BLOCK_MS = 2000  # the longest wait of one read
_LEARN_WITHIN = 4.5  # seconds within which a handler learns that its message was cancelled
_REFRESH = 5.0  # seconds between two looks at policies and registry
_PAUSE_LOOK = 1.0  # seconds between two looks whether workers are paused
_EXTEND_BATCH, _ACK_BATCH, _FAIL_BATCH, _FETCH_BATCH = 200, 200, 100, 20
_LATE_READ = 0.1  # seconds within which a read that was cut off may still reach the server
_RECLAIMER = "duestream-reclaim"

# Answers of the script extend.
_NOT_HELD, _HELD_CANCELLED = 0, 2

# Answers of the script retry.
_SETTLEMENTS = {-1: Settlement.STUCK, 0: Settlement.LOST, 1: Settlement.RETRIED, 2: Settlement.DEAD,
                3: Settlement.RELEASED, 4: Settlement.SKIPPED, 5: Settlement.SNOOZED, 6: Settlement.CANCELLED}

_TOLD_TO_STOP = (StoppingError, UnreachableError)


@dataclasses.dataclass(eq=False)
class _Queue:
    name: str
    counts: Counts
    policy: Policy = Policy()


@dataclasses.dataclass(eq=False)
class _Part:
    """One partition of a queue."""

    queue: _Queue
    place: Partition
    start: Optional[str] = None  # last entry that the group read before this worker; None: the worker has not joined
    held: dict[str, "_Delivery"] = dataclasses.field(default_factory=dict)  # by entry

    @property
    def stream(self) -> str:
        return self.place.key("stream")


@dataclasses.dataclass(eq=False)
class _Delivery:
    """An entry that this worker holds, from its read until its settlement."""

    part: _Part
    message: Message
    raw_id: bytes
    extended: float  # a time before the server last restarted its visibility timeout
    foreign: bool = False
    handler: Optional[Handler] = None
    task: Optional["asyncio.Task[None]"] = None  # None: its handler has not begun
    timer: Optional[asyncio.TimerHandle] = None
    timeout: float = 0.0
    ended: bool = False  # the handler returned, or was abandoned
    outcome: Optional[Outcome] = None  # None: acknowledge it


class Worker:
    """Delivers the messages of queues to the handlers of one group, at least once.

    Give either handler and queues, or a mux, whose kinds name the queues. run blocks until stop, SIGTERM or SIGINT.
    serve is a coroutine that works until stop, and handles no signals. Handlers are functions, which run in threads, or
    coroutine functions.

    - When a handler returns, its message is acknowledged. When it raises an error, the message is delivered again after
      the delay of the policy, or becomes a dead letter when its attempts are used up. RetryAfter, DeadLetter, Snooze
      and Release choose another outcome.
    - concurrency: how many handlers run at once, for all queues together. Give at least one for each partition.
    - shutdown_timeout: how long handlers may go on after a stop. Then they are told to stop: Message.cause is set, and
      a coroutine is cancelled. After a further cancel_grace, serve raises AbandonedError if a handler has not returned.
    - handler_timeout: the time limit of a handler if neither its message nor the policy has one; 0: no limit. A handler
      that goes on for a further abandon_after is abandoned: its attempt has failed, and its place is free.
    - settled is called with each message and the settlement of its delivery. It must not block.
    """

    def __init__(self, url: str = DEFAULT_URL, *, group: str, queues: Sequence[str] = (),
                 handler: Optional[Handler] = None, mux: Optional[Mux] = None, prefix: str = DEFAULT_PREFIX,
                 consumer: Optional[str] = None, concurrency: int = DEFAULT_CONCURRENCY,
                 shutdown_timeout: Duration = 20, cancel_grace: Duration = 2, handler_timeout: Duration = 0,
                 abandon_after: Duration = 10, settled: Optional[Callable[[Message, Settlement], None]] = None,
                 logger: Optional[logging.Logger] = None) -> None:
        self._url, self._group, self._prefix = url, group, prefix
        self.consumer = consumer or f"{socket.gethostname()[:64]}-{os.getpid()}-{new_id()}".lower()
        limits.check_prefix(prefix)
        limits.check_text("group", group)
        limits.check_text("consumer", self.consumer)
        if self.consumer == _RECLAIMER:
            raise InvalidError("consumer", self.consumer, "is the reclaimer's own name")
        limits.check_between("concurrency", concurrency, 1, 10_000)
        if (handler is None) == (mux is None):
            raise InvalidError("handler", handler, "must be given, or a mux, and not both")
        self._handler, self._mux = handler, mux
        self._queues = [_Queue(name, Counts(prefix, name)) for name in _queue_names(queues, mux)]
        self._concurrency = concurrency
        self._shutdown = limits.millis("shutdown_timeout", shutdown_timeout) / 1000
        self._grace = limits.millis("cancel_grace", cancel_grace) / 1000
        self._handler_timeout = limits.millis("handler_timeout", handler_timeout) / 1000
        self._abandon_after = limits.millis("abandon_after", abandon_after) / 1000
        self._settled_call, self._log = settled, logger or logging.getLogger("duestream.worker")
        self._actor = f"worker {self.consumer}"

        self.stats: Counter[Settlement] = Counter()
        """The number of deliveries with each settlement."""

        self._parts: dict[tuple[str, int], _Part] = {}
        self._waiting: deque[_Delivery] = deque()  # read, and no place is free yet
        self._running = 0  # places in use
        self._step = concurrency  # entries of the next read
        self._looked = 0.0  # when the worker last asked whether it is paused
        self._cut_off = False  # a stop interrupted a read, and the server may still execute it
        self._in_doubt = False  # a read failed, and the server may execute it after the worker has rejoined
        self._unsettled: list[_Delivery] = []
        self._threads = DaemonThreads("duestream handler")
        self._was_run, self._stop_asked = False, threading.Event()
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    # ---- begin and end -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Works until stop, and in the main thread also until SIGTERM or SIGINT. Then it ends as serve does."""
        asyncio.run(self._serve_until_signal())

    def stop(self) -> None:
        """Ends the worker: it reads nothing more, and finishes messages that it has begun. Any thread may call it."""
        self._stop_asked.set()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the worker has ended
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def _serve_until_signal(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for one in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(one, self.stop)
        await self.serve()

    async def serve(self) -> None:
        """Reads, handles and settles until stop. Then it lets handlers finish, and releases the other messages.

        An outage of Redis does not end it. It raises AbandonedError if handlers did not return in time: their entries
        come back after the visibility timeout. If serve is cancelled, all its messages come back in this way.
        """
        if self._was_run:
            raise RuntimeError("serve may be called once")
        self._was_run = True
        self._stopping, self._hard = asyncio.Event(), asyncio.Event()
        self._freed, self._added, self._changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()
        if self._stop_asked.is_set():
            self._stopping.set()
        self._driver = AsyncDriver(self._url, _BLOCK_MS / 1000 + CALL_TIMEOUT)
        main = asyncio.create_task(self._read_and_end())
        loops = [asyncio.create_task(loop()) for loop in (self._extend_loop, self._settle_loop, self._watch_loop)]
        try:
            # The loops run for ever. One that ends has a fault, and without it the worker must not go on.
            done, _ = await asyncio.wait([main, *loops], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [main, *loops, *(d.task for d in self._all_held() if d.task)]:
                task.cancel()
            for task in [main, *loops]:
                await _cut_off(task)
            self._threads.close()
            await self._driver.close()

    async def _read_and_end(self) -> None:
        await self._read_loop()
        await self._end()

    async def _end(self) -> None:
        """Waits for handlers, settles their messages, and leaves the group."""
        for delivery in list(self._waiting):
            self._settle(delivery, Outcome("release"))
        self._waiting.clear()
        if not await self._nothing_held(self._shutdown):
            for delivery in self._all_held():
                self._tell(delivery, StoppingError("the worker stops"))
            await self._nothing_held(self._grace)
        left = [delivery for delivery in self._all_held() if not delivery.ended]
        for delivery in left:
            self._say(logging.WARNING, "handler did not return: its entry stays pending", delivery)
        self._hard.set()
        if self._cut_off or self._in_doubt:
            await asyncio.sleep(_LATE_READ)
        for part in self._parts.values():
            if part.start is not None and not part.held:
                await self._leave(part)
        if left:
            raise AbandonedError(f"{len(left)} handlers did not return: their entries stay pending")

    async def _nothing_held(self, within: float) -> bool:
        end = time.monotonic() + within
        while self._all_held():
            self._freed.clear()
            if not await _wait(self._freed, end - time.monotonic()) and time.monotonic() >= end:
                return False
        return True

    async def _leave(self, part: _Part) -> None:
        """Releases the entries that this consumer was given in lost replies, and removes the consumer."""
        async def leave() -> None:
            while unseen := await self._ask(self._unseen(part)):
                items = [[entry, "", "release", "", "", ""] for entry in unseen]
                if -1 in await self._ask(self._retry(part, items)):
                    return  # the stream of dead letters refuses one, which would be found again and again
            await self._ask(evaluate("drop_consumer", [part.stream], self._group, self.consumer))

        try:
            await _within(CALL_TIMEOUT, leave())
        except DuestreamError as error:
            self._log.warning("could not take leave of %s: %s", part.stream, error)

    # ---- read ----------------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        pause, joined = 0.1, False
        while not self._stopping.is_set():
            try:
                if not joined:
                    await self._rejoin()
                    joined = True
                await self._read_once()
                pause = 0.1
                if self._in_doubt:
                    joined = self._in_doubt = False
            except NoGroupError:
                await self._insist(self._recreate_groups)
            except DuestreamError as error:
                self._log.warning("the worker is failing: %s", error)
                joined, self._in_doubt = False, True
                await _wait(self._stopping, pause)
                pause = min(2 * pause, 2)

    async def _read_once(self) -> None:
        for part in list(self._parts.values()):
            if part.start is None:  # a partition was added
                await self._join(part)
        free = self._concurrency - self._running - len(self._waiting)
        if free <= 0:
            self._freed.clear()
            await _first(self._freed, self._stopping)
            return
        paused = await self._paused()
        parts = [part for part in self._parts.values() if part.queue not in paused]
        if not parts:
            await _wait(self._stopping, _PAUSE_LOOK)
            return
        # COUNT holds for each stream. With few free places some entries wait for one, and are extended meanwhile.
        count = max(1, min(free, self._step) // len(parts))
        began = time.monotonic()
        command: Command = ("XREADGROUP", "GROUP", self._group, self.consumer, "COUNT", count, "BLOCK", _BLOCK_MS,
                            "STREAMS", *(part.stream for part in parts), *(">" for _ in parts))
        try:
            reply = await self._read(command)
        except DuestreamError:
            if time.monotonic() - began > CALL_TIMEOUT:  # the entries may be large, and the connection slow
                self._step = max(1, self._step // 2)
            raise
        self._step = min(2 * self._step, self._concurrency)
        by_stream = {part.stream: part for part in parts}
        for stream, entries in reply or []:
            self._take(by_stream[text_of(stream)], entries)

    async def _read(self, command: Command) -> Any:
        """Sends a blocking read, and returns its reply. A stop interrupts it, and _leave releases its entries."""
        reading = asyncio.create_task(self._ask(ask(command)))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                self._cut_off = True
                return None
            return (await reading)[0]
        finally:
            stopping.cancel()
            await _cut_off(reading)

    def _take(self, part: _Part, entries: Iterable[Sequence[Any]]) -> None:
        """Begins the work on entries that this consumer was given."""
        now = time.monotonic()
        for entry, values in entries:
            if values is None:
                continue  # somebody deleted it meanwhile
            message = parse_entry(entry, values, part.queue.name, part.place.number, self._group, self.consumer)
            fields = dict(zip(values[::2], values[1::2]))
            delivery = _Delivery(part, message, fields.get(b"id", entry), now,
                                 fields.get(b"for", b"") not in (b"", self._group.encode()))
            message._saver = Saver(functools.partial(self._save_from_thread, delivery),
                                   functools.partial(self._save_progress, delivery))
            part.held[message.entry_id] = delivery
            if delivery.foreign:
                self._settle(delivery, None)
            elif self._stopping.is_set():
                self._settle(delivery, Outcome("release"))
            else:
                self._waiting.append(delivery)
        self._start_waiting()

    async def _paused(self) -> set[_Queue]:
        """Returns the queues whose workers are paused. It looks at most once a second."""
        if time.monotonic() - self._looked >= _PAUSE_LOOK:
            self._looked = time.monotonic()
            policies = [Partition(self._prefix, queue.name).key("policy") for queue in self._queues]
            replies = await self._ask(ask(*(("HGET", policy, "held_workers") for policy in policies)))
            for queue, held in zip(self._queues, replies):
                queue.policy = dataclasses.replace(queue.policy, held_workers=text_of(held) == "1")
        return {queue for queue in self._queues if queue.policy.held_workers}

    async def _rejoin(self) -> None:
        """Joins at the start. After a broken connection it takes up the entries that the server has given away since.

        Entries that a consumer of this name was given before this worker started are left alone: one of them may have
        crashed that consumer.
        """
        await self._refresh()
        for part in list(self._parts.values()):
            if part.start is None:
                await self._join(part)
            await self._extend(part)
            while unseen := await self._ask(self._unseen(part)):
                await self._take_up(part, unseen)

    async def _join(self, part: _Part) -> None:
        await self._ask(evaluate("ensure_group", [part.stream], self._group))
        (groups,) = await self._ask(ask(("XINFO", "GROUPS", part.stream)))
        for group in groups:
            known = dict(zip(group[::2], group[1::2]))
            if known[b"name"] == self._group.encode():
                part.start = text_of(known[b"last-delivered-id"])

    async def _recreate_groups(self) -> None:
        for part in self._parts.values():
            if await self._ask(evaluate("ensure_group", [part.stream], self._group)):
                self._log.warning("consumer group was lost: created again at 0: %s", part.stream)
                part.start = "0-0"
            part.queue.counts.stale()  # the registration may be lost as well

    def _unseen(self, part: _Part) -> Steps[list[str]]:
        """Returns entries that are pending for this worker since it started, and that it does not know."""
        unseen: list[str] = []
        after = part.start
        while len(unseen) < _FETCH_BATCH:
            (page,) = yield from ask(("XPENDING", part.stream, self._group, f"({after}", "+", 500, self.consumer))
            unseen += [entry for row in page if (entry := text_of(row[0])) not in part.held]
            if len(page) < 500:
                break
            after = text_of(page[-1][0])
        return unseen[:_FETCH_BATCH]

    async def _take_up(self, part: _Part, entries: list[str]) -> None:
        """Begins the work on entries of a lost reply. It extends them first, so that no bridge takes them back."""
        answers = await self._ask(self._extend_steps(part, [[entry, ""] for entry in entries]))
        cancelled = [[entry, "", "cancel", "", "", ""] for entry, n in zip(entries, answers) if n == _HELD_CANCELLED]
        if cancelled:
            await self._ask(self._retry(part, cancelled))
        for entry, answer in zip(entries, answers):
            if answer not in (_NOT_HELD, _HELD_CANCELLED):
                (found,) = await self._ask(ask(("XRANGE", part.stream, entry, entry)))
                self._take(part, found)

    # ---- handle --------------------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        while self._waiting and self._running < self._concurrency:
            delivery = self._waiting.popleft()
            self._running += 1
            delivery.handler = self._handler if self._mux is None else self._mux.handler_of(delivery.message)
            delivery.task = asyncio.create_task(self._handle(delivery))

    async def _handle(self, delivery: _Delivery) -> None:
        message, handler = delivery.message, delivery.handler
        assert handler is not None
        self._set_timeout(delivery)
        error: Optional[BaseException] = None
        try:
            if _is_coroutine(handler):
                await handler(message)
            else:
                # A thread cannot be ended. So the task waits for it, also when the handler is told to stop.
                await asyncio.shield(asyncio.wrap_future(self._threads.submit(handler, message)))
        except asyncio.CancelledError:
            if message.cause is None:  # serve itself was cancelled
                raise
            error = message.cause
        except BaseException as raised:  # also SystemExit: one message must not end the worker
            error = raised
        if delivery.timer is not None:
            delivery.timer.cancel()
        if delivery.ended:  # it was abandoned before
            return
        self._finish(delivery, error)

    def _finish(self, delivery: _Delivery, error: Optional[BaseException]) -> None:
        """Decides the outcome of a message whose handler returned, raised an error, or was abandoned."""
        delivery.ended = True
        cause = delivery.message.cause
        if isinstance(cause, LostError):
            self._done(delivery, Settlement.LOST)
        elif isinstance(cause, CancelledError):
            self._settle(delivery, Outcome("cancel"))
        elif error is None:
            self._settle(delivery, None)
        elif isinstance(cause, HandlerTimeoutError):
            self._say(logging.WARNING, f"handler timed out after {delivery.timeout:g} s", delivery)
            self._settle(delivery, timeout_outcome(error, delivery.timeout))
        elif isinstance(cause, _TOLD_TO_STOP):  # it was interrupted, and did not fail
            self._settle(delivery, Outcome("release"))
        else:
            outcome = outcome_of(error)
            if outcome.action in ("retry", "dead"):
                self._say(logging.INFO, f"handler failed: {error!r}", delivery)
            self._settle(delivery, outcome)

    def _tell(self, delivery: _Delivery, cause: DuestreamError) -> None:
        """Tells a handler that it should stop. A coroutine is cancelled. A function reads Message.cause."""
        first = delivery.message.cause is None
        delivery.message._tell(cause)
        if delivery.task is None:
            if delivery in self._waiting:
                self._waiting.remove(delivery)
                self._finish(delivery, cause)
        elif first and not delivery.ended and _is_coroutine(delivery.handler):
            delivery.task.cancel()

    def _set_timeout(self, delivery: _Delivery) -> None:
        own = delivery.message.extra.get("handler_timeout_ms", "")
        ms = int(own) if own.isdecimal() and 0 < int(own) <= limits.TEN_YEARS_MS else 0
        delivery.timeout = (ms or delivery.part.queue.policy.handler_timeout_ms) / 1000 or self._handler_timeout
        if delivery.timeout:
            delivery.timer = asyncio.get_running_loop().call_later(delivery.timeout, self._time_out, delivery)

    def _time_out(self, delivery: _Delivery) -> None:
        self._tell(delivery, HandlerTimeoutError("the handler's time is over"))
        delivery.timer = asyncio.get_running_loop().call_later(self._abandon_after, self._abandon, delivery)

    def _abandon(self, delivery: _Delivery) -> None:
        """Settles a delivery whose handler does not stop. The handler goes on, without effect on the message."""
        if delivery.ended or isinstance(delivery.message.cause, StoppingError):
            return
        self._say(logging.ERROR, "handler abandoned: it ignores that its time is over", delivery)
        self._finish(delivery, RuntimeError(f"the handler went on for another {self._abandon_after:g} s"))

    # ---- progress ------------------------------------------------------------------------------------------------

    async def _save_progress(self, delivery: _Delivery, cursor: bytes) -> None:
        """Stores the progress of a delivery. It is noted first, because a call without a reply may have stored it."""
        message, part = delivery.message, delivery.part
        before, message._stored = message._stored, cursor
        try:
            answer = await self._ask(evaluate("save_progress", part.place.keys("stream progress"), self._group,
                                              self.consumer, message.entry_id, delivery.raw_id, cursor))
        except DuestreamError as error:
            if not (isinstance(error, UnavailableError) and error.sent):
                message._stored = before
            raise
        if answer == _HELD_CANCELLED:
            cancelled = CancelledError("the message was cancelled")
            self._tell(delivery, cancelled)
            raise cancelled
        if answer == _NOT_HELD:
            lost = LostError("the entry was reclaimed, or its body deleted")
            if self._holds(delivery):  # a delivery that was settled meanwhile is not lost
                self._tell(delivery, lost)
            raise lost

    def _save_from_thread(self, delivery: _Delivery, cursor: bytes) -> None:
        assert self._loop is not None
        if threading.current_thread() is self._thread:
            raise RuntimeError("save_progress would block the event loop: a coroutine calls save_progress_async")
        asyncio.run_coroutine_threadsafe(self._save_progress(delivery, cursor), self._loop).result()

    async def _forget_progress(self, part: _Part, deliveries: Sequence[_Delivery]) -> None:
        """Deletes the progress of settled deliveries. If it fails, a bridge deletes it."""
        fields = [f"{d.message.entry_id}{SEPARATOR}{self._group}" for d in deliveries if d.message._stored is not None]
        if fields:
            with contextlib.suppress(DuestreamError):
                await self._ask(ask(("HDEL", part.place.key("progress"), *fields)))

    # ---- settle --------------------------------------------------------------------------------------------------

    def _settle(self, delivery: _Delivery, outcome: Optional[Outcome]) -> None:
        delivery.outcome = outcome
        self._unsettled.append(delivery)
        self._added.set()

    async def _settle_loop(self) -> None:
        """Takes entries out of the pending list. Messages that end while a call is on its way share the next one."""
        while True:
            await self._added.wait()
            self._added.clear()
            batch, self._unsettled = self._unsettled, []
            groups: dict[tuple[_Part, bool], list[_Delivery]] = {}
            for delivery in batch:
                groups.setdefault((delivery.part, delivery.outcome is None), []).append(delivery)
            for (part, done), deliveries in groups.items():
                size = _ACK_BATCH if done else _FAIL_BATCH
                for start in range(0, len(deliveries), size):
                    some = deliveries[start:start + size]
                    settlements = await self._settle_surely(part, some, done)
                    if settlements:
                        await self._forget_progress(part, some)
                    for delivery, settlement in zip(some, settlements or [Settlement.UNKNOWN] * len(some)):
                        self._done(delivery, settlement)

    async def _settle_surely(self, part: _Part, deliveries: list[_Delivery], done: bool) -> Optional[list[Settlement]]:
        """Settles deliveries, and repeats that until Redis answers. None: the worker has ended."""
        failed = False

        async def settle() -> list[Settlement]:
            nonlocal failed
            try:
                return await self._settle_some(part, deliveries, done)
            except DuestreamError:
                failed = True
                raise

        settlements = await self._insist(settle)
        if settlements and failed:  # the first try may have settled them, and only its reply was lost
            return [Settlement.UNKNOWN if one is Settlement.LOST else one for one in settlements]
        return settlements

    async def _settle_some(self, part: _Part, deliveries: list[_Delivery], done: bool) -> list[Settlement]:
        if not done:
            failures = [[d.message.entry_id, d.raw_id, *d.outcome.arguments(d.message._stored)]
                        for d in deliveries if d.outcome]
            answers = await self._ask(self._retry(part, failures))
            return [_SETTLEMENTS.get(n, Settlement.UNKNOWN) for n in answers]
        plain = [d for d in deliveries if not _keeps_result(d)]
        keys = part.place.keys("stream due wake turns policy history")
        items: list[list[Any]] = [[d.message.entry_id, _named(d)] for d in plain]
        won = dict(zip(map(id, plain), await self._ask(evaluate_each("ack", keys, [self._group], items, self._actor))
                       if plain else []))
        for d in deliveries:
            if id(d) not in won:
                won[id(d)] = await self._ask(self._ack_result(d))
        return [Settlement.LOST if not won[id(d)] else Settlement.SKIPPED if d.foreign else Settlement.ACKNOWLEDGED
                for d in deliveries]

    def _ack_result(self, delivery: _Delivery) -> Steps[Any]:
        message, place = delivery.message, delivery.part.place
        keys = place.keys("stream due wake turns policy history")
        result = place.key(f"result:{limits.percent(self._group)}:{message.id}")
        return evaluate("ack_result", [*keys, result], self._group, message.entry_id, delivery.raw_id,
                        message.extra.get("key", ""), message.attempt, message.extra["result_ms"],
                        message._result or b"", self._actor)

    def _retry(self, part: _Part, items: list[list[Any]]) -> Steps[list[int]]:
        policy = part.queue.policy
        return evaluate_each("retry", part.place.keys("stream due payload meta dead wake turns policy history"),
                             [self._group, policy.attempts(), policy.delays()], items, self._actor)

    def _done(self, delivery: _Delivery, settlement: Settlement) -> None:
        """Forgets a delivery, and gives its place to the next one."""
        delivery.part.held.pop(delivery.message.entry_id, None)
        if delivery.task is not None:
            self._running -= 1
        self.stats[settlement] += 1
        if self._settled_call is not None:
            try:
                self._settled_call(delivery.message, settlement)
            except Exception:
                self._log.exception("settled raised an error")
        self._start_waiting()
        self._freed.set()

    # ---- extend, and look at settings ----------------------------------------------------------------------------

    async def _extend_loop(self) -> None:
        while True:
            began, failed = time.monotonic(), False
            for part in list(self._parts.values()):
                try:
                    await self._extend(part)
                except DuestreamError as error:
                    failed = True
                    self._log.warning("extend %s: %s", part.stream, error)
            shortest = min((queue.policy.visibility_ms for queue in self._queues), default=30_000) / 1000
            pause = min(shortest / 3, _LEARN_WITHIN) - (time.monotonic() - began)
            if failed:
                pause = max(0.05, shortest / 10)
            self._changed.clear()
            await _wait(self._changed, max(0.01, pause))

    async def _extend(self, part: _Part) -> None:
        """Restarts the visibility timeout of held entries. It tells handlers of lost and cancelled messages to stop."""
        visibility = part.queue.policy.visibility_ms / 1000
        held = list(part.held.values())
        for start in range(0, len(held), _EXTEND_BATCH):
            batch, before = held[start:start + _EXTEND_BATCH], time.monotonic()
            try:
                items = [[d.message.entry_id, d.raw_id] for d in batch]
                answers = await _within(max(0.1, min(CALL_TIMEOUT, visibility / 3)),
                                        self._ask(self._extend_steps(part, items)))
            except DuestreamError:
                for delivery in batch:
                    if time.monotonic() - delivery.extended > visibility and self._holds(delivery):
                        self._tell(delivery, UnreachableError("not extended for a visibility timeout"))
                raise
            for delivery, answer in zip(batch, answers):
                if answer != _NOT_HELD:
                    delivery.extended = before
                if not self._holds(delivery) or delivery.ended:
                    continue  # it was settled meanwhile
                if answer == _NOT_HELD:
                    self._tell(delivery, LostError("the entry was reclaimed, or its body deleted"))
                elif answer == _HELD_CANCELLED:
                    self._tell(delivery, CancelledError("the message was cancelled"))

    def _extend_steps(self, part: _Part, items: list[list[Any]]) -> Steps[list[int]]:
        return evaluate_each("extend", part.place.keys("stream dead policy history"), [self._group, self.consumer],
                             items, self._actor)

    async def _watch_loop(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH / 2)
            try:
                await self._refresh()
            except DuestreamError:
                pass  # the reads report an outage

    async def _refresh(self) -> None:
        """Reads the registry and the policies. New partitions are joined before the next read."""
        for queue in self._queues:
            count = await self._ask(queue.counts.refresh(register=True))
            for number in range(count):
                place = Partition(self._prefix, queue.name, number)
                self._parts.setdefault((queue.name, number), _Part(queue, place))
            own, defaults = await self._ask(ask(("HGETALL", Partition(self._prefix, queue.name).key("policy")),
                                                ("HGETALL", f"{self._prefix}:defaults")))
            policy = Policy.parse(_texts(own), _texts(defaults), self._group)
            if policy != queue.policy:
                queue.policy = policy
                self._changed.set()

    # ---- helpers -------------------------------------------------------------------------------------------------

    async def _ask(self, steps: Steps[T]) -> T:
        return await self._driver.run(steps)

    async def _insist(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Optional[T]:
        """Repeats a call until Redis answers. The call must be harmless to repeat. None: the worker has ended."""
        pause = 0.1
        while not self._hard.is_set():
            try:
                return await call()
            except DuestreamError as error:
                self._log.warning("the worker is failing: %s", error)
            await _wait(self._hard, pause)
            pause = min(2 * pause, 2)
        return None

    def _holds(self, delivery: _Delivery) -> bool:
        return delivery.part.held.get(delivery.message.entry_id) is delivery

    def _all_held(self) -> list[_Delivery]:
        return [delivery for part in self._parts.values() for delivery in part.held.values()]

    def _say(self, level: int, text: str, delivery: _Delivery) -> None:
        message = delivery.message
        self._log.log(level, "%s: queue %s, id %s, entry %s, attempt %d", text, message.queue, message.id,
                      message.entry_id, message.attempt)


def _queue_names(queues: Sequence[str], mux: Optional[Mux]) -> list[str]:
    if isinstance(queues, str):
        raise InvalidError("queues", queues, "must be a list of names")
    of_mux = mux.queues() if mux is not None else []
    names = list(queues) or of_mux
    if not 1 <= len(names) <= 100:
        raise InvalidError("queues", len(names), "must be between 1 and 100")
    for name in names:
        limits.check_queue(name)
        if names.count(name) > 1:
            raise InvalidError("queues", name, "must be named once")
        if mux is not None and name not in of_mux:
            raise InvalidError("queues", name, "has no kind in the mux")
    for name in of_mux:
        if name not in names:
            raise InvalidError("queues", name, "has a kind in the mux, and must be among the queues")
    return names


def _is_coroutine(handler: Optional[Handler]) -> bool:
    """Reports whether a handler is a coroutine function, or an object whose call is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))


def _keeps_result(delivery: _Delivery) -> bool:
    age = delivery.message.extra.get("result_ms", "")
    return not delivery.foreign and age.isdecimal() and 1000 <= int(age) <= 7 * 24 * 3600 * 1000


def _named(delivery: _Delivery) -> bytes:
    """Returns the argument id of the script ack, with the ordering key if there is one."""
    key = delivery.message.extra.get("key", "")
    if SEPARATOR in key:
        key = ""
    if not key and not delivery.raw_id.startswith(SEPARATOR.encode()):
        return delivery.raw_id
    return f"{SEPARATOR}{key}{SEPARATOR}".encode() + delivery.raw_id


def _texts(flat: Sequence[bytes]) -> dict[str, str]:
    return {text_of(name): text_of(value) for name, value in zip(flat[::2], flat[1::2])}


async def _within(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a call, or raises DuestreamError if it takes longer.

    The call gets a task of its own. asyncio.timeout would not do: redis-py before version 5 cancels the task at
    timeouts of its own, and never calls Task.uncancel, so asyncio.timeout would take its own cancellation for one from
    outside, and the worker would end.
    """
    task = asyncio.create_task(call)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise DuestreamError("no reply in time")
        return task.result()
    finally:
        await _cut_off(task)


async def _cut_off(task: "asyncio.Task[Any]") -> None:
    """Cancels a task, and waits for its end."""
    while not task.done():  # redis-py swallows a cancellation now and then
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
    if not task.cancelled():
        task.exception()  # without this call asyncio logs an error that nobody has seen


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Waits for an event, but no longer than some seconds. Returns whether it is set."""
    try:
        await asyncio.wait_for(event.wait(), max(0, seconds))
    except (TimeoutError, asyncio.TimeoutError):
        pass
    return event.is_set()


async def _first(*events: asyncio.Event) -> None:
    """Waits until one of several events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for one in waits:
        one.cancel()
