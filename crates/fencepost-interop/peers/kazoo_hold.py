"""Tries to acquire a lock of kazoo once, prints the outcome, and releases it when its input ends.

usage: kazoo_hold.py RECIPE PORT PATH; the recipe is Lock, ReadLock, WriteLock or Semaphore
"""

import sys

from kazoo.client import KazooClient


def main():
    recipe, port, path = sys.argv[1:]
    client = KazooClient(hosts="127.0.0.1:" + port)
    client.start()
    lock = getattr(client, recipe)(path)
    print("held" if lock.acquire(blocking=False) else "busy", flush=True)
    sys.stdin.read()
    lock.release()
    client.stop()
    client.close()


main()
