#!/usr/bin/env python3
"""Measures the clients beside the usual clients of their languages, and prints a table.

    make clients-bench

Each program stores jobs, and handles them with a handler that does nothing. Each run has a redis-server of its own,
which writes nothing to disk. A bridge runs beside duestream, as in production. The table has medians.
"""
import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import redis

HERE = Path(__file__).parent
SYSTEMS = {"duestream_jobs.py": sys.executable, "rq_jobs.py": sys.executable, "duestream_jobs.js": "node",
           "bullmq_jobs.js": "node"}


@contextlib.contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def server() -> Iterator[str]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory, running("redis-server", "--port", str(port), "--save", "",
                                                             "--dir", directory):
        connection = redis.Redis(port=port)
        while True:
            try:
                connection.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}"


def run(program: str, messages: int, concurrency: int, bridge: Optional[str]) -> Any:
    with server() as url, contextlib.ExitStack() as stack:
        if bridge and program.startswith("duestream"):
            stack.enter_context(running(bridge, "serve", "--redis", url))
        output = subprocess.run([SYSTEMS[program], str(HERE / program), url, str(messages), str(concurrency)],
                                stdout=subprocess.PIPE, check=True, text=True,
                                env={**os.environ, "PYTHONPATH": str(HERE)}).stdout
        return json.loads(output.splitlines()[-1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--messages", type=int, default=10_000)
    options.add_argument("--concurrency", type=int, default=10)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--bridge", help="path of the command duestream, which runs as a bridge")
    options.add_argument("program", nargs="*", default=list(SYSTEMS), help=f"some of: {', '.join(SYSTEMS)}")
    given = options.parse_args()
    results: dict[str, list[Any]] = {program: [] for program in given.program}
    for _ in range(given.runs):  # in turn, so that a busy moment of the machine meets all
        for program in given.program:
            results[program].append(run(program, given.messages, given.concurrency, given.bridge))
    version = subprocess.run(["redis-server", "--version"], stdout=subprocess.PIPE, text=True).stdout.split("v=")[1]
    print(f"{given.messages} jobs, concurrency {given.concurrency}, median of {given.runs} runs; Redis "
          f"{version.split()[0]}, Python {platform.python_version()}, {os.cpu_count()} cores\n")
    print("| Language | Client | Step | Jobs per second | Server CPU for 10,000 jobs |\n|---|---|---|---|---|")
    for runs in results.values():
        for step in runs[0]["steps"]:
            seconds = statistics.median(one["steps"][step]["seconds"] for one in runs)
            cpu = statistics.median(one["steps"][step]["cpu"] for one in runs) * 10_000 / given.messages
            print(f"| {runs[0]['language']} | {runs[0]['client']} | {step} | {given.messages / seconds:,.0f} "
                  f"| {cpu:.2f} s |")


main()
