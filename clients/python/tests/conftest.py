"""A redis-server for the tests, and a drain in place of a bridge."""
from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from duestream.wire import Partition

PATIENCE = 60.0  # seconds
DRAIN = Path(__file__).parents[3] / "lua" / "generated" / "drain.lua"  # no client calls it


class Server:
    """A redis-server with a connection for looking at it."""

    def __init__(self, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}"
        self.redis: Any = redis.Redis.from_url(self.url, decode_responses=True, encoding_errors="replace")

    def drain(self, queue: str, partition: int = 0) -> None:
        """Makes due messages ready, as a bridge does."""
        keys = Partition("duestream", queue, partition).keys("due payload meta stream dead turns policy rate history")
        self.redis.eval(DRAIN.read_text("utf-8"), len(keys), *keys, 1000, 1 << 20, "bridge test")


def eventually(holds: Callable[[], Any]) -> Any:
    """Waits until a condition holds, and returns its value."""
    end = time.monotonic() + PATIENCE
    while True:
        value = holds()
        if value:
            return value
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    program = shutil.which("redis-server")
    assert program, "no redis-server on the PATH: install the package redis-server"
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    directory: Path = tmp_path_factory.mktemp("redis")
    process = subprocess.Popen([program, "--port", str(port), "--save", "", "--dir", str(directory)],
                               stdout=subprocess.DEVNULL)
    server = Server(port)

    def answers() -> bool:
        try:
            return bool(server.redis.ping())
        except redis.ConnectionError:
            assert process.poll() is None, "redis-server ended"
            return False

    try:
        eventually(answers)
        yield server
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def server(_server: Server) -> Server:
    """An empty server."""
    _server.redis.flushall()
    return _server
