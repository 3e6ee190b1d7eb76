//! Worker processes: this program started again, or a peer's. A worker connects, prints `ready`, waits for a line on
//! standard input, works, and prints its results as one line of JSON.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::locking::Locking;
use crate::{contended, uncontended};

/// The results of one worker. Times are in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WorkerResult {
    /// The grants of each of its tasks.
    pub(crate) turns: Vec<usize>,
    /// How long the lock was held by its tasks.
    #[serde(default)]
    pub(crate) held: f64,
    /// Every wait.
    pub(crate) waits: Vec<f64>,
    /// When each hold started and ended, on a clock that all processes share.
    #[serde(default)]
    pub(crate) spans: Vec<(f64, f64)>,
    /// From the first to the last grant.
    pub(crate) wall: f64,
}

/// The order of a worker: the last arguments of its command line, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// `uncontended` or `contended`.
    pub(crate) kind: String,
    pub(crate) url: String,
    pub(crate) tasks: usize,
    pub(crate) length: Duration,
    /// The length of each hold, and the pause until the next acquire; both only where contended.
    pub(crate) hold: Duration,
    pub(crate) think: Duration,
}

impl Order {
    pub(crate) fn uncontended(url: &str, tasks: usize, length: Duration) -> Self {
        let (kind, url) = ("uncontended".into(), url.into());
        Self { kind, url, tasks, length, hold: Duration::ZERO, think: Duration::ZERO }
    }

    pub(crate) fn contended(url: &str, tasks: usize, length: Duration) -> Self {
        let (kind, url) = ("contended".into(), url.into());
        Self { kind, url, tasks, length, hold: contended::HOLD, think: contended::THINK }
    }

    fn words(&self) -> [String; 6] {
        let millis = |time: Duration| time.as_millis().to_string();
        let (tasks, length) = (self.tasks.to_string(), millis(self.length));
        [self.kind.clone(), self.url.clone(), tasks, length, millis(self.hold), millis(self.think)]
    }

    pub(crate) fn read(words: &[String]) -> Option<Self> {
        let [kind, url, tasks, length, hold, think] = words else { return None };
        let millis = |word: &String| word.parse().ok().map(Duration::from_millis);
        let (kind, url, tasks) = (kind.clone(), url.clone(), tasks.parse().ok()?);
        Some(Self { kind, url, tasks, length: millis(length)?, hold: millis(hold)?, think: millis(think)? })
    }
}

/// Returns a runtime as an application would have it.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// The worker's side: reads its order, connects, works. `connect` returns the function that creates a lock of a name.
pub(crate) fn serve<L: Locking, M: Fn(String) -> L>(
    words: &[String],
    connect: impl AsyncFnOnce(&str) -> Result<M, String>,
) -> ExitCode {
    let Some(order) = Order::read(words) else { return ExitCode::from(2) };
    runtime().block_on(async {
        let lock = match connect(&order.url).await {
            Ok(lock) => lock,
            Err(why) => return failed(&why),
        };
        ready();
        let found = match order.kind.as_str() {
            "contended" => contended::work(lock, &order).await,
            _ => uncontended::work(lock, order.tasks, order.length).await,
        };
        print_results(&found);
        ExitCode::SUCCESS
    })
}

/// Prints `ready`, and waits for the signal to start.
pub(crate) fn ready() {
    println!("ready");
    let mut word = String::new();
    std::io::stdin().read_line(&mut word).expect("the word to begin");
}

/// Prints the results.
pub(crate) fn print_results(found: &WorkerResult) {
    println!("{}", serde_json::to_string(found).unwrap_or_default());
}

/// Prints why there are no results.
pub(crate) fn failed(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}

/// Returns the command that starts this program as a worker of this kind.
pub(crate) fn this_program(sort: &str) -> Vec<OsString> {
    vec![std::env::current_exe().expect("this program").into(), sort.into()]
}

/// Runs this many workers with the order at the same time.
pub(crate) fn run(
    program: &[OsString],
    order: &Order,
    processes: usize,
) -> Result<Vec<WorkerResult>, String> {
    let mut group = WorkerGroup::start(program, order, processes)?;
    group.work()
}

/// Workers that are connected and wait for the signal to start.
#[derive(Debug)]
pub(crate) struct WorkerGroup(Vec<Worker>);

impl WorkerGroup {
    pub(crate) fn start(program: &[OsString], order: &Order, processes: usize) -> Result<Self, String> {
        let words = order.words();
        let words: Vec<OsString> = program.iter().cloned().chain(words.map(OsString::from)).collect();
        let workers: Vec<Worker> = (0..processes).map(|_| Worker::start(&words)).collect::<Result<_, _>>()?;
        let mut group = Self(workers);
        group.0.iter_mut().try_for_each(Worker::is_ready)?;
        Ok(group)
    }

    pub(crate) fn work(&mut self) -> Result<Vec<WorkerResult>, String> {
        self.0.iter_mut().try_for_each(Worker::begin)?;
        self.0
            .iter_mut()
            .map(|worker| worker.found().and_then(|found| worker.end().map(|()| found)))
            .collect()
    }
}

/// One process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    words: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(words: &[OsString]) -> Result<Self, String> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().map_err(|why| format!("could not start {}: {why}", words[0].display()))?;
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Ok(Self { words: child.stdin.take(), child, lines })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is connected.
    pub(crate) fn is_ready(&mut self) -> Result<(), String> {
        match self.line()?.as_str() {
            "ready" => Ok(()),
            other => Err(format!("expected `ready`, got {other:?}")),
        }
    }

    /// Sends the signal to start.
    pub(crate) fn begin(&mut self) -> Result<(), String> {
        let words = self.words.as_mut().expect("it has not ended");
        words
            .write_all(b"go\n")
            .and_then(|()| words.flush())
            .map_err(|why| format!("it does not read its input: {why}"))
    }

    /// Waits for its results.
    pub(crate) fn found(&mut self) -> Result<WorkerResult, String> {
        serde_json::from_str(&self.line()?).map_err(|why| format!("its results are malformed: {why}"))
    }

    /// Lets it end, and waits for its end.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        drop(self.words.take());
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("it ended with {status}")),
            Err(why) => Err(format!("it cannot be waited for: {why}")),
        }
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => Err(format!("it ended early{}", self.exit_message())),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(why) => Err(format!("its output cannot be read: {why}")),
        }
    }

    fn exit_message(&mut self) -> String {
        self.child.wait().map(|status| format!(", with {status}; see standard error")).unwrap_or_default()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only if it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let order = Order::contended("redis://127.0.0.1:1", 16, Duration::from_secs(3));
        assert_eq!(Order::read(&order.words()), Some(order));
        assert_eq!(Order::read(&["contended".to_owned()]), None);
    }

    #[test]
    fn a_worker_that_ends_early_is_an_error() {
        let order = Order::uncontended("redis://127.0.0.1:1", 1, Duration::from_secs(1));
        let silent = run(&["true".into()], &order, 1).unwrap_err();
        assert!(silent.contains("early"), "{silent}");
        let missing = run(&["no-such-program".into()], &order, 1).unwrap_err();
        assert!(missing.contains("could not start no-such-program"), "{missing}");
    }
}
