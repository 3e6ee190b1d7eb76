"""Takes turns with python-redis-lock."""

import redis
import redis_lock

import turns


def main():
    place = turns.Place()
    lock = redis_lock.Lock(redis.Redis(port=place.port), place.name, expire=10)
    place.take_turns(lock.acquire, lock.release)


main()
