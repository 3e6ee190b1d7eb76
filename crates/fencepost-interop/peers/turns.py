"""What every peer does with its lock: read a number from a file, wait a little, write the next one, log the time."""

import os
import sys
import time


TURN = int(os.environ["TURN_MS"]) / 1000


class Place:
    """The port, the lock's name, the folder, and this peer's own number."""

    def __init__(self):
        port, self.name, self.folder, self.number = sys.argv[-4:]
        self.port = int(port)

    def path(self, name):
        return os.path.join(self.folder, name)

    def take_turns(self, acquire, release, joined=lambda: 0):
        """Takes turns from the start to the stop; `joined` returns the queue position, as a number that grows."""
        counter, stop = self.path("counter"), self.path("stop")
        with open(self.path("theirs-" + self.number), "w", buffering=1) as log:
            while not os.path.exists(self.path("start")):
                time.sleep(0.005)
            while not os.path.exists(stop):
                acquire()
                with open(counter) as file:
                    count = int(file.read())
                time.sleep(TURN)
                with open(counter, "w") as file:
                    file.write(str(count + 1))
                log.write("%d %d %d\n" % (time.time() * 1000, count, joined()))
                release()
