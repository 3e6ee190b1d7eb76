"""What every worker of the bench in Python does (see src/workers.rs); tasks are threads. The words of an order are the last
ones of the command line: KIND URL TASKS MILLIS HOLD_MS THINK_MS."""

import json
import os
import sys
import threading
import time


def now():
    # One clock for all processes.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


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
    print(f"{sys.argv[0]}: {args.exc_value!r}", file=sys.stderr, flush=True)
    os._exit(1)


class Order:
    """What the worker is told to do."""

    def __init__(self):
        self.kind, self.url, *numbers = sys.argv[-6:]
        self.tasks, self.millis, hold, think = (int(number) for number in numbers)
        self.hold, self.think = hold / 1e3, think / 1e3

    def follow(self, lock_of):
        """Says that it is ready, works when told, with locks of these names, and says what it found."""
        print("ready", flush=True)
        sys.stdin.readline()
        start = now()
        end = start + self.millis / 1e3
        threading.excepthook = failed
        founds, threads = [], []
        for task in range(self.tasks):
            found = {"waits": [], "spans": []}
            founds.append(found)
            if self.kind == "contended":
                work, args = contended, (lock_of("bench"), end, self.hold, self.think, found)
            else:
                work, args = uncontended, (lock_of(f"bench/{os.getpid()}/{task}"), end, found)
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
