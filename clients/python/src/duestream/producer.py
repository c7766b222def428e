"""The calls of a client, as steps: schedule, cancel and reschedule messages, and keep recurrences."""
from __future__ import annotations

import itertools
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Optional, TypeVar, Union

from . import limits
from .errors import (ClosedError, DuestreamError, DuplicateError, InvalidError, NoRecurrenceError, NoResultError,
                     NotScheduledError, UnavailableError, UncertainError, UnsupportedError)
from .message import MessageResult, NewMessage, Receipt, Result, new_id
from .recurrence import Recurrence
from .registry import Counts, Levels
from .wire import Partition, Sleep, Steps, ask, evaluate, partition_of, repeat, server_time

T = TypeVar("T")

_KEY_LEVEL = _RECURRENCE_LEVEL = 2  # the level of bridges that serve them
_CALL_MESSAGES = 256  # most messages of one script call
_CALL_BYTES = 512 << 10  # most bytes of one script call
_ONE_BYTES = 4096  # most bytes of payload and meta for which enqueue_one costs the server less than enqueue
_ONE_PAUSE = 10  # seconds for which enqueue_one is not tried after it did not take a message
_LOOK_IDS = 500  # most IDs of one look for duplicates
_PARKED = 4 * 10**15  # added to the due time of a message that waits for its key

# Verdicts of the script enqueue.
_MALFORMED, _DUPLICATE, _SCHEDULED, _READY, _REPLACED = -1, 0, 1, 2, 4


class Producer:
    """The protocol part of Client and AsyncClient. Each method returns steps for a driver."""

    def __init__(self, prefix: str, retry_timeout: limits.Duration, name: Optional[str],
                 allow_old_bridges: bool) -> None:
        limits.check_prefix(prefix)
        self._prefix = prefix
        self._retry = limits.millis("retry_timeout", retry_timeout) / 1000
        self._actor = name or f"client {socket.gethostname()[:64]}-{os.getpid()}"
        limits.check_text("name", self._actor)
        self._counts: dict[str, Counts] = {}
        self._levels = Levels(prefix, allow_old_bridges)
        self._closed = False
        # A token names a call of enqueue, so that a repeated call changes nothing. The next call for the partition
        # makes the server forget it.
        # itertools.count may be shared by threads; a generator may not.
        self._token_name, self._tokens = uuid.uuid4().hex, itertools.count()
        self._done: dict[Partition, str] = {}
        self._token_ms = max(60_000, round(2 * self._retry * 1000) + 10_000)
        self._one_from: dict[Partition, float] = {}  # time.monotonic() from which enqueue_one may be used

    # ---- schedule ------------------------------------------------------------------------------------------------

    def send(self, queue: str, message: NewMessage) -> Steps[Receipt]:
        (result,) = yield from self.send_batch(queue, [message])
        if result.error is not None:
            raise result.error
        assert result.receipt is not None
        return result.receipt

    def send_batch(self, queue: str, messages: Iterable[NewMessage]) -> Steps[list[Result]]:
        batch, until = list(messages), self._begin(queue)
        if len(batch) > limits.MAX_BATCH:
            raise InvalidError("batch", len(batch), f"must be at most {limits.MAX_BATCH} messages")
        ids = [m.id if m.id is not None else new_id() for m in batch]
        results: list[Optional[Result]] = [None] * len(batch)

        def refuse(at: int, error: DuestreamError) -> None:
            results[at] = Result(ids[at], error=error)

        for at, message in enumerate(batch):
            try:
                message.check()
            except InvalidError as invalid:
                refuse(at, invalid)
        open_at = [at for at, result in enumerate(results) if result is None]
        if not open_at:
            return [result for result in results if result is not None]
        count = yield from repeat(lambda: self._counts_of(queue).refresh(register=True), until, harmless=True)
        now = 0
        if any(m.expires_in is not None for m in batch):
            (clock,) = yield from repeat(lambda: ask(("TIME",)), until, harmless=True)
            now = server_time(clock)
        if any(m.key is not None for m in batch):
            yield from repeat(lambda: self._levels.allow(_KEY_LEVEL, "messages with a key"), until, harmless=True)

        places = {at: partition_of(batch[at].key or ids[at], count) for at in open_at}
        if count > 1:
            refusals = yield from self._elsewhere(queue, count, batch, places, until)
            for at, refusal in refusals.items():
                refuse(at, refusal)
        for number in sorted(set(places.values())):
            here = [at for at in open_at if places[at] == number and results[at] is None]
            items = [[ids[at], batch[at].when(ids[at]), batch[at].body(), batch[at].meta(now), batch[at].window()]
                     for at in here]
            partition = Partition(self._prefix, queue, number)
            for some in _chunks(items):
                indexes, here = here[:len(some)], here[len(some):]
                try:
                    verdicts = yield from self._enqueue(partition, some, until)
                except DuestreamError as error:
                    for at in indexes:
                        refuse(at, error)
                    continue
                for at, verdict, due in zip(indexes, verdicts[::2], verdicts[1::2]):
                    results[at] = _result(ids[at], verdict, due)
        return [result for result in results if result is not None]

    def _enqueue(self, partition: Partition, items: Sequence[Sequence[Any]], until: float) -> Steps[list[int]]:
        if self._may_use_one(partition, items):
            taken = yield from self._enqueue_one(partition, items[0], until)
            if taken is not None:
                return taken
            self._one_from[partition] = time.monotonic() + _ONE_PAUSE
        token, done = f"{self._token_name}-{next(self._tokens)}", self._done.pop(partition, "")
        keys = partition.keys("due payload meta stream wake seen policy history turns")
        values = [value for item in items for value in item]
        failed = False

        def call() -> Steps[list[int]]:
            nonlocal failed
            try:
                answers: list[int] = yield from evaluate("enqueue", keys, token, done, self._token_ms, *values,
                                                         self._actor)
                return answers
            except UnavailableError:
                failed = True
                raise

        verdicts = yield from repeat(call, until)
        if not failed:  # a failed try that is still on its way must find its token
            self._done[partition] = token
        return verdicts

    def _may_use_one(self, partition: Partition, items: Sequence[Sequence[Any]]) -> bool:
        """Whether to store a single small message with a fresh ID by enqueue_one.

        The message must be due later than any repeat of the call. So a repeat finds it in the schedule, and the server
        need not remember the first try.
        """
        if len(items) > 1 or time.monotonic() < self._one_from.get(partition, 0):
            return False
        _, when, body, meta, window = items[0]
        is_later = when.startswith("+") and int(when) > self._token_ms
        return is_later and window == "" and 0 < len(body) and len(body) + len(meta) <= _ONE_BYTES

    def _enqueue_one(self, partition: Partition, item: Sequence[Any], until: float) -> Steps[Optional[list[int]]]:
        """Returns the verdict and the due time; None if the script does not take the message.

        It takes no message if the queue keeps a history, and after a refusal. enqueue refuses less.
        """
        id, when, body, meta, _ = item
        keys = partition.keys("due payload meta wake seen policy")
        token, again = f"{self._token_name}-{next(self._tokens)}", ""

        def call() -> Steps[int]:
            nonlocal again
            this_try, again = again, "1"
            answer: Union[int, list[int]] = yield from evaluate("enqueue_one", keys, when, id, body, token,
                                                                self._token_ms, "", meta, this_try)
            return answer[0] if isinstance(answer, list) else answer  # a list: an earlier try took the message

        try:
            asked = yield from repeat(call, until)
        except UnavailableError:
            raise
        except DuestreamError:
            return None
        return [_SCHEDULED, asked + int(when)] if asked else None

    def _elsewhere(self, queue: str, count: int, batch: Sequence[NewMessage], places: dict[int, int],
                   until: float) -> Steps[dict[int, DuestreamError]]:
        """Returns, by index, the errors for messages with an ID of the caller's choice that must not be stored.

        An ID belongs to its queue, and the script enqueue sees one partition. A replacement without a key goes to the
        partition of the message that it replaces: places is changed then.
        """
        refused: dict[int, DuestreamError] = {}
        first: dict[str, int] = {}  # by ID: the partition of its first message in the batch
        holders: dict[int, list[int]] = {}  # by index: the partitions in which the ID is scheduled
        windows: set[int] = set()
        for at in places:
            id = batch[at].id
            if id is not None and first.setdefault(id, places[at]) != places[at]:
                refused[at] = DuplicateError(f"{id} is in the batch twice, with two keys")
        for number in range(count):
            asked = [(at, id) for at in places if (id := batch[at].id) is not None
                     and (places[at] != number or batch[at].replace is not None)]
            for start in range(0, len(asked), _LOOK_IDS):
                some = asked[start:start + _LOOK_IDS]
                partition = Partition(self._prefix, queue, number)
                found = yield from self._look(partition, [id for _, id in some], until)
                for (at, _), (scheduled, windowed) in zip(some, found):
                    if scheduled:
                        holders.setdefault(at, []).append(number)
                    if windowed and places[at] != number:
                        windows.add(at)
        for at in holders.keys() | windows:
            message, where = batch[at], holders.get(at, [])
            if at in refused or where == [places[at]]:
                continue
            if message.replace is None or not where:
                refused[at] = _duplicate(message.id or "")
            elif len(where) == 1 and message.key is None:
                places[at] = where[0]
            else:
                refused[at] = UnsupportedError(
                    f"{message.id} is scheduled in partition {', '.join(map(str, where))}, and its replacement belongs "
                    f"to partition {places[at]}: cancel it first")
        return refused

    def _look(self, partition: Partition, ids: Sequence[str], until: float) -> Steps[list[tuple[bool, bool]]]:
        """Returns, for each ID, whether it is scheduled in a partition, and whether it is inside a dedup window."""
        due, seen, clock = yield from repeat(lambda: ask(
            ("ZMSCORE", partition.key("due"), *ids), ("ZMSCORE", partition.key("seen"), *ids), ("TIME",),
        ), until, harmless=True)
        now = server_time(clock)
        return [(score is not None, end is not None and float(end) > now) for score, end in zip(due, seen)]

    # ---- cancel and reschedule -----------------------------------------------------------------------------------

    def cancel(self, queue: str, id: str) -> Steps[None]:
        def cancel_in(partition: Partition) -> Steps[Optional[int]]:
            keys = partition.keys("due payload meta seen policy history turns wake")
            (found,) = yield from evaluate("cancel", keys, id, self._actor)
            return 0 if found == 1 else None

        yield from self._change("cancel", queue, id, cancel_in)

    def reschedule(self, queue: str, id: str, delay: limits.Duration, at: Optional[datetime]) -> Steps[datetime]:
        when = NewMessage(id=id, delay=delay, at=at)
        when.check()

        def move_in(partition: Partition) -> Steps[Optional[int]]:
            keys = partition.keys("due wake policy history meta turns")
            moved, due = yield from evaluate("reschedule", keys, id, when.when(id), self._actor)
            return due if moved == 1 else None

        due = yield from self._change("reschedule", queue, id, move_in)
        return limits.from_unix_millis(due)

    def _change(self, what: str, queue: str, id: str,
                change: Callable[[Partition], Steps[Optional[int]]]) -> Steps[int]:
        """Changes a message in every partition that may hold it, and returns the earliest answer.

        The key of a message decides its partition, and the caller does not know the key. If no partition has the
        message, all are asked once more: a replacement may have moved it meanwhile.
        """
        until = self._begin(queue)
        limits.check_text("id", id)
        counts, found, lost, asked = self._counts_of(queue), [], False, 0
        counts.stale()

        def once(partition: Partition) -> Steps[Optional[int]]:
            nonlocal lost
            try:
                return (yield from change(partition))
            except UnavailableError as error:
                lost = lost or error.sent
                raise

        while True:
            count = yield from repeat(lambda: counts.refresh(register=False), until, harmless=True)
            for number in range(count):
                partition = Partition(self._prefix, queue, number)
                answer = yield from repeat(lambda: once(partition), until)
                if answer is not None:
                    found.append(answer)
            if found:
                return min(found)
            if count == 1 or asked == count:
                break
            asked = count
            counts.stale()
        if lost:
            raise UncertainError(f"{what} {queue}/{id}: a reply was lost, and the message is not scheduled now")
        raise NotScheduledError(f"{what} {queue}/{id}: not scheduled")

    def result(self, queue: str, id: str, group: str) -> Steps[MessageResult]:
        until, counts = self._begin(queue), self._counts_of(queue)
        limits.check_text("id", id)
        limits.check_text("group", group)
        counts.stale()
        count = yield from repeat(lambda: counts.refresh(register=False), until, harmless=True)
        kind = f"result:{limits.percent(group)}:{id}"
        keys = [Partition(self._prefix, queue, number).key(kind) for number in range(count)]
        replies = yield from repeat(lambda: ask(*(("GET", key) for key in keys)), until, harmless=True)
        for reply in replies:
            if reply is not None:
                first, _, value = reply.partition(b"\n")
                done, attempt, _ = first.split(b" ")
                return MessageResult(value, int(attempt), limits.from_unix_millis(int(done)))
        raise NoResultError(f"{queue}/{id} has no result for {group}")

    def wait_for(self, queue: str, id: str, group: str, timeout: limits.Duration) -> Steps[MessageResult]:
        began = time.monotonic()
        end = began + limits.millis("timeout", timeout) / 1000
        while True:
            try:
                return (yield from self.result(queue, id, group))
            except (NoResultError, UnavailableError):
                now = time.monotonic()
                if now >= end:
                    raise
            yield Sleep(min(max(0.01, (now - began) / 8), 2, end - now))

    # ---- recurrences ---------------------------------------------------------------------------------------------

    def recur(self, recurrence: Recurrence) -> Steps[None]:
        recurrence.check()
        queue, until = recurrence.queue, self._begin(recurrence.queue)
        keys = Partition(self._prefix, queue)
        yield from repeat(lambda: self._levels.allow(_RECURRENCE_LEVEL, "recurrences"), until, harmless=True)
        yield from repeat(lambda: self._counts_of(queue).refresh(register=True), until, harmless=True)
        yield from repeat(lambda: ask(
            ("MULTI",),
            ("HSET", keys.key("recurring"), recurrence.name, recurrence.spec()),
            ("HINCRBY", keys.key("planned"), "", 1),  # bridges notice the change within 5 s
            ("EXEC",),
        ), until, harmless=True)

    def recurrences(self, queue: str) -> Steps[list[Recurrence]]:
        until, keys = self._begin(queue), Partition(self._prefix, queue)
        (flat,) = yield from repeat(lambda: ask(("HGETALL", keys.key("recurring"))), until, harmless=True)
        found = [Recurrence.parse(queue, name.decode(errors="replace"), json.loads(spec))
                 for name, spec in zip(flat[::2], flat[1::2])]
        return sorted(found, key=lambda one: one.name)

    def remove_recurrence(self, queue: str, name: str) -> Steps[None]:
        until, keys = self._begin(queue), Partition(self._prefix, queue)
        replies = yield from repeat(lambda: ask(
            ("MULTI",), ("HDEL", keys.key("recurring"), name), ("HINCRBY", keys.key("planned"), "", 1), ("EXEC",),
        ), until, harmless=True)
        if replies[-1][0] == 0:
            raise NoRecurrenceError(f"{queue} has no recurrence {name}")

    # ---- close and helpers ---------------------------------------------------------------------------------------

    def close(self) -> Steps[None]:
        """Makes the server forget the tokens of the last calls, and refuses further calls."""
        self._closed = True
        try:
            while self._done:
                partition, done = self._done.popitem()
                keys = partition.keys("due payload meta stream wake seen policy history turns")
                yield from evaluate("enqueue", keys, "", done, 0, self._actor)
        except DuestreamError:
            pass  # the server forgets them after a minute

    def _begin(self, queue: str) -> float:
        """Checks that a call may begin. Returns the end of its repetitions, in time.monotonic()."""
        if self._closed:
            raise ClosedError("the client is closed")
        limits.check_queue(queue)
        return time.monotonic() + self._retry

    def _counts_of(self, queue: str) -> Counts:
        return self._counts.setdefault(queue, Counts(self._prefix, queue))


def _chunks(items: list[list[Any]]) -> Iterator[list[list[Any]]]:
    """Divides the messages of a partition among calls that do not block the server for long."""
    chunk: list[list[Any]] = []
    size = 0
    for item in items:
        more = 64 + len(item[2]) + len(item[3])
        if chunk and (len(chunk) == _CALL_MESSAGES or size + more > _CALL_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += more
    if chunk:
        yield chunk


def _result(id: str, verdict: int, due: int) -> Result:
    if verdict == _DUPLICATE:
        return Result(id, error=_duplicate(id))
    if verdict == _MALFORMED:
        return Result(id, error=InvalidError("headers", id, "the server cannot read them"))
    if due >= _PARKED:
        due -= _PARKED
    return Result(id, Receipt(id, limits.from_unix_millis(due), verdict == _READY, verdict == _REPLACED))


def _duplicate(id: str) -> DuplicateError:
    return DuplicateError(f"{id} is scheduled already, or inside a dedup window")
