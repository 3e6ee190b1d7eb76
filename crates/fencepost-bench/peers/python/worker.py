"""A worker of the bench (see src/workers.rs): redis-py's lock or python-redis-lock, with threads as tasks.

usage: worker.py redis-py|python-redis-lock KIND URL TASKS MILLIS HOLD_MS THINK_MS
"""

import json
import os
import sys
import threading
import time

import redis

TTL = 30


def now():
    # One clock for all processes.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def lock_of(library, client, name):
    if library == "redis-py":
        return client.lock(name, timeout=TTL)
    import redis_lock

    return redis_lock.Lock(client, name, expire=TTL)


def uncontended(lock, end, found):
    while True:
        begun = now()
        if begun >= end:
            return
        lock.acquire()
        lock.release()
        found["waits"].append(now() - begun)


def contended(lock, end, hold, think, found):
    while now() < end:
        asked = now()
        lock.acquire()
        entered = now()
        time.sleep(hold)
        left = now()
        lock.release()
        found["waits"].append(entered - asked)
        found["spans"].append((entered, left))
        if think:
            time.sleep(think)


def failed(args):
    # A thread that dies would otherwise only be missing in the figures.
    print(f"{sys.argv[1]}: {args.exc_value!r}", file=sys.stderr, flush=True)
    os._exit(1)


def main():
    library, kind, url, *numbers = sys.argv[1:]
    tasks, millis, hold, think = (int(number) for number in numbers)
    # python-redis-lock waits in a command that blocks, and every thread needs a connection.
    client = redis.Redis.from_url(url, socket_timeout=None, max_connections=1024)
    # To connect is not what is measured.
    for connection in [client.connection_pool.get_connection() for _ in range(tasks)]:
        client.connection_pool.release(connection)
    print("ready", flush=True)
    sys.stdin.readline()
    start = now()
    end = start + millis / 1e3
    threading.excepthook = failed
    founds, threads = [], []
    for task in range(tasks):
        found = {"waits": [], "spans": []}
        founds.append(found)
        if kind == "contended":
            work, args = contended, (lock_of(library, client, "bench"), end, hold / 1e3, think / 1e3, found)
        else:
            work, args = uncontended, (lock_of(library, client, f"bench/{os.getpid()}/{task}"), end, found)
        threads.append(threading.Thread(target=work, args=args))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        json.dumps(
            {
                "turns": [len(found["waits"]) for found in founds],
                "waits": [wait for found in founds for wait in found["waits"]],
                "spans": [span for found in founds for span in found["spans"]],
                "wall": now() - start,
            }
        ),
        flush=True,
    )


main()
