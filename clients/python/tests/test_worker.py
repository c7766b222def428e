from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Optional

import pytest
import redis

from conftest import Server, eventually
from duestream import (AbandonedError, AsyncClient, CancelledError, Client, DeadLetter, HandlerTimeoutError,
                       InvalidError, Kind, LostError, Message, Mux, NoResultError, Release, RetryAfter, Settlement,
                       Snooze, UnavailableError, Worker)
from duestream.kind import MAX_UNKNOWN_SNOOZES, UNKNOWN_KIND_TIME
from duestream.policy import Policy
from duestream.wire import partition_of


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as one:
        yield one


class Running:
    """A worker in a thread."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: Optional[Exception] = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self.worker.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def working(server: Server, handler: Any = None, **options: Any) -> Iterator[Worker]:
    if "mux" not in options:
        options |= {"handler": handler, "queues": options.get("queues", ["q"])}
    running = Running(Worker(server.url, group="g", **options))
    try:
        yield running.worker
    finally:
        running.stop()
        if running.error:
            raise running.error


def idle_times(server: Server) -> list[tuple[str, int]]:
    """Returns the entries that the group holds, with their idle times in ms."""
    try:
        rows = server.redis.xpending_range("duestream:{q}:stream", "g", "-", "+", 9)
    except redis.ResponseError:  # the worker has not created the group yet
        return []
    return [(row["message_id"], row["time_since_delivered"]) for row in rows]


def dead(server: Server) -> list[dict[str, str]]:
    return [fields for _, fields in server.redis.xrange("duestream:{q}:dead")]


def pending(server: Server, stream: str = "duestream:{q}:stream") -> int:
    return int(server.redis.xpending(stream, "g")["pending"])


def test_handles_and_acknowledges(server: Server, client: Client) -> None:
    got: list[Message] = []
    with working(server, got.append) as worker:
        receipt = client.schedule("q", b"\x00\xff", id="é", headers={"trace": "7f3a"}, max_attempts=3)
        eventually(lambda: worker.stats[Settlement.ACKNOWLEDGED])
    (m,) = got
    assert (m.id, m.payload, m.headers, m.attempt, m.max_attempts) == ("é", b"\x00\xff", {"trace": "7f3a"}, 1, 3)
    assert (m.queue, m.group, m.partition, m.due) == ("q", "g", 0, receipt.due)
    assert server.redis.xlen("duestream:{q}:stream") == 0
    assert not server.redis.xinfo_consumers("duestream:{q}:stream", "g")


def test_coroutines_run_side_by_side(server: Server, client: Client) -> None:
    together = 0

    async def handle(_: Message) -> None:
        nonlocal together
        together += 1
        while together < 20:
            await asyncio.sleep(0.01)

    with working(server, handle, concurrency=20) as worker:
        for n in range(20):
            client.schedule("q", id=str(n))
        eventually(lambda: worker.stats[Settlement.ACKNOWLEDGED] == 20)


@pytest.mark.parametrize("error, settlement, fields", [
    (RuntimeError("no answer"), Settlement.RETRIED, {"attempt": "2", "error": "no answer", "for": "g"}),
    (RetryAfter(3600, "busy"), Settlement.RETRIED, {"attempt": "2", "error": "busy"}),
    (Snooze(3600), Settlement.SNOOZED, {"attempt": "1", "snoozes": "1"}),
    (Release(), Settlement.RELEASED, {"attempt": "1"}),
])
def test_errors_schedule_again(server: Server, client: Client, error: Exception, settlement: Settlement,
                               fields: dict[str, str]) -> None:
    def handle(_: Message) -> None:
        raise error

    with working(server, handle) as worker:
        client.schedule("q", id="a", retry_delays=[7200])
        eventually(lambda: worker.stats[settlement])
    ((member, due),) = server.redis.zrange("duestream:{q}:due", 0, -1, withscores=True)
    meta = json.loads(server.redis.hget("duestream:{q}:meta", member))
    assert {name: meta.get(name, "1") for name in fields} == fields
    wait = due - time.time() * 1000
    expected = {Settlement.SNOOZED: 3_600_000, Settlement.RELEASED: 0}.get(settlement, 7_200_000)
    if isinstance(error, RetryAfter):
        expected = 3_600_000
    assert abs(wait - expected) < 600_000


def test_a_failed_message_comes_back(server: Server, client: Client) -> None:
    attempts: list[int] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise RetryAfter(0)

    with working(server, handle):
        client.schedule("q", key="k")

        def arrived() -> bool:
            server.drain("q")
            return attempts == [1, 2, 3]

        eventually(arrived)


def test_dead_letters(server: Server, client: Client) -> None:
    def handle(message: Message) -> None:
        if message.id == "asked":
            raise DeadLetter("no such account")
        raise RuntimeError("fails")

    with working(server, handle) as worker:
        client.schedule("q", id="asked")
        client.schedule("q", id="last", max_attempts=1)
        eventually(lambda: worker.stats[Settlement.DEAD] == 2)
    letters = {letter["id"]: (letter["reason"], letter["error"], letter["group"]) for letter in dead(server)}
    assert letters == {"asked": ("dead_letter", "no such account", "g"), "last": ("max_attempts", "fails", "g")}


def test_a_retry_for_another_group_is_skipped(server: Server) -> None:
    server.redis.xgroup_create("duestream:{q}:stream", "g", "0", mkstream=True)
    server.redis.xadd("duestream:{q}:stream", {"id": "a", "for": "other"})
    got: list[Message] = []
    with working(server, got.append) as worker:
        eventually(lambda: worker.stats[Settlement.SKIPPED])
    assert not got


def test_serves_all_queues_and_partitions(server: Server, client: Client) -> None:
    got: list[tuple[str, int]] = []
    server.redis.hset("duestream:queues", "q", "1,3")
    with working(server, lambda m: got.append((m.queue, m.partition)), queues=["q", "other"]) as worker:
        eventually(lambda: server.redis.exists("duestream:{q/2}:stream", "duestream:{other}:stream") == 2)
        for n in range(3):
            client.schedule("q", id=next(f"m-{i}" for i in range(99) if partition_of(f"m-{i}", 3) == n))
        client.schedule("other")
        eventually(lambda: worker.stats[Settlement.ACKNOWLEDGED] == 4)
        # Partitions that are added are served, too.
        server.redis.hset("duestream:queues", "other", "1,2")
        eventually(lambda: server.redis.exists("duestream:{other/1}:stream"))
    assert sorted(got) == [("other", 0), ("q", 0), ("q", 1), ("q", 2)]


def test_extends_and_learns_of_losses_and_cancellations(server: Server, client: Client) -> None:
    server.redis.hset("duestream:{q}:policy", "visibility_ms", "6000")
    causes: dict[str, Any] = {}

    async def handle(message: Message) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            causes[message.id] = message.cause
            raise

    with working(server, handle) as worker:
        client.schedule("q", id="lost")
        client.schedule("q", id="cancelled")
        (lost, _), (cancelled, _) = eventually(lambda: len(rows := idle_times(server)) == 2 and rows)
        before = 0

        def extended() -> bool:
            nonlocal before
            earlier, before = before, idle_times(server)[0][1]
            return before < earlier

        eventually(extended)
        server.redis.xack("duestream:{q}:stream", "g", lost)
        server.redis.execute_command("XCLAIM", "duestream:{q}:stream", "g", worker.consumer, 0, cancelled,
                                     "RETRYCOUNT", 10**12 + 1, "JUSTID")
        eventually(lambda: worker.stats[Settlement.LOST] and worker.stats[Settlement.CANCELLED])
    assert isinstance(causes["lost"], LostError) and isinstance(causes["cancelled"], CancelledError)


def test_time_limits_of_handlers(server: Server, client: Client) -> None:
    over = threading.Event()

    async def patient(_: Message) -> None:
        await asyncio.sleep(60)

    def deaf(_: Message) -> None:
        over.wait(60)

    for handler in (patient, deaf):
        server.redis.flushall()
        with working(server, handler, abandon_after=0.1) as worker:
            client.schedule("q", id="a", handler_timeout=0.2, max_attempts=1)
            eventually(lambda: worker.stats[Settlement.DEAD])
        (letter,) = dead(server)
        assert letter["reason"] == "handler_timeout" and "not done after 0.2 s" in letter["error"]
    over.set()


def test_a_function_is_told_to_stop(server: Server, client: Client) -> None:
    told: list[Any] = []

    def handle(message: Message) -> None:
        assert message.wait(60)
        told.append(message.cause)
        raise RuntimeError("interrupted")

    with working(server, handle) as worker:
        client.schedule("q", id="a", handler_timeout=0.1, max_attempts=1)
        eventually(lambda: worker.stats[Settlement.DEAD])
    assert isinstance(told[0], HandlerTimeoutError)
    assert dead(server)[0]["error"] == "handler_timeout: not done after 0.1 s: interrupted"


def test_a_stop_finishes_what_has_begun_and_releases_the_rest(server: Server, client: Client) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(_: Message) -> None:
        begun.set()
        assert go_on.wait(60)

    server.redis.hset("duestream:queues", "q", "1,2")  # one place for two partitions: one entry has to wait
    running = Running(Worker(server.url, group="g", queues=["q"], handler=handle, concurrency=1))
    try:
        eventually(lambda: server.redis.exists("duestream:{q/1}:stream"))
        for n in range(2):
            client.schedule("q", id=next(f"m-{i}" for i in range(99) if partition_of(f"m-{i}", 2) == n))
        assert begun.wait(60)
    finally:
        running.worker.stop()
        go_on.set()
        running.stop()
    stats = running.worker.stats
    assert stats[Settlement.ACKNOWLEDGED] == 1 and not running.error
    assert pending(server) == pending(server, "duestream:{q/1}:stream") == 0


def test_a_handler_that_does_not_end_is_reported(server: Server, client: Client) -> None:
    begun, over = threading.Event(), threading.Event()

    def handle(_: Message) -> None:
        begun.set()
        over.wait(60)

    running = Running(Worker(server.url, group="g", queues=["q"], handler=handle, shutdown_timeout=0, cancel_grace=0.1))
    client.schedule("q")
    assert begun.wait(60)
    running.stop()
    assert isinstance(running.error, AbandonedError) and pending(server) == 1
    over.set()


def test_a_lost_group_is_created_again(server: Server, client: Client) -> None:
    got: list[str] = []
    with working(server, lambda m: got.append(m.id)):
        client.schedule("q", id="a")
        eventually(lambda: got == ["a"])
        server.redis.delete("duestream:{q}:stream")
        client.schedule("q", id="b")
        eventually(lambda: got == ["a", "b"])


def test_broken_connections_lose_nothing(server: Server, client: Client) -> None:
    got: set[str] = set()
    with working(server, lambda m: got.add(m.id)):
        for n in range(50):
            client.schedule("q", id=str(n))
            if n % 10 == 0:
                server.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        eventually(lambda: len(got) == 50)


def test_a_read_that_is_executed_late_is_taken_up(server: Server, client: Client,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the entry waited for its visibility timeout, because the worker had looked for it too early."""
    got: list[int] = []
    read, reads = Worker._read, 0

    async def fail_and_come_late(worker: Worker, command: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise UnavailableError("the connection broke")
        if reads == 2:  # the worker has rejoined meanwhile
            assert server.redis.xreadgroup("g", worker.consumer, {"duestream:{q}:stream": ">"})
            return None
        return await read(worker, command)

    monkeypatch.setattr(Worker, "_read", fail_and_come_late)
    client.schedule("q")
    with working(server, lambda message: got.append(message.attempt)):
        eventually(lambda: got)
    assert got == [1]


@pytest.mark.parametrize("error", [None, RuntimeError("fails")])
def test_a_settlement_whose_reply_was_lost_is_unknown(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch,
                                                      error: Optional[Exception]) -> None:
    """Regression: it was lost, as if another worker had the message, although the first try had settled it."""
    settled: list[Settlement] = []
    settle, tries = Worker._settle_some, 0

    async def lose_the_first_reply(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        answer = await settle(*arguments)
        if tries == 1:
            raise UnavailableError("the reply was lost")
        return answer

    def handle(message: Message) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(Worker, "_settle_some", lose_the_first_reply)
    with working(server, handle, settled=lambda message, settlement: settled.append(settlement)):
        client.schedule("q")
        eventually(lambda: settled)
    assert settled == [Settlement.UNKNOWN] and pending(server) == 0


def test_a_server_that_does_not_answer_in_time_does_not_end_the_worker(server: Server, client: Client,
                                                                       caplog: pytest.LogCaptureFixture) -> None:
    """Regression: with redis-py before version 5 the worker ended with CancelledError when an extend took too long."""
    server.redis.hset("duestream:defaults", "visibility_ms", 900)
    goes_on, begun = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        goes_on.wait(60)

    with working(server, handle) as worker:
        client.schedule("q")
        server.drain("q")
        assert begun.wait(60)

        def too_late() -> bool:  # a pause may begin between two extends
            server.redis.execute_command("CLIENT", "PAUSE", 700, "ALL")
            server.redis.ping()
            return "no reply in time" in caplog.text

        try:
            eventually(too_late)
        finally:
            goes_on.set()
        eventually(lambda: worker.stats.total() == 1)
        client.schedule("q")
        server.drain("q")
        eventually(lambda: worker.stats.total() == 2)


def test_results_are_kept(server: Server, client: Client) -> None:
    with working(server, lambda m: m.set_result("done")) as worker:
        client.schedule("q", id="a", keep_result=60)
        eventually(lambda: worker.stats[Settlement.ACKNOWLEDGED])
    result = client.result("q", "a", "g")
    assert (result.value, result.attempt) == (b"done", 1)
    with pytest.raises(NoResultError):
        client.result("q", "a", "other")


def test_waits_for_a_result(server: Server, client: Client) -> None:
    client.schedule("q", id="a", keep_result=60)
    with pytest.raises(NoResultError):
        client.wait_for("q", "a", "g", timeout=0.02)
    with working(server, lambda m: m.set_result("done")):
        assert client.wait_for("q", "a", "g", timeout=60).value == b"done"

        async def wait() -> bytes:
            async with AsyncClient(server.url) as other:
                return (await other.wait_for("q", "a", "g", timeout=60)).value

        assert asyncio.run(wait()) == b"done"


@pytest.mark.parametrize("in_coroutine", [False, True])
def test_the_next_attempt_gets_the_progress(server: Server, client: Client, in_coroutine: bool) -> None:
    got: list[tuple[int, bytes]] = []
    steps: list[tuple[bytes | str | None, Exception]] = [  # what a delivery stores, and how it ends
        ("page 3", RetryAfter(0)), (b"\0\xff", Snooze(0)), (None, Release()), (b"", RetryAfter(0)),
        ("last", DeadLetter("enough"))]

    def handle(message: Message) -> None:
        cursor, error = steps[len(got)]
        got.append((message.attempt, message.progress))
        if cursor is not None:
            message.save_progress(cursor)
        raise error

    async def handle_async(message: Message) -> None:
        cursor, error = steps[len(got)]
        got.append((message.attempt, message.progress))
        with pytest.raises(RuntimeError):
            message.save_progress("in the event loop")
        if cursor is not None:
            await message.save_progress_async(cursor)
        raise error

    with working(server, handle_async if in_coroutine else handle):
        client.schedule("q", id="a")

        def is_dead() -> bool:
            server.drain("q")
            return bool(dead(server))

        eventually(is_dead)
    # A snooze and a release do not count as attempts.
    assert got == [(1, b""), (2, b"page 3"), (2, b"\0\xff"), (2, b"\0\xff"), (3, b"")]
    assert dead(server)[0]["progress"] == "last" and not server.redis.exists("duestream:{q}:progress")
    with pytest.raises(InvalidError):
        Message("a").save_progress("x" * 4097)


def test_progress_of_a_lost_or_cancelled_message_is_refused(server: Server, client: Client) -> None:
    errors: list[type[Exception]] = []

    def handle(message: Message) -> None:
        if message.id == "lost":
            server.redis.xack("duestream:{q}:stream", "g", message.entry_id)
        else:
            server.redis.xclaim("duestream:{q}:stream", "g", message.consumer, 0, [message.entry_id], retrycount=10**12)
        try:
            message.save_progress("1")
        except (LostError, CancelledError) as error:
            errors.append(type(error))
            assert type(message.cause) is type(error)

    with working(server, handle, concurrency=1) as worker:
        client.schedule("q", id="lost")
        client.schedule("q", id="cancelled")
        eventually(lambda: sum(worker.stats.values()) == 2)
    assert errors == [LostError, CancelledError]


def test_paused_workers_take_nothing(server: Server, client: Client) -> None:
    got: list[str] = []
    server.redis.hset("duestream:{q}:policy", "held_workers", "1")
    with working(server, lambda m: got.append(m.queue), queues=["q", "other"]):
        client.schedule("q")
        client.schedule("other")
        eventually(lambda: got == ["other"])
        server.redis.hdel("duestream:{q}:policy", "held_workers")
        eventually(lambda: got == ["other", "q"])


@dataclasses.dataclass
class Order:
    id: int
    total: str = "0"


CLOSE_ORDER = Kind("close-order", "q", Order)
INDEX_ORDER: Kind[Order] = Kind("index-order", "q", Order, unique_by=lambda order: [order.id, 'é"<\u2028', True, None])


def test_kinds(server: Server, client: Client) -> None:
    mux = Mux()
    got: list[Any] = []

    @mux.handle(CLOSE_ORDER)
    def close(order: Order, message: Message) -> None:
        got.append((order, message.id))

    @mux.handle(Kind("", "q", encode=bytes, decode=bytes))
    async def raw(value: bytes, _: Message) -> None:
        got.append((value, ""))

    with working(server, mux=mux) as worker:
        CLOSE_ORDER.schedule(client, Order(42, "9.90"), id="a")
        client.schedule("q", b"raw")
        client.schedule("q", '{"id": 1, "later_field": []}', id="b", headers={"kind": "close-order"})
        client.schedule("q", '{"id": "1"}', id="c", headers={"kind": "close-order"})
        client.schedule("q", "null", id="d", headers={"kind": "close-order"})
        client.schedule("q", id="e", headers={"kind": "unknown"})

        async def send() -> None:
            async with AsyncClient(server.url) as other:
                await CLOSE_ORDER.schedule(other, Order(7), id="f")

        asyncio.run(send())
        eventually(lambda: sum(worker.stats.values()) == 7)
    assert sorted(map(str, got)) == sorted(map(str, [(Order(42, "9.90"), "a"), (b"raw", ""), (Order(1), "b"),
                                                     (Order(7), "f")]))
    letters = {letter["id"]: letter["error"] for letter in dead(server)}
    assert letters["c"] == 'the payload does not fit kind "close-order": field "id": str is no int'
    assert set(letters) == {"c", "d"} and worker.stats[Settlement.SNOOZED] == 1


def test_unique_ids_are_those_of_the_go_client() -> None:
    assert INDEX_ORDER.unique_id(Order(42)) == 'index-order:42,"é\\"<\\u2028",true,null'
    message = INDEX_ORDER.message(Order(42), delay=5)
    assert message.id == message.key == INDEX_ORDER.unique_id(Order(42))
    halves: Kind[int] = Kind("k", "q", unique_by=lambda value: [value / 2])
    long: Kind[str] = Kind("k", "q", unique_by=lambda value: [value])
    assert len(long.unique_id("x" * 300)) == len("k:#") + 64
    refusals: list[Callable[[], Any]] = [
        lambda: INDEX_ORDER.message(Order(1), id="x"), lambda: CLOSE_ORDER.unique_id(Order(1)),
        lambda: CLOSE_ORDER.message(Order(1), headers={"kind": "other"}), lambda: halves.message(1)]
    for refused in refusals:
        with pytest.raises(InvalidError):
            refused()


def test_unknown_kinds_are_snoozed_and_then_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    mux, now = Mux(), 0.0
    monkeypatch.setattr("duestream.kind.time.monotonic", lambda: now)

    def raised(snoozes: int, kind: str = "later") -> Exception:
        message = Message("a", queue="q", group="g", headers={"kind": kind}, extra={"snoozes": str(snoozes)})
        with pytest.raises(Exception) as info:
            mux.handler_of(message)(message)
        return info.value

    def delay(error: Exception) -> float:
        assert isinstance(error, Snooze)
        return error.delay_ms / 1000

    assert [delay(raised(n)) for n in (0, 1, 5, 6, MAX_UNKNOWN_SNOOZES)] == [1, 2, 32, 60, 60]
    now = UNKNOWN_KIND_TIME
    assert isinstance(raised(MAX_UNKNOWN_SNOOZES), DeadLetter)
    assert isinstance(raised(0, "two\nlines"), DeadLetter)


def test_policies() -> None:
    own = {"max_attempts": "7", "group:%C3%A9quipe%201:max_attempts": "5", "visibility_ms": "50",
           "retry_delays_ms": "0"}
    policy = Policy.parse(own, {"visibility_ms": "1000", "retry_delays_ms": "5,6", "max_snoozes": "3"}, "équipe 1")
    assert (policy.max_attempts, policy.visibility_ms, policy.retry_delays_ms) == (5, 1000, ())
    assert policy.attempts() == "5 max_snoozes=3"
    delays = [int(d) for d in Policy(retry_min_ms=100, retry_max_ms=1000).delays().split(",")]
    assert len(delays) == 5 and 50 <= delays[0] <= 150 and 500 <= delays[-1] <= 1000
    assert Policy(retry_delays_ms=(1, 2)).delays() == "1,2"


@pytest.mark.parametrize("options", [
    {"queues": ["q"]}, {"handler": print}, {"queues": "q", "handler": print}, {"queues": ["q", "q"], "handler": print},
    {"queues": ["no queue"], "handler": print}, {"queues": ["q"], "handler": print, "concurrency": 0},
    {"queues": ["q"], "handler": print, "consumer": "duestream-reclaim"}, {"mux": Mux()},
    {"queues": ["q"], "handler": print, "mux": Mux()}, {"queues": ["q"], "handler": print, "group": ""},
])
def test_refuses_configurations(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        Worker(group=options.pop("group", "g"), **options)


def test_a_fault_of_the_worker_ends_it(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    worker = Worker(server.url, group="g", queues=["q"], handler=lambda _: None)
    monkeypatch.setattr(worker, "_settle_some", fail)
    running = Running(worker)
    client.schedule("q")
    eventually(lambda: running.error)
    assert isinstance(running.error, ZeroDivisionError)
    running.stop()


def test_a_stop_survives_a_swallowed_cancellation(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def swallow(_: Worker) -> None:  # as redis-py does now and then
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    monkeypatch.setattr(Worker, "_watch_loop", swallow)
    with working(server, print):
        eventually(lambda: server.redis.exists("duestream:{q}:stream"))


def test_a_stop_while_redis_is_away_ends_the_worker(server: Server, client: Client) -> None:
    handled = threading.Event()
    server.redis.xgroup_create("duestream:{q}:stream", "g", "0", mkstream=True)

    def handle(_: Message) -> None:
        server.redis.execute_command("CLIENT", "PAUSE", 4000, "WRITE")  # no acknowledgement is answered meanwhile
        handled.set()

    running = Running(Worker(server.url, group="g", queues=["q"], handler=handle, shutdown_timeout=0, cancel_grace=0.1))
    try:
        client.schedule("q")
        assert handled.wait(60)
        running.stop()
    finally:
        server.redis.execute_command("CLIENT", "UNPAUSE")
    assert running.error is None and not running.worker.stats[Settlement.RETRIED]
