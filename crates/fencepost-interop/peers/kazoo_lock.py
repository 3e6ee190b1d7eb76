"""Takes turns with kazoo's lock.

usage: kazoo_lock.py [--also PATTERN] PORT PATH FOLDER NUMBER; with a pattern it waits for nodes of other libraries, too
"""

import sys

from kazoo.client import KazooClient

import turns


def main():
    place = turns.Place()
    client = KazooClient(hosts="127.0.0.1:%d" % place.port)
    client.start()
    patterns = [sys.argv[2]] if sys.argv[1] == "--also" else []
    lock = client.Lock(place.name, extra_lock_patterns=patterns)

    def joined():
        # The transaction that created the node.
        return client.exists(place.name + "/" + lock.node).czxid

    place.take_turns(lock.acquire, lock.release, joined)
    client.stop()
    client.close()


main()
