"""Takes turns with redis-py's own lock, with the pauses it has by default."""

import redis

import turns


def main():
    place = turns.Place()
    lock = redis.Redis(port=place.port).lock(place.name, timeout=10)
    place.take_turns(lock.acquire, lock.release)


main()
