"""Client and worker need no more rights than those of the documented users."""
from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

from conftest import Server, eventually
from duestream import Client, DeadLetter, Message, RetryAfter, Settlement, Worker
from duestream.wire import partition_of

USERS = Path(__file__).parent.parent.parent.parent / "docs" / "operations" / "users.md"


def url_of(server: Server, user: str) -> str:
    line = re.search(rf"^> ACL SETUSER {user} (.*)$", USERS.read_text("utf-8"), re.MULTILINE)
    assert line
    words, selector = [], ""
    for word in line[1].split():  # a selector in parentheses is one argument
        selector = f"{selector} {word}".strip() if selector or word.startswith("(") else ""
        if not selector:
            words.append(word)
        elif selector.endswith(")"):
            words.append(selector)
            selector = ""
    server.redis.execute_command("ACL", "SETUSER", user, *words)
    password = next(word[1:] for word in words if word.startswith(">"))
    return server.url.replace("//", f"//{user}:{password}@")


def denials(server: Server) -> list[str]:
    rows: list[Any] = server.redis.execute_command("ACL", "LOG")
    whats = [row["object"] if isinstance(row, dict) else dict(zip(row[::2], row[1::2]))["object"] for row in rows]
    return [what for what in whats if not what.startswith("client")]  # newer versions of redis-py name themselves


def test_a_producer_needs_the_rights_of_its_user_alone(server: Server) -> None:
    server.redis.execute_command("ACL", "LOG", "RESET")
    server.redis.hset("duestream:queues", "q", "1,2")
    with Client(url_of(server, "producer")) as client:
        client.schedule("new", delay=60)
        for n in range(2):
            id = next(f"m-{i}" for i in range(99) if partition_of(f"m-{i}", 2) == n)
            client.schedule("q", "x", id=id, key="k", delay=60, headers={"a": "b"}, dedup=60)
            client.reschedule("q", id, delay=120)
            client.cancel("q", id)
            client.schedule("q", id=id, delay=60, replace="replace")
    assert not denials(server)


def test_a_worker_needs_the_rights_of_its_user_alone(server: Server) -> None:
    server.redis.execute_command("ACL", "LOG", "RESET")

    def handle(message: Message) -> None:
        message.save_progress("1")
        if message.id == "retry":
            raise RetryAfter(60)
        if message.id == "dead":
            raise DeadLetter
        message.set_result("done")

    worker = Worker(url_of(server, "worker"), group="g", queues=["q"], handler=handle)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        with Client(server.url) as client:
            for id in ("retry", "dead", "done"):
                client.schedule("q", id=id, key=id, keep_result=60)

        def settled() -> bool:
            server.drain("q")  # a message with a key becomes ready by a drain
            return sum(worker.stats.values()) == 3

        eventually(settled)
    finally:
        worker.stop()
        thread.join(60)
    assert set(worker.stats) == {Settlement.RETRIED, Settlement.DEAD, Settlement.ACKNOWLEDGED}
    assert not denials(server) and not server.redis.xinfo_consumers("duestream:{q}:stream", "g")
