// A worker of the bench (see src/workers.rs): node-redlock on ioredis, tasks are async functions.
//
// usage: node worker.js KIND URL TASKS MILLIS HOLD_MS THINK_MS
"use strict";

const readline = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");
const Redis = require("ioredis");
const Redlock = require("redlock");

const TTL = 30000;

// One clock for all processes.
const now = () => Number(process.hrtime.bigint()) / 1e9;

async function uncontended(locks, name, end, found) {
  for (;;) {
    const begun = now();
    if (begun >= end) return;
    const lock = await locks.lock(name, TTL);
    await lock.unlock();
    found.waits.push(now() - begun);
  }
}

async function contended(locks, end, hold, think, found) {
  while (now() < end) {
    const asked = now();
    const lock = await locks.lock("bench", TTL);
    const entered = now();
    await sleep(hold);
    const left = now();
    await lock.unlock();
    found.waits.push(entered - asked);
    found.spans.push([entered, left]);
    if (think) await sleep(think);
  }
}

async function main() {
  const [kind, url, ...numbers] = process.argv.slice(2);
  const [tasks, millis, hold, think] = numbers.map(Number);
  const client = new Redis(url);
  await client.ping();
  // Its own delays between tries, but it never gives up.
  const locks = new Redlock([client], { retryCount: -1 });
  console.log("ready");
  const words = readline.createInterface({ input: process.stdin });
  await new Promise((resolve) => words.once("line", resolve));
  const start = now();
  const end = start + millis / 1e3;
  const founds = Array.from({ length: tasks }, () => ({ waits: [], spans: [] }));
  await Promise.all(
    founds.map((found, task) =>
      kind === "contended"
        ? contended(locks, end, hold, think, found)
        : uncontended(locks, `bench/${process.pid}/${task}`, end, found),
    ),
  );
  const wall = now() - start;
  const turns = founds.map((found) => found.waits.length);
  const waits = founds.flatMap((found) => found.waits);
  const spans = founds.flatMap((found) => found.spans);
  console.log(JSON.stringify({ turns, waits, spans, wall }));
  words.close();
  client.disconnect();
}

main().catch((why) => {
  console.error(`node-redlock: ${why}`);
  process.exit(1);
});
