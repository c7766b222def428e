"""Measures the Python package: python3 duestream_jobs.py URL MESSAGES CONCURRENCY. See bench.py."""
import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "python" / "src"))

from duestream import Client, Message, NewMessage, Worker, __version__  # noqa: E402
from measure import PAYLOAD, measured, report  # noqa: E402

URL, MESSAGES, CONCURRENCY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
QUEUE = "jobs"


def handle(_: Message) -> None:
    pass


async def handle_async(_: Message) -> None:
    pass


def process(handler: Any) -> None:
    left = MESSAGES

    def settled(*_: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            worker.stop()

    worker = Worker(URL, group="bench", queues=[QUEUE], handler=handler, concurrency=CONCURRENCY, settled=settled)
    asyncio.run(worker.serve())


def main() -> None:
    with Client(URL) as client:
        def one_by_one() -> None:
            for _ in range(MESSAGES):
                client.schedule(QUEUE, PAYLOAD)

        def in_bulk() -> None:
            for start in range(0, MESSAGES, 1000):
                client.send_batch(QUEUE, [NewMessage(PAYLOAD)] * min(1000, MESSAGES - start))

        measured(URL, "enqueue", one_by_one)
        measured(URL, "process", lambda: process(handle))
        measured(URL, "enqueue in bulk", in_bulk)
        measured(URL, "process with asyncio", lambda: process(handle_async))
    report("Python", f"duestream {__version__}")


main()
