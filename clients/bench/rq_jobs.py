"""Measures rq in the same way as duestream_jobs.py. Debian: python3-rq.

A worker of rq handles one job at a time, so there is a process for each unit of concurrency. They are SimpleWorkers,
which are faster than the usual ones, because they do not fork for each job. Completed jobs are deleted.
"""
import logging
import multiprocessing
import sys

import redis
from rq import Queue, SimpleWorker
from rq.version import VERSION

from measure import PAYLOAD, measured, report

URL, MESSAGES, CONCURRENCY = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def handle(_: str) -> None:
    pass


def work() -> None:
    logging.getLogger("rq.worker").setLevel(logging.WARNING)
    connection = redis.Redis.from_url(URL)
    SimpleWorker([Queue("jobs", connection=connection)], connection=connection).work(burst=True)


def process() -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work) for _ in range(CONCURRENCY)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()


def main() -> None:
    queue = Queue("jobs", connection=redis.Redis.from_url(URL))

    def one_by_one() -> None:
        for _ in range(MESSAGES):
            queue.enqueue("rq_jobs.handle", PAYLOAD, result_ttl=0)

    def in_bulk() -> None:
        for start in range(0, MESSAGES, 1000):
            jobs = [Queue.prepare_data("rq_jobs.handle", (PAYLOAD,), result_ttl=0)
                    for _ in range(min(1000, MESSAGES - start))]
            queue.enqueue_many(jobs)

    measured(URL, "enqueue", one_by_one)
    measured(URL, "process", process)
    measured(URL, "enqueue in bulk", in_bulk)
    assert queue.count == MESSAGES
    report("Python", f"rq {VERSION}")


if __name__ == "__main__":
    main()
