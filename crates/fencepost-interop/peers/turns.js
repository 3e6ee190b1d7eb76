// What every peer does with its lock: read a number from a file, wait a little, write the next one, log the time.
const fs = require("fs");
const path = require("path");
const Redis = require("ioredis");

const [port, name, folder, number] = process.argv.slice(2);
const turn = Number(process.env.TURN_MS);
const file = (name) => path.join(folder, name);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function takeTurns(make) {
  const redis = new Redis(Number(port));
  const { acquire, release } = make(redis, name);
  await redis.ping();
  fs.writeFileSync(file(`theirs-${number}`), "");
  while (!fs.existsSync(file("start"))) await pause(5);
  while (!fs.existsSync(file("stop"))) {
    const lock = await acquire();
    const count = Number(fs.readFileSync(file("counter"), "utf8"));
    await pause(turn);
    fs.writeFileSync(file("counter"), String(count + 1));
    fs.appendFileSync(file(`theirs-${number}`), `${Date.now()} ${count} 0\n`);
    await release(lock);
  }
  await redis.quit();
}

// Takes turns from the start to the stop, with the lock that `make` creates.
module.exports = (make) =>
  takeTurns(make).catch((error) => {
    console.error(error);
    process.exit(1);
  });
