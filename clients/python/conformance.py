#!/usr/bin/env python3
"""Runs the package's worker or producer in the form that `duestream conformance` tests.

    duestream conformance --worker --level complete -- python3 clients/python/conformance.py worker
    duestream conformance --producer --level complete -- python3 clients/python/conformance.py producer
"""
import asyncio
import base64
import json
import os
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "src"))

from duestream import (AsyncClient, Client, DeadLetter, DuestreamError, Message, NewMessage,  # noqa: E402
                       RetryAfter, Worker)

URL, PREFIX, QUEUE = (os.environ[name] for name in ("DUESTREAM_REDIS_URL", "DUESTREAM_PREFIX", "QUEUE"))
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


TURN = threading.Lock()


def say(**line: Any) -> None:
    with TURN:  # handlers have threads
        print(json.dumps(line), flush=True)


def message_of(line: str) -> NewMessage:
    order = json.loads(line)

    def instant(name: str) -> datetime | None:
        return EPOCH + timedelta(milliseconds=order[name]) if name in order else None

    return NewMessage(base64.b64decode(order.get("payload", "")), id=order["id"], at=instant("due_ms"),
                      headers=order.get("headers", {}), max_attempts=order.get("max_attempts"),
                      expires=instant("expires_ms"),
                      dedup=order["dedup_ms"] / 1000 if "dedup_ms" in order else None)


def produce() -> None:
    with Client(URL, prefix=PREFIX) as client:
        for line in sys.stdin:
            message = message_of(line)
            try:
                client.send(QUEUE, message)
                say(id=message.id, ok=True)
            except DuestreamError as error:
                say(id=message.id, ok=False, error=str(error))


async def produce_async() -> None:
    async with AsyncClient(URL, prefix=PREFIX) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            message = message_of(line)
            try:
                await client.send(QUEUE, message)
                say(id=message.id, ok=True)
            except DuestreamError as error:
                say(id=message.id, ok=False, error=str(error))


def begin(message: Message) -> float:
    """Prints the delivery, and fails as the header work says. Returns the duration of the work in seconds."""
    say(id=message.id, attempt=message.attempt, payload=base64.b64encode(message.payload).decode(),
        headers=message.headers)
    what, _, number = message.headers.get("work", "ok").partition(" ")
    if what == "fail" and message.attempt <= int(number):
        raise RuntimeError("asked to fail")
    if what == "retry" and message.attempt == 1:
        raise RetryAfter(int(number) / 1000, "asked to retry")
    if what == "dead":
        raise DeadLetter("asked to die")
    return int(number) / 1000 if what == "slow" else 0


def handle(message: Message) -> None:
    message.wait(begin(message))


async def handle_async(message: Message) -> None:
    await asyncio.sleep(begin(message))


def work(handler: Callable[[Message], Any]) -> None:
    Worker(URL, prefix=PREFIX, queues=[QUEUE], group=os.environ["GROUP"], consumer=os.environ["CONSUMER"],
           handler=handler, shutdown_timeout=8, cancel_grace=1).run()


if sys.argv[1:] == ["worker"]:
    work(handle)
elif sys.argv[1:] == ["async-worker"]:
    work(handle_async)
elif sys.argv[1:] == ["producer"]:
    produce()
elif sys.argv[1:] == ["async-producer"]:
    asyncio.run(produce_async())
else:
    sys.exit(__doc__)
