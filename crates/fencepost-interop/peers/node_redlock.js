// Takes turns with node-redlock, with the pauses it has by default, but without end.
const { default: Redlock } = require("redlock");

require("./turns")((redis, name) => {
  const redlock = new Redlock([redis], { retryCount: -1 });
  return { acquire: () => redlock.acquire([name], 10000), release: (lock) => lock.release() };
});
