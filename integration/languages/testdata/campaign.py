"""Runs a worker or a producer of integration/campaign with the Python package: see campaign.Language."""
import asyncio
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple, Optional

sys.path.insert(0, str(Path(__file__).parents[3] / "clients" / "python" / "src"))

from duestream import (AbandonedError, Client, DeadLetter, DuestreamError, DuplicateError, FullError,  # noqa: E402
                       Message, NewMessage, NotScheduledError, OldBridgeError, Receipt, Settlement, Snooze,
                       UnavailableError, Worker)

if "DUESTREAM_TEST_LOG" not in os.environ:
    logging.disable(logging.CRITICAL)

PART: dict[str, Any] = json.loads(os.environ["DUESTREAM_CAMPAIGN_PART"])
RULES: dict[str, Any] = PART["Rules"]
VISIBILITY = PART["Visibility"] / 1e9  # seconds
QUEUES = {"m": "main", "s": "sacrificial"}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
ABANDONED = 4  # exit status
FEATURES = "zyqkvbtijun"
CATCHES_UP = RULES["CatchUp"] / 1000


class Ledger:
    """The file in which this process records its steps, each by one write."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._file = os.open(PART["Ledger"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self.write(("is", PART["Name"], PART["Role"], PART["Group"] or "-"))

    def write(self, *lines: tuple[Any, ...]) -> None:
        with self._turn:
            now = time.time_ns() // 1000
            text = "".join(" ".join(map(str, (now, *line))) + "\n" for line in lines).encode()
            try:
                if os.write(self._file, text) == len(text):
                    return
            except OSError:
                pass
            os._exit(3)  # the audit would miss what this process does

    def pulse(self) -> None:
        """Records when this process did not run."""
        last = time.time_ns()
        while True:
            time.sleep(0.02)
            now = time.time_ns()
            if now - last > 250e6:
                self.write(("stall", "-", last // 1000))
            last = now


class Plan(NamedTuple):
    queue: str
    kind: str
    n: int


def plan_of(id: str) -> Plan:
    text = id.partition("@")[0].partition("!")[0].rpartition("-")[2]
    return Plan(QUEUES[text[0]], text[1], int(text[2:] or 0))


def fnv(text: str) -> int:
    hashed = 14695981039346656037
    for byte in text.encode():
        hashed = (hashed ^ byte) * 1099511628211 % 2**64
    return hashed


def booked_as(id: str, payload: bytes) -> str:
    """Returns the name of a message in ledgers: a version is a message of its own."""
    if plan_of(id).kind != "v":
        return id
    return f"{id}!{payload.partition(b';')[0].decode()}"


# ---- worker ---------------------------------------------------------------------------------------------------------


def handling(message: Message, plan: Plan) -> tuple[float, str, bool]:
    """Returns how long a handler takes, how it ends, and whether it stops when it is told to."""
    share = random.Random(f"{message.id}/{message.attempt}").random()
    slow = (RULES["SlowMin"] + share * (RULES["SlowMax"] - RULES["SlowMin"])) / 1000
    long = VISIBILITY + share * VISIBILITY
    if plan.kind in "fg":
        return slow if plan.kind == "g" else 0, "fail" if message.attempt <= plan.n else "ok", False
    if plan.kind == "p":
        if message.group != "a":
            return VISIBILITY + long, "ok", True
        return (2 * slow, "fail", False) if message.attempt == 1 else (0, "ok", False)
    return {"s": (slow, "ok", False), "d": (0, "fail", False), "e": (slow, "fail", False), "x": (slow, "dead", False),
            "n": (3 * slow, "ok", True), "l": (long, "ok", True)}.get(plan.kind, (0, "ok", False))


def featured(message: Message, plan: Plan) -> str:
    """Returns how a handler of a message with a special feature ends."""
    snoozes = int(message.extra.get("snoozes", 0))
    if plan.kind == "z" and snoozes < plan.n:
        return "snooze"
    if plan.kind == "k" and message.group != "a" and snoozes < RULES["Patient"]:
        return "snooze"
    fails = {"q": True, "y": message.attempt <= plan.n, "j": message.attempt < plan.n}
    if fails.get(plan.kind, False):
        return "fail"
    return "ok"


class Handlers:
    def __init__(self) -> None:
        self.ledger: Ledger

    def begin(self, message: Message) -> tuple[Plan, str, float, str, bool]:
        name, plan = booked_as(message.id, message.payload), plan_of(message.id)
        due = 0 if message.due is None else (message.due - EPOCH) // timedelta(milliseconds=1)
        self.ledger.write(("s", name, message.entry_id, message.attempt, message.recipient or "-", due))
        if plan.kind == "u":  # its end is recorded beforehand, because the worker may abandon it
            self.ledger.write(("e", name, message.entry_id, "hang"))
            return plan, name, RULES["HangFor"] / 1000, "hang", fnv(message.id) % 2 == 1
        takes, end, heeds = handling(message, plan)
        return plan, name, takes, end, heeds

    def finish(self, message: Message, plan: Plan, name: str, end: str) -> None:
        if end == "hang":
            raise RuntimeError("hung")
        if plan.kind in FEATURES and end != "cut":
            end = featured(message, plan) if plan.kind != "n" else end
        self.ledger.write(("e", name, message.entry_id, end))
        if end == "snooze":
            raise Snooze(RULES["SnoozeFor"] / 1000)
        if end == "fail":
            raise RuntimeError("this one fails")
        if end == "dead":
            raise DeadLetter("this one is dead-lettered by its handler")

    def handle(self, message: Message) -> None:
        plan, name, takes, end, heeds = self.begin(message)
        if not heeds:
            time.sleep(takes)
        elif message.wait(takes) and message.cause is not None:
            if end != "hang":
                self.finish(message, plan, name, "cut")
            raise message.cause
        self.finish(message, plan, name, end)

    async def handle_async(self, message: Message) -> None:
        plan, name, takes, end, heeds = self.begin(message)
        until = time.monotonic() + takes
        while (left := until - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if heeds:
                    if end != "hang":
                        self.finish(message, plan, name, "cut")
                    raise
        self.finish(message, plan, name, end)

    def settled(self, message: Message, settlement: Settlement) -> None:
        if settlement is not Settlement.SKIPPED:  # its handler was never called
            name = booked_as(message.id, message.payload)
            self.ledger.write(("x", name, message.entry_id, settlement.value))


def work() -> int:
    handlers = Handlers()
    # The workers of one group have threads, and those of the other one coroutines.
    worker = Worker(PART["URL"], prefix=PART["Prefix"], queues=list(QUEUES.values()), group=PART["Group"],
                    consumer=PART["Name"], concurrency=PART["Concurrency"],
                    handler=handlers.handle if PART["Group"] == "a" else handlers.handle_async,
                    shutdown_timeout=RULES["Shutdown"] / 1000, cancel_grace=RULES["StopWithin"] / 1000,
                    abandon_after=RULES["AbandonAfter"] / 1000, settled=handlers.settled)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    handlers.ledger = Ledger()
    threading.Thread(target=handlers.ledger.pulse, daemon=True).start()
    try:
        worker.run()
    except AbandonedError:
        return ABANDONED
    return 0


# ---- producer -------------------------------------------------------------------------------------------------------


def verdict(name: str, receipt: Optional[Receipt], error: Optional[Exception]) -> tuple[Any, ...]:
    """Returns the ledger's line for the result of a send."""
    if receipt is not None:
        return "taken", name, (receipt.due - EPOCH) // timedelta(milliseconds=1)
    if isinstance(error, DuplicateError):
        return "dup", name
    if isinstance(error, UnavailableError):
        return "maybe", name
    if isinstance(error, FullError):
        return "refused", name, "full"
    if isinstance(error, OldBridgeError):
        return "refused", name, "old-bridge"
    print(f"{PART['Name']}: {name}: {error!r}", file=sys.stderr, flush=True)
    return "refused", name, "other"


def change(call: Any) -> tuple[str, Any]:
    """Makes a change, and returns its result for the ledger, and its value."""
    try:
        return "ok", call()
    except NotScheduledError:
        return "no", None
    except DuestreamError as error:
        if not isinstance(error, UnavailableError):
            print(f"{PART['Name']}: {error!r}", file=sys.stderr, flush=True)
        return "maybe", None


class Producer:
    def __init__(self) -> None:
        self.stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self.stopped.set())
        self._ledger = Ledger()
        threading.Thread(target=self._ledger.pulse, daemon=True).start()
        self._client = Client(PART["URL"], prefix=PART["Prefix"], retry_timeout=RULES["RetryTimeout"] / 1000)
        self._number, self._turn = 0, threading.Lock()

    def produce(self) -> None:
        lines = [threading.Thread(target=self._line, args=(random.Random(f"{PART['Seed']}/{i}"),))
                 for i in range(RULES["Lines"])]
        for line in lines:
            line.start()
        for line in lines:
            line.join()
        for thread in threading.enumerate():  # what follows on messages that were sent
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        self._client.close()

    def _line(self, chance: random.Random) -> None:
        rate, owed, last = PART["Rate"] / RULES["Lines"], 0.0, time.monotonic()
        while not self.stopped.wait(RULES["Tick"] / 1000):
            now = time.monotonic()
            owed = min(owed + (now - last) * rate, CATCHES_UP * rate)
            last = now
            batches: dict[str, list[NewMessage]] = {queue: [] for queue in QUEUES.values()}
            for _ in range(int(owed)):
                plan = self._draw(chance)
                batches[plan.queue].append(self._message(plan, chance))
            owed -= int(owed)
            for queue, batch in batches.items():
                if batch:
                    self._send(queue, batch, chance)

    def _draw(self, chance: random.Random) -> Plan:
        queue = QUEUES["s" if chance.random() * 100 < RULES["SidePercent"] else "m"]
        at = chance.random() * 1000
        for kind in RULES["Kinds"]:
            at -= kind["Weight"]
            if at < 0:
                n = chance.randint(1, kind["Most"]) if kind["Most"] else 0
                return Plan(queue, kind["Kind"], n + 1 if kind["Kind"] == "v" else n)
        return Plan(queue, "o", 0)

    def _message(self, plan: Plan, chance: random.Random) -> NewMessage:
        with self._turn:
            self._number += 1
            number = self._number
        id = f"{PART['Name']}-{number}-{plan.queue[0]}{plan.kind}{plan.n or ''}"
        draw = chance.random()
        size = 0 if draw < 0.2 else chance.randrange(300) if draw < 0.97 else chance.randrange(8 << 10)
        fields: dict[str, Any] = {"payload": bytes(size), "delay": delay_of(chance)}
        if plan.kind in "deu":
            fields["max_attempts"] = plan.n
        if plan.kind in "crbt":
            fields["delay"] = 2 + chance.randrange(3000) / 1000
        if plan.kind in "bt":
            fields["headers"] = {"bulk": "cancel" if plan.kind == "b" else "move"}
        if plan.kind == "w":
            fields["dedup"] = RULES["DedupWindow"] / 1000
        if plan.kind == "y":
            fields["retry_delays"] = [gap / 1000 for gap in RULES["Gaps"]]
        if plan.kind == "q":
            fields["retry_for"], fields["retry_delays"] = RULES["Oldest"] / 1000, [RULES["AgeGap"] / 1000]
        if plan.kind == "k":
            fields["max_crashes"] = plan.n
        if plan.kind == "v":
            fields["delay"], fields["payload"] = 1 + chance.randrange(2000) / 1000, b"1;"
        if plan.kind == "i":
            fields["spread"] = RULES["Spread"] / 1000
        if plan.kind == "j":
            fields["key"] = f"key-{fnv(id) % RULES['Keys']}"
        if plan.kind == "u":
            fields["handler_timeout"] = RULES["HangLimit"] / 1000
        return NewMessage(id=id, **fields)

    def _send(self, queue: str, batch: list[NewMessage], chance: random.Random) -> None:
        names = [booked_as(m.id or "", m.body()) for m in batch]
        self._ledger.write(*(("try", name, millis(m.delay)) for name, m in zip(names, batch)))
        try:
            results = [(r.receipt, r.error) for r in self._client.send_batch(queue, batch)]
        except DuestreamError as error:
            results = [(None, error)] * len(batch)
        verdicts = [verdict(name, *result) for name, result in zip(names, results)]
        self._ledger.write(*verdicts)
        for message, line, (receipt, _) in zip(batch, verdicts, results):
            self._follow(queue, message, line[0], receipt, chance)

    def _follow(self, queue: str, message: NewMessage, said: str, receipt: Optional[Receipt],
                chance: random.Random) -> None:
        """Does the producer's part of a plan after the message was sent."""
        id = message.id or ""
        plan, wait = plan_of(id), chance.randrange(2500) / 1000
        if plan.kind == "v" and receipt is not None:
            drawn = [chance.randrange(1500) / 1000 for _ in range(plan.n + 1)]
            threading.Thread(target=self._replace, args=(queue, id, receipt.due, plan.n, drawn)).start()
        elif plan.kind == "c" and said == "taken":
            threading.Timer(wait, self._cancel, (queue, id)).start()
        elif plan.kind == "r" and said == "taken":
            threading.Timer(wait, self._move, (queue, id, delay_of(chance) + 0.05)).start()
        elif plan.kind == "w" and said in ("taken", "maybe"):
            threading.Timer(wait, self._again, (queue, message)).start()

    def _cancel(self, queue: str, id: str) -> None:
        self._ledger.write(("cancel", id, "asked"))
        result, _ = change(lambda: self._client.cancel(queue, id))
        self._ledger.write(("cancel", id, result))

    def _move(self, queue: str, id: str, to: float) -> None:
        self._ledger.write(("move", id, "asked", 0))
        result, due = change(lambda: self._client.reschedule(queue, id, delay=to))
        self._ledger.write(("move", id, result, 0 if due is None else (due - EPOCH) // timedelta(milliseconds=1)))

    def _again(self, queue: str, message: NewMessage) -> None:
        self._ledger.write(("try", message.id, millis(message.delay)))
        self._ledger.write(verdict(message.id or "", *self._one(queue, message)))

    def _one(self, queue: str, message: NewMessage) -> tuple[Optional[Receipt], Optional[DuestreamError]]:
        try:
            return self._client.send(queue, message), None
        except DuestreamError as error:
            return None, error

    def _replace(self, queue: str, id: str, due: datetime, last: int, drawn: list[float]) -> None:
        """Sends the versions 2 to last of a message, one after another."""
        for n in range(2, last + 1):
            time.sleep(drawn[n])
            before, name, delay = f"{id}!{n - 1}", f"{id}!{n}", 0.3 + drawn[n - 1]
            self._ledger.write(("over", before, "asked"), ("try", name, millis(delay)))
            receipt, error = self._one(queue, NewMessage(f"{n};", id=id, delay=delay, replace="replace"))
            not_due = datetime.now(timezone.utc) < due  # so the version before cannot have been delivered
            line, replaced = verdict(name, receipt, error), "maybe"
            if receipt is not None and (receipt.replaced or not_due):
                replaced = "ok"
            elif line[0] == "refused":
                replaced = "no"
            self._ledger.write(line, ("over", before, replaced))
            if receipt is None:
                return
            due = receipt.due


def delay_of(chance: random.Random) -> float:
    if chance.randrange(3) == 0:
        return 0
    return int(min(chance.expovariate(1), 5) * 1000) / 1000


def millis(delay: Any) -> int:
    return round(delay * 1000)


if PART["Role"] == "worker":
    status = work()
    sys.stdout.flush()
    os._exit(status)  # abandoned handlers must not hold the process
Producer().produce()
