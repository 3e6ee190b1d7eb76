// Takes turns with node-redlock, with the pauses it has by default, but without end.
const fs = require("fs");
const path = require("path");
const Redis = require("ioredis");
const { default: Redlock } = require("redlock");

const [port, name, folder, number] = process.argv.slice(2);
const file = (name) => path.join(folder, name);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function main() {
  const redis = new Redis(Number(port));
  const redlock = new Redlock([redis], { retryCount: -1 });
  await redis.ping();
  fs.writeFileSync(file(`theirs-${number}`), "");
  while (!fs.existsSync(file("start"))) await pause(5);
  while (!fs.existsSync(file("stop"))) {
    const lock = await redlock.acquire([name], 10000);
    const count = Number(fs.readFileSync(file("counter"), "utf8"));
    await pause(2);
    fs.writeFileSync(file("counter"), String(count + 1));
    fs.appendFileSync(file(`theirs-${number}`), `${Date.now()} ${count} 0\n`);
    await lock.release();
  }
  await redis.quit();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
