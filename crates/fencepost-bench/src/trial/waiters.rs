//! The cost of a long queue: a release that hands over, and an acquire that joins, behind 2,500 and behind 10,000 waiters. The
//! server does not sync its commits here, so that the figures are its work and the round trips, and not the disk's.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::{Attempt, Backend, Grant, LockName, Mode, Owner, Result as LockResult, Rule, Want};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::prototype::failed;
use crate::compare::{BenchServer, Setting};
use crate::report::Report;
use crate::rounds::{Reading, Rounds};
use crate::statistics::{number, percentile};
use crate::workers::{self, Order, WorkerGroup, WorkerResult};

const HAND_OVER: &str = "hand-over";
const ENQUEUE: &str = "enqueue";
/// How many operations are measured: few beside the waiters, so that the queue keeps its length.
const OPERATIONS: usize = 1_000;
const BATCH: usize = 128;

/// A trial that can be run on a server that does not sync.
pub(crate) trait Unsynced: BenchServer {
    fn start_unsynced() -> Self;

    /// Returns the processor time that the server has used.
    fn used(&self) -> Duration;
}

/// Measures all designs.
pub(crate) fn measure<S: Unsynced>(setting: &mut Setting<S>, report: &mut Report) {
    let subjects = setting.locks();
    let Setting { rounds: count, length, turns, .. } = *setting;
    let mut unsynced = Setting { server: S::start_unsynced(), subjects, rounds: count, length, turns };
    let mut rounds = Rounds::new("waiters", S::NAME);
    for waiters in [2_500, 10_000] {
        for _ in 0..count {
            for subject in unsynced.locks() {
                for (kind, p50, cpu) in [
                    (HAND_OVER, "release with hand-over, p50", "release with hand-over, server's CPU time"),
                    (ENQUEUE, "join the queue, p50", "join the queue, server's CPU time"),
                ] {
                    let done = unsynced.run_on_empty(&subject, report, |server| {
                        let order =
                            Order { kind: kind.into(), ..Order::uncontended(&server.url(), waiters, length) };
                        let mut group = WorkerGroup::start(&subject.program, &order, 1)?;
                        let before = server.used();
                        let found = group.work()?;
                        Ok((found, server.used().saturating_sub(before)))
                    });
                    let Some((mut found, used)) = done else { continue };
                    let mut waits: Vec<f64> =
                        found.iter_mut().flat_map(|found| found.waits.drain(..)).collect();
                    let used = used.as_secs_f64() / number(waits.len()).max(1.0);
                    let values = [
                        Reading { metric: p50, value: percentile(&mut waits, 0.5) * 1e6, unit: "µs" },
                        Reading { metric: cpu, value: used * 1e6, unit: "µs" },
                    ];
                    rounds.add(subject.name, waiters, waits.len(), &values);
                }
            }
        }
    }
    rounds.report(report);
}

pub(crate) fn is_order(order: &Order) -> bool {
    [HAND_OVER, ENQUEUE].contains(&order.kind.as_str())
}

/// Runs a worker of this bench.
pub(crate) fn serve(sort: &str, order: &Order) -> ExitCode {
    workers::runtime().block_on(async {
        let mut queue = match Queue::fill(sort, order).await {
            Ok(queue) => queue,
            Err(why) => return workers::failed(&why.to_string()),
        };
        workers::ready();
        let clock = Clock::system();
        let mut found = WorkerResult::default();
        for _ in 0..OPERATIONS {
            let start = clock.now();
            let done = if order.kind == HAND_OVER { queue.hand_over().await } else { queue.join(1).await };
            if let Err(why) = done {
                return workers::failed(&why.to_string());
            }
            found.waits.push(clock.now().since(start).as_secs_f64());
        }
        found.turns.push(found.waits.len());
        workers::print_results(&found);
        ExitCode::SUCCESS
    })
}

/// A lock that is held, with a queue.
struct Queue {
    backend: Arc<dyn Backend>,
    wakeups: BoxStream<'static, Wakeup>,
    name: LockName,
    held: Grant,
}

impl Queue {
    async fn fill(sort: &str, order: &Order) -> LockResult<Self> {
        let backend = super::open(sort, &order.url).await?;
        let name = LockName::new("bench")?;
        let attempt = attempt(&name);
        let op = Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait };
        let held = match backend.execute(vec![op]).await.pop() {
            Some(Ok(Reply::Granted(award))) => Grant { attempt, award },
            other => return Err(failed(format!("the lock is not granted: {other:?}"))),
        };
        let queue = Self { wakeups: backend.wakeups(), backend, name, held };
        let mut missing = order.tasks;
        while missing > 0 {
            let count = missing.min(BATCH);
            queue.join(count).await?;
            missing -= count;
        }
        Ok(queue)
    }

    /// Adds waiters.
    async fn join(&self, count: usize) -> LockResult<()> {
        let op = |_| Op::Acquire { attempt: attempt(&self.name), on_busy: OnBusy::Wait };
        for reply in self.backend.execute((0..count).map(op).collect()).await {
            if !matches!(reply?, Reply::Waiting { .. }) {
                return Err(failed("the lock is not held"));
            }
        }
        Ok(())
    }

    /// Releases the lock to the first waiter, and waits for its push.
    async fn hand_over(&mut self) -> LockResult<()> {
        let replies = self.backend.execute(vec![Op::Release(self.held.clone())]).await;
        if !matches!(replies.as_slice(), [Ok(Reply::Released)]) {
            return Err(failed(format!("the lock is not released: {replies:?}")));
        }
        match self.wakeups.next().await {
            Some(Wakeup::Granted { attempt, award }) => {
                self.held = Grant { attempt, award };
                Ok(())
            }
            other => Err(failed(format!("no waiter was granted the lock: {other:?}"))),
        }
    }
}

/// Returns an attempt whose ticket outlives the bench.
fn attempt(name: &LockName) -> Arc<Attempt> {
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: vec![Want { name: name.clone(), mode: Mode::Exclusive }],
        rule: Rule::All,
        ttl: Duration::from_secs(3600),
        label: "bench".into(),
        meta: Vec::new().into(),
    })
}
