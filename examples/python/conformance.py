#!/usr/bin/env python3
"""Runs the example's worker or producer in the form that `duestream conformance` tests.

    duestream conformance --worker --level complete -- python3 examples/python/conformance.py worker
    duestream conformance --producer --level complete -- python3 examples/python/conformance.py producer
"""
import base64
import json
import os
import sys
import time

import redis

from duestream import connect
from producer import Message, Producer
from worker import DeadLetter, Retry, Worker, run_until_signal


def say(**line):
    sys.stdout.write(json.dumps(line) + "\n")  # one write for a line, because each partition has a thread
    sys.stdout.flush()


def handle(message):
    say(id=message.id, attempt=message.attempt, payload=base64.b64encode(message.payload).decode(), headers=message.headers)
    what, _, number = message.headers.get("work", "ok").partition(" ")
    if what == "slow":
        time.sleep(int(number) / 1000)
    elif what == "fail" and message.attempt <= int(number):
        raise RuntimeError("asked to fail")
    elif what == "retry" and message.attempt == 1:
        raise Retry("asked to retry", int(number))
    elif what == "dead":
        raise DeadLetter("asked to die")


def produce(queue):
    producer = Producer(connect(), queue)
    for line in sys.stdin:
        order = json.loads(line)
        message = Message(order["id"], order["due_ms"], base64.b64decode(order.get("payload", "")), order.get("headers", {}),
                          order.get("max_attempts"), order.get("expires_ms"), order.get("dedup_ms", 0))
        try:
            refused = producer.schedule([message])
            say(id=message.id, ok=not refused, **({"error": "scheduled already"} if refused else {}))
        except redis.RedisError as err:
            say(id=message.id, ok=False, error=str(err))


if sys.argv[1:] == ["worker"]:
    run_until_signal(Worker(connect(), os.environ["QUEUE"], os.environ["GROUP"], handle, os.environ["CONSUMER"]))
elif sys.argv[1:] == ["producer"]:
    produce(os.environ["QUEUE"])
else:
    sys.exit(__doc__)
