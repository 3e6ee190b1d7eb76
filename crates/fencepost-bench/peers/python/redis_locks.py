"""A worker of the bench: redis-py's lock or python-redis-lock.

usage: redis_locks.py redis-py|python-redis-lock KIND URL TASKS MILLIS HOLD_MS THINK_MS
"""

import sys

import redis

import worker

TTL = 30


def main():
    order = worker.Order()
    # python-redis-lock waits in a command that blocks, and every thread needs a connection.
    client = redis.Redis.from_url(order.url, socket_timeout=None, max_connections=1024)
    # Connecting is not measured.
    for connection in [client.connection_pool.get_connection() for _ in range(order.tasks)]:
        client.connection_pool.release(connection)
    if sys.argv[1] == "redis-py":
        order.follow(lambda name: client.lock(name, timeout=TTL))
    else:
        import redis_lock

        order.follow(lambda name: redis_lock.Lock(client, name, expire=TTL))


main()
