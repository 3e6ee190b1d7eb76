"""Takes turns with the lock of tooz's Redis driver."""

from tooz import coordination

import turns


def main():
    place = turns.Place()
    url = "redis://127.0.0.1:%d?lock_timeout=10" % place.port
    coordinator = coordination.get_coordinator(url, b"peer-" + place.number.encode())
    coordinator.start()
    lock = coordinator.get_lock(place.name.encode())
    place.take_turns(lock.acquire, lock.release)
    coordinator.stop()


main()
