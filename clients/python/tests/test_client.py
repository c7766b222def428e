from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from conftest import Server
from duestream import (AsyncClient, Client, ClosedError, DeniedError, DuplicateError, InvalidError, NewMessage,
                       NoRecurrenceError, NotScheduledError, OldBridgeError, Recurrence, UnavailableError,
                       UnsupportedError, WrongTypeError)
from duestream.errors import classify
from duestream.wire import partition_of

IN_2030 = datetime(2030, 1, 1, tzinfo=timezone.utc)
IN_2031 = datetime(2031, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, name="client test") as one:
        yield one


def due(server: Server, id: str, part: str = "q") -> Any:
    return server.redis.zscore(f"duestream:{{{part}}}:due", id)


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def test_schedules_payload_headers_and_settings(server: Server, client: Client) -> None:
    receipt = client.schedule("q", "close the order", id="order-42", at=IN_2030, headers={"trace": "7f3a"},
                              max_attempts=5, retry_delays=[1, timedelta(seconds=2.5)], retry_for=60,
                              expires=IN_2031, key="customer-7", handler_timeout=0.5, keep_result=60)
    assert (receipt.id, receipt.due, receipt.ready) == ("order-42", IN_2030, False)
    assert due(server, "order-42") == ms(IN_2030)
    assert server.redis.hget("duestream:{q}:payload", "order-42") == "close the order"
    assert json.loads(server.redis.hget("duestream:{q}:meta", "order-42")) == {
        "h:trace": "7f3a", "max_attempts": "5", "retry_delays_ms": "1000,2500", "retry_for_ms": "60000",
        "expires_ms": str(ms(IN_2031)), "key": "customer-7", "handler_timeout_ms": "500", "result_ms": "60000"}
    assert server.redis.hgetall("duestream:queues") == {"q": "1"}


def test_a_message_that_is_due_is_ready_at_once(server: Server, client: Client) -> None:
    receipt = client.schedule("q", b"\x00\xff")
    assert receipt.ready and len(receipt.id) == 26
    ((_, fields),) = server.redis.xrange("duestream:{q}:stream")
    assert fields["id"] == receipt.id


def test_a_later_message_needs_no_token_and_a_queue_with_a_history_gets_its_entry(server: Server,
                                                                                 client: Client) -> None:
    receipt = client.schedule("q", "p", delay=3600, headers={"a": "b"})
    assert ms(receipt.due) == due(server, receipt.id)
    assert server.redis.hgetall("duestream:{q}:payload") == {receipt.id: "p"}
    assert server.redis.hgetall("duestream:{q}:meta") == {receipt.id: '{"h:a":"b"}'}
    assert server.redis.zcard("duestream:{q}:seen") == 0
    server.redis.hset("duestream:{q}:policy", "history", "100")
    for _ in range(2):
        client.schedule("q", "p", delay=3600)
    assert server.redis.zcard("duestream:{q}:due") == 3
    assert server.redis.xlen("duestream:{q}:history") == 2


def test_an_id_is_refused_while_scheduled_and_in_its_window(server: Server, client: Client) -> None:
    client.schedule("q", "one", id="a", at=IN_2030)
    with pytest.raises(DuplicateError):
        client.schedule("q", "two", id="a", at=IN_2030)
    assert server.redis.hget("duestream:{q}:payload", "a") == "one"
    assert client.schedule("q", id="b", dedup=3600).ready
    with pytest.raises(DuplicateError):
        client.schedule("q", id="b")


def test_replaces(server: Server, client: Client) -> None:
    client.schedule("q", "one", id="a", at=IN_2030, headers={"n": "1"})
    assert client.schedule("q", "two", id="a", at=IN_2031, replace="later").replaced
    with pytest.raises(DuplicateError):
        client.schedule("q", "three", id="a", at=IN_2031 + timedelta(days=1), replace="earlier")
    assert server.redis.hgetall("duestream:{q}:payload") == {"a": "two"}
    assert server.redis.hgetall("duestream:{q}:meta") == {}


def test_a_batch_answers_each_message(server: Server, client: Client) -> None:
    client.schedule("q", id="b", at=IN_2030)
    messages = [NewMessage(id="a", at=IN_2030), NewMessage(id="b", at=IN_2030), NewMessage(id="c\n")]
    messages += [NewMessage(delay=3600) for _ in range(300)]  # more than one call
    results = client.send_batch("q", messages)
    assert [type(r.error) for r in results[:4]] == [type(None), DuplicateError, InvalidError, type(None)]
    assert server.redis.zcard("duestream:{q}:due") == 302


def test_cancels_and_reschedules(server: Server, client: Client) -> None:
    client.schedule("q", "x", id="a", delay=3600)
    assert client.reschedule("q", "a", at=IN_2030) == IN_2030
    assert due(server, "a") == ms(IN_2030)
    client.cancel("q", "a")
    with pytest.raises(NotScheduledError):
        client.cancel("q", "a")
    with pytest.raises(NotScheduledError):
        client.reschedule("q", "a", delay=1)
    assert not server.redis.exists("duestream:{q}:due", "duestream:{q}:payload")


def test_ids_are_found_in_all_partitions(server: Server, client: Client) -> None:
    server.redis.hset("duestream:queues", "q", "1,4")
    id = next(f"m-{n}" for n in range(99) if partition_of(f"m-{n}", 4) == 2)
    client.schedule("q", id=id, at=IN_2030)
    assert due(server, id, "q/2") == ms(IN_2030)
    key = next(f"k-{n}" for n in range(99) if partition_of(f"k-{n}", 4) == 3)
    with pytest.raises(DuplicateError):
        client.schedule("q", id=id, key=key, at=IN_2031)
    with pytest.raises(UnsupportedError):
        client.schedule("q", id=id, key=key, at=IN_2031, replace="replace")
    client.cancel("q", id)
    client.schedule("q", id=id, key=key, at=IN_2030)
    assert due(server, id, "q/3") == ms(IN_2030)
    # Without a key the replacement goes to where the message is.
    assert client.schedule("q", "new", id=id, at=IN_2031, replace="replace").replaced
    assert due(server, id, "q/3") == ms(IN_2031) and due(server, id, "q/2") is None
    assert client.reschedule("q", id, at=IN_2030) == IN_2030
    client.cancel("q", id)
    assert due(server, id, "q/3") is None


def test_forgets_the_partitions_of_a_deleted_queue(server: Server, client: Client) -> None:
    server.redis.hset("duestream:queues", "q", "1,4")
    client.schedule("q", delay=60)
    counts = client._producer._counts["q"]
    server.redis.hdel("duestream:queues", "q")  # the registry lost it
    counts.stale()
    client.schedule("q", delay=60)
    assert server.redis.hget("duestream:queues", "q") == "1,4"
    server.redis.hdel("duestream:queues", "q")
    server.redis.hset("duestream:queues", "/deleted/q", "4")
    counts.stale()
    client.schedule("q", delay=60)
    assert counts.latest == 1 and server.redis.hget("duestream:queues", "q") == "1"


def test_a_repeated_call_stores_a_message_once(server: Server, client: Client, monkeypatch: Any) -> None:
    perform, calls = client._perform, []

    def lose_the_first_reply(request: Any) -> Any:
        answer = perform(request)
        if not isinstance(request, tuple) and request[0][0] == "EVALSHA" and "once" in request[0]:
            calls.append(request)
            if len(calls) == 1:
                raise ConnectionResetError("lost")
        return answer

    client.schedule("q", id="warm")  # loads the script
    monkeypatch.setattr(client, "_perform", lose_the_first_reply)
    client.schedule("q", id="once")
    assert len(calls) == 2 and server.redis.xlen("duestream:{q}:stream") == 2


def test_a_repeated_call_leaves_a_later_message_as_it_is(server: Server, client: Client, monkeypatch: Any) -> None:
    perform, first_due = client._perform, []

    def lose_the_first_reply(request: Any) -> Any:
        answer = perform(request)
        if not isinstance(request, tuple) and request[0][0] == "EVALSHA" and b"once" in request[0]:
            first_due.append(server.redis.zrange("duestream:{q}:due", 0, -1, withscores=True)[-1][1])
            if len(first_due) == 1:
                raise ConnectionResetError("lost")
        return answer

    client.schedule("q", "warm", delay=3600)  # loads the script
    monkeypatch.setattr(client, "_perform", lose_the_first_reply)
    receipt = client.schedule("q", "once", delay=7200)
    assert len(first_due) == 2 and server.redis.zcard("duestream:{q}:due") == 2
    assert ms(receipt.due) == due(server, receipt.id) == first_due[0]


def test_threads_share_a_client(server: Server, client: Client) -> None:
    """Regression: two threads that sent at once raised ValueError, generator already executing."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: client.schedule("q", id=f"m-{n}", at=IN_2030), range(400)))
    finally:
        sys.setswitchinterval(before)
    assert server.redis.zcard("duestream:{q}:due") == 400


def test_close_leaves_no_token_behind(server: Server) -> None:
    client = Client(server.url)
    client.schedule("q", id="a", delay=3600)
    assert server.redis.zcard("duestream:{q}:seen") == 1
    client.close()
    assert server.redis.zcard("duestream:{q}:seen") == 0
    with pytest.raises(ClosedError):
        client.schedule("q")


def test_keys_need_bridges_that_serve_them(server: Server, client: Client) -> None:
    now = time.time() * 1000
    server.redis.zadd("duestream:bridges", {"01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v0.1.0": now + 4000})
    with pytest.raises(OldBridgeError):
        client.schedule("q", key="k")
    with Client(server.url, allow_old_bridges=True) as careless:
        careless.schedule("q", key="k")
    server.redis.delete("duestream:bridges")
    server.redis.zadd("duestream:bridges", {"01M7ZMPW4AFDJS68SPX5258FR1 web-1 7 v0.1.0 p2": now + 4000})
    with Client(server.url) as other:
        other.schedule("q", key="k")


def test_recurrences(server: Server, client: Client) -> None:
    nightly = Recurrence("nightly", "reports", "{}", cron="0 9 * * 1-5", zone="Europe/Paris", start=IN_2030)
    client.recur(nightly)
    spec = json.loads(server.redis.hget("duestream:{reports}:recurring", "nightly"))
    assert spec["cron"] == "0 9 * * 1-5" and spec["payload"] == "{}" and spec["start_ms"] == ms(IN_2030)
    assert server.redis.hget("duestream:{reports}:planned", "") == "1"
    client.recur(Recurrence("bytes", "reports", b"\xff", every=60, phase=5))
    one, two = client.recurrences("reports")
    assert (one.payload, one.every, one.phase) == (b"\xff", 60, 5)
    assert (two.payload, two.zone, two.start) == (b"{}", "Europe/Paris", IN_2030)
    client.remove_recurrence("reports", "nightly")
    with pytest.raises(NoRecurrenceError):
        client.remove_recurrence("reports", "nightly")


@pytest.mark.parametrize("cron", ["* * * *", "60 * * * *", "0 9 * * mon-sat,8", "*/0 * * * *", "5-1 * * * *", "@every",
                                  "TZ=UTC 0 9 * * *", "0 9 32 * *", "x * * * *"])
def test_refuses_cron_expressions(client: Client, cron: str) -> None:
    with pytest.raises(InvalidError):
        client.recur(Recurrence("r", "q", cron=cron))


@pytest.mark.parametrize("refused", [
    lambda c: c.schedule("no queue"), lambda c: c.schedule("q", id=""), lambda c: c.schedule("q", id="\ud800"),
    lambda c: c.schedule("q", id="x" * 257), lambda c: c.schedule("q", bytes((16 << 20) + 1)),
    lambda c: c.schedule("q", headers={"a": "x" * 9000}),
    lambda c: c.schedule("q", headers={str(n): "" for n in range(65)}),
    lambda c: c.schedule("q", delay=-1), lambda c: c.schedule("q", delay=timedelta(days=3651)),
    lambda c: c.schedule("q", delay=1, at=IN_2030), lambda c: c.schedule("q", at=datetime(2030, 1, 1)),
    lambda c: c.schedule("q", at=datetime(1970, 1, 21, tzinfo=timezone.utc)), lambda c: c.schedule("q", max_attempts=0),
    lambda c: c.schedule("q", dedup=1), lambda c: c.schedule("q", replace="replace"),
    lambda c: c.schedule("q", id="a", replace="never"), lambda c: c.schedule("q", delay=5, expires_in=5),
    lambda c: c.schedule("q", at=IN_2031, expires=IN_2030), lambda c: c.schedule("q", key=""),
    lambda c: c.schedule("q", retry_delays=[1] * 101), lambda c: c.schedule("q", retry_delays=[0]),
    lambda c: c.recur(Recurrence("r", "q")), lambda c: c.recur(Recurrence("r", "q", cron="@daily", zone="Mars/Base")),
    lambda c: c.recur(Recurrence("r", "q", every=0.5)), lambda c: c.recur(Recurrence("r", "q", every=60, phase=60)),
])
def test_refuses_before_redis_is_asked(refused: Callable[[Client], Any]) -> None:
    with pytest.raises(InvalidError):
        refused(Client("redis://127.0.0.1:1"))


def test_spreads_as_every_client_does() -> None:
    assert NewMessage(spread=600).when("order-42") == "+126703"
    assert partition_of("order-42", 8) == 6


def test_errors_of_the_server(server: Server, client: Client) -> None:
    server.redis.set("duestream:{wrong}:due", "text")
    with pytest.raises(WrongTypeError):
        client.schedule("wrong", id="a")
    server.redis.acl_setuser("weak", enabled=True, passwords=["+pw"], commands=["+ping"])
    with Client(server.url.replace("//", "//weak:pw@"), retry_timeout=0) as weak, pytest.raises(DeniedError):
        weak.schedule("q")
    with pytest.raises(DeniedError):
        Client(server.url.replace("//", "//weak:wrong@"), retry_timeout=0).schedule("q")
    with pytest.raises(UnavailableError):
        Client("redis://127.0.0.1:1", retry_timeout=0).schedule("q")


def test_a_cluster_is_refused() -> None:
    for moved in (redis.exceptions.MovedError("4096 127.0.0.1:7001"), redis.exceptions.AskError("1 127.0.0.1:7001")):
        refused = classify("HGET", moved)
        assert type(refused) is UnsupportedError and "cluster" in str(refused)


def test_the_asyncio_client_does_the_same(server: Server) -> None:
    async def work() -> None:
        async with AsyncClient(server.url) as client:
            receipts = await asyncio.gather(*(client.schedule("q", id=f"m-{n}", at=IN_2030) for n in range(20)))
            assert {r.due for r in receipts} == {IN_2030}
            with pytest.raises(DuplicateError):
                await client.schedule("q", id="m-1", at=IN_2030)
            results = await client.send_batch("q", [NewMessage(id="m-1"), NewMessage(id="n-1", delay=60)])
            assert [r.error is None for r in results] == [False, True]
            await client.cancel("q", "m-0")
            assert await client.reschedule("q", "m-1", at=IN_2031) == IN_2031
            await client.recur(Recurrence("r", "q", cron="@hourly"))
            assert [r.name for r in await client.recurrences("q")] == ["r"]
            await client.remove_recurrence("q", "r")

    asyncio.run(work())
    assert server.redis.zcard("duestream:{q}:due") == 20
