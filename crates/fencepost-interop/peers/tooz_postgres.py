"""Takes turns with the advisory lock of tooz's PostgreSQL driver."""

from tooz import coordination

import turns


def main():
    place = turns.Place()
    url = "postgresql://postgres@127.0.0.1:%d/postgres" % place.port
    coordinator = coordination.get_coordinator(url, b"peer-" + place.number.encode())
    coordinator.start()
    lock = coordinator.get_lock(place.name.encode())
    place.take_turns(lock.acquire, lock.release)
    coordinator.stop()


main()
