#!/usr/bin/env python3
"""Schedules messages from Python with plain commands: redis-py 4 (Debian: python3-redis).

    python3 producer.py emails order-42 --in 900 --payload 'close the order' --header kind=order
    printf 'one\ntwo\n' | python3 producer.py emails --in 5      one message a line, with IDs of their own

An ID that is still scheduled is overwritten. DUESTREAM_REDIS_URL and DUESTREAM_PREFIX as for worker.py.
"""
import argparse
import json
import os
import sys
import uuid

import redis

PREFIX = os.environ.get("DUESTREAM_PREFIX", "duestream")


def register(client, queue):
    """Makes a queue known to the bridges; without it they find it by themselves within seconds or minutes."""
    if client.hsetnx(f"{PREFIX}:queues", queue, "1"):
        client.xadd(f"{PREFIX}:wake", {"queues": 1}, maxlen=1, approximate=False)


def schedule(client, queue, messages):
    """Takes (ID, payload, due time in Unix ms, meta) tuples, all of them or none. meta is a dict of strings."""
    key = f"{PREFIX}:{{{queue}}}:"
    earliest = None
    pipe = client.pipeline(transaction=True)  # MULTI: a bridge never sees a part of it
    for message_id, payload, due_ms, meta in messages:
        # What an earlier message of this ID has left is overwritten, or deleted.
        if payload:
            pipe.hset(key + "payload", message_id, payload)
        else:
            pipe.hdel(key + "payload", message_id)
        if meta:
            pipe.hset(key + "meta", message_id, json.dumps(meta))
        else:
            pipe.hdel(key + "meta", message_id)
        pipe.zadd(key + "due", {message_id: due_ms})  # after the body
        earliest = due_ms if earliest is None else min(earliest, due_ms)
    if earliest is not None:
        pipe.xadd(key + "wake", {"due_ms": earliest}, maxlen=1, approximate=False)
        pipe.execute()


def main():
    options = argparse.ArgumentParser(description="Schedules messages with plain Redis commands.")
    options.add_argument("queue")
    options.add_argument("id", nargs="?", help="omitted: one message per line of standard input, each with a new ID")
    options.add_argument("--in", dest="delay", type=float, default=0, metavar="SECONDS")
    options.add_argument("--payload", default="")
    options.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    options.add_argument("--max-attempts", type=int)
    args = options.parse_args()

    client = redis.Redis.from_url(os.environ.get("DUESTREAM_REDIS_URL", "redis://127.0.0.1:6379"))
    register(client, args.queue)
    seconds, micros = client.time()  # the server's clock decides
    due_ms = seconds * 1000 + micros // 1000 + round(args.delay * 1000)
    meta = {"h:" + name: value for name, _, value in (header.partition("=") for header in args.header)}
    if args.max_attempts:
        meta["max_attempts"] = str(args.max_attempts)

    if args.id:
        messages = [(args.id, args.payload, due_ms, meta)]
        schedule(client, args.queue, messages)
    else:
        messages = []
        for line in sys.stdin:
            messages.append((uuid.uuid4().hex, line.rstrip("\n"), due_ms, meta))
            if len(messages) % 500 == 0:
                schedule(client, args.queue, messages[-500:])
        schedule(client, args.queue, messages[len(messages) // 500 * 500:])
    print(f"{len(messages)} scheduled")


if __name__ == "__main__":
    main()
