"""Client and AsyncClient, and the drivers that perform the steps of a producer for them."""
from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Optional, TypeVar, Unpack

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from .errors import CONNECTION_ERRORS, classify
from .limits import Duration
from .message import MessageResult, NewMessage, Options, Receipt, Result
from .producer import Producer
from .recurrence import Recurrence
from .wire import CALL_TIMEOUT, Request, Sleep, Steps

T = TypeVar("T")

DEFAULT_URL = "redis://127.0.0.1:6379"
DEFAULT_PREFIX = "duestream"
DEFAULT_RETRY_TIMEOUT = 10


class Client:
    """Schedules, cancels and reschedules messages. Threads may share it.

    A call is repeated after temporary errors, like a lost reply or a failover, until retry_timeout has passed. A
    repeated call never stores a message twice.

    prefix: the prefix of all keys. name: the name of this client in the histories of queues. allow_old_bridges: accepts
    messages with a key, and recurrences, while a bridge is alive that may not serve them, instead of raising
    OldBridgeError.
    """

    def __init__(self, url: str = DEFAULT_URL, *, prefix: str = DEFAULT_PREFIX,
                 retry_timeout: Duration = DEFAULT_RETRY_TIMEOUT, name: Optional[str] = None,
                 allow_old_bridges: bool = False) -> None:
        self._producer = Producer(prefix, retry_timeout, name, allow_old_bridges)
        self._redis = redis.Redis.from_url(url, **redis_options(CALL_TIMEOUT), retry=Retry(NoBackoff(), 0))
        self._redis.response_callbacks.clear()  # replies stay as Redis sends them, with every version of redis-py

    def schedule(self, queue: str, payload: bytes | str = b"", **options: Unpack[Options]) -> Receipt:
        """Stores one message. The keywords are the fields of NewMessage.

        When it returns, the message will be delivered at least once to every group of the queue, unless it is cancelled
        or becomes a dead letter. After UncertainError the message may have been stored. After other errors it was not.
        """
        return self.send(queue, NewMessage(payload, **options))

    def send(self, queue: str, message: NewMessage) -> Receipt:
        """Does the same as schedule for a NewMessage."""
        return self._run(self._producer.send(queue, message))

    def send_batch(self, queue: str, messages: Iterable[NewMessage]) -> list[Result]:
        """Stores many messages, at most 100,000. It returns one result for each, in their order. It is not atomic."""
        return self._run(self._producer.send_batch(queue, messages))

    def cancel(self, queue: str, id: str) -> None:
        """Removes a message from the schedule: it will not be delivered. NotScheduledError: it was not scheduled."""
        self._run(self._producer.cancel(queue, id))

    def reschedule(self, queue: str, id: str, *, delay: Duration = 0, at: Optional[datetime] = None) -> datetime:
        """Moves a scheduled message to a new due time, and returns it. NotScheduledError: it was not scheduled."""
        return self._run(self._producer.reschedule(queue, id, delay, at))

    def result(self, queue: str, id: str, group: str) -> MessageResult:
        """Returns the result of a message for a group, if it was sent with keep_result.

        NoResultError: there is none, or none yet. The Redis user needs the right to read the key of the result: see
        docs/operations/users.md.
        """
        return self._run(self._producer.result(queue, id, group))

    def wait_for(self, queue: str, id: str, group: str, *, timeout: Duration) -> MessageResult:
        """Waits for the result of a message that was sent with keep_result, and returns it.

        It asks for the result every 10 ms at first. Later, each pause is an eighth of the time that it has waited, at
        most 2 s. It does not look what became of the message.

        NoResultError: there is none at the end of timeout.
        """
        return self._run(self._producer.wait_for(queue, id, group, timeout))

    def recur(self, recurrence: Recurrence) -> None:
        """Adds a recurrence, or replaces the one of its queue and name. Bridges notice it within 5 s."""
        self._run(self._producer.recur(recurrence))

    def recurrences(self, queue: str) -> list[Recurrence]:
        """Returns the recurrences of a queue, in the order of their names."""
        return self._run(self._producer.recurrences(queue))

    def remove_recurrence(self, queue: str, name: str) -> None:
        """Removes a recurrence. A bridge cancels its scheduled messages within 5 s.

        NoRecurrenceError: it does not exist.
        """
        self._run(self._producer.remove_recurrence(queue, name))

    def close(self) -> None:
        """Closes the connections. Further calls raise ClosedError."""
        self._run(self._producer.close())
        self._redis.connection_pool.disconnect()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                try:
                    answer = self._perform(request)
                except CONNECTION_ERRORS as error:
                    request = steps.throw(classify(name_of(request), error))
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def _perform(self, request: Request) -> Any:
        if isinstance(request, Sleep):
            return time.sleep(request.seconds)
        pipe = self._redis.pipeline(transaction=False)
        for command in request:
            pipe.execute_command(*command)
        return pipe.execute(raise_on_error=False)


class AsyncClient:
    """A Client for asyncio: each method that sends something is a coroutine."""

    def __init__(self, url: str = DEFAULT_URL, *, prefix: str = DEFAULT_PREFIX,
                 retry_timeout: Duration = DEFAULT_RETRY_TIMEOUT, name: Optional[str] = None,
                 allow_old_bridges: bool = False) -> None:
        self._producer = Producer(prefix, retry_timeout, name, allow_old_bridges)
        self._driver = AsyncDriver(url, CALL_TIMEOUT)

    async def schedule(self, queue: str, payload: bytes | str = b"", **options: Unpack[Options]) -> Receipt:
        """See Client.schedule."""
        return await self.send(queue, NewMessage(payload, **options))

    async def send(self, queue: str, message: NewMessage) -> Receipt:
        """See Client.send."""
        return await self._driver.run(self._producer.send(queue, message))

    async def send_batch(self, queue: str, messages: Iterable[NewMessage]) -> list[Result]:
        """See Client.send_batch."""
        return await self._driver.run(self._producer.send_batch(queue, messages))

    async def cancel(self, queue: str, id: str) -> None:
        """See Client.cancel."""
        await self._driver.run(self._producer.cancel(queue, id))

    async def reschedule(self, queue: str, id: str, *, delay: Duration = 0, at: Optional[datetime] = None) -> datetime:
        """See Client.reschedule."""
        return await self._driver.run(self._producer.reschedule(queue, id, delay, at))

    async def result(self, queue: str, id: str, group: str) -> MessageResult:
        """See Client.result."""
        return await self._driver.run(self._producer.result(queue, id, group))

    async def wait_for(self, queue: str, id: str, group: str, *, timeout: Duration) -> MessageResult:
        """See Client.wait_for."""
        return await self._driver.run(self._producer.wait_for(queue, id, group, timeout))

    async def recur(self, recurrence: Recurrence) -> None:
        """See Client.recur."""
        await self._driver.run(self._producer.recur(recurrence))

    async def recurrences(self, queue: str) -> list[Recurrence]:
        """See Client.recurrences."""
        return await self._driver.run(self._producer.recurrences(queue))

    async def remove_recurrence(self, queue: str, name: str) -> None:
        """See Client.remove_recurrence."""
        await self._driver.run(self._producer.remove_recurrence(queue, name))

    async def close(self) -> None:
        """See Client.close."""
        await self._driver.run(self._producer.close())
        await self._driver.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncDriver:
    """Performs steps with an asyncio client. It closes a connection that did not answer in time."""

    def __init__(self, url: str, timeout: float) -> None:
        self._redis = redis.asyncio.Redis.from_url(url, **redis_options(timeout), retry=AsyncRetry(NoBackoff(), 0))
        self._redis.response_callbacks.clear()

    async def run(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                try:
                    answer = await self._perform(request)
                except CONNECTION_ERRORS as error:
                    request = steps.throw(classify(name_of(request), error))
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _perform(self, request: Request) -> Any:
        if isinstance(request, Sleep):
            return await asyncio.sleep(request.seconds)
        pipe = self._redis.pipeline(transaction=False)
        for command in request:
            pipe.execute_command(*command)
        return await pipe.execute(raise_on_error=False)

    async def close(self) -> None:
        await self._redis.connection_pool.disconnect()


def redis_options(timeout: float) -> dict[str, Any]:
    """Returns options of a client of redis-py. This package repeats calls itself, and reads replies of protocol 2."""
    options: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": CALL_TIMEOUT}
    if redis.VERSION >= (5,):  # earlier versions have only protocol 2, and no option for it
        options["protocol"] = 2
    return options


def name_of(request: Request) -> str:
    return "sleep" if isinstance(request, Sleep) else str(request[0][0])
