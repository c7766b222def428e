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
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "src"))

from duestream import AsyncClient, Client, DuestreamError, NewMessage  # noqa: E402

URL, PREFIX, QUEUE = (os.environ[name] for name in ("DUESTREAM_REDIS_URL", "DUESTREAM_PREFIX", "QUEUE"))
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")  # one write for a line, because handlers have threads
    sys.stdout.flush()


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


if sys.argv[1:] == ["producer"]:
    produce()
elif sys.argv[1:] == ["async-producer"]:
    asyncio.run(produce_async())
else:
    sys.exit(__doc__)
