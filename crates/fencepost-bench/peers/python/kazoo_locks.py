"""A worker of the bench: kazoo's lock.

usage: kazoo_locks.py KIND URL TASKS MILLIS HOLD_MS THINK_MS
"""

import urllib.parse

from kazoo.client import KazooClient

import worker

TTL = 30


def main():
    order = worker.Order()
    place = urllib.parse.urlsplit(order.url)
    client = KazooClient(hosts=place.netloc, timeout=TTL)
    client.start()
    order.follow(lambda name: client.Lock(f"{place.path}/{name}"))
    client.stop()
    client.close()


main()
