// Takes turns with the Mutex of redis-semaphore, with the pauses it has by default, but without end.
const { Mutex } = require("redis-semaphore");

require("./turns")((redis, name) => {
  const acquire = async () => {
    const mutex = new Mutex(redis, name, { acquireTimeout: 600000 });
    await mutex.acquire();
    return mutex;
  };
  return { acquire, release: (mutex) => mutex.release() };
});
