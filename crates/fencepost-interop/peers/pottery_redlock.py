"""Takes turns with pottery's Redlock on a single server, with the pauses it has by default."""

import pottery
import redis

import turns


def main():
    place = turns.Place()
    masters = {redis.Redis(port=place.port)}
    lock = pottery.Redlock(key=place.name, masters=masters, auto_release_time=10)
    place.take_turns(lock.acquire, lock.release)


main()
