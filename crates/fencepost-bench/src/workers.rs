//! Other processes: this program started again. A worker connects, says so, waits for the word to begin, works, and
//! prints what it found as one line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{contended, uncontended};

/// What one worker found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Turns of each of its tasks.
    pub(crate) turns: Vec<usize>,
    /// Seconds the lock was held by its tasks.
    pub(crate) held: f64,
    /// Seconds of every wait.
    pub(crate) waits: Vec<f64>,
    /// Seconds from the first to the last.
    pub(crate) wall: f64,
}

/// A runtime as an application would have it.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// The worker's side.
pub(crate) fn serve(arguments: &[String]) -> ExitCode {
    let [kind, url, tasks, millis] = arguments else {
        return ExitCode::from(2);
    };
    let (Ok(tasks), Ok(millis)) = (tasks.parse(), millis.parse()) else {
        return ExitCode::from(2);
    };
    let length = Duration::from_millis(millis);
    let found = runtime().block_on(async {
        let client = fencepost::connect(url).await.expect("the storage is there");
        println!("ready");
        let mut word = String::new();
        std::io::stdin().read_line(&mut word).expect("the word to begin");
        let found = match kind.as_str() {
            "contended" => contended::work(&client, tasks, length).await,
            _ => uncontended::work(&client, tasks, length).await,
        };
        client.close().await;
        found
    });
    println!("{}", serde_json::to_string(&found).unwrap_or_default());
    ExitCode::SUCCESS
}

/// Lets this many workers work at the same time.
pub(crate) fn run(kind: &str, url: &str, processes: usize, tasks: usize, length: Duration) -> Vec<Found> {
    let mut workers: Vec<Worker> = (0..processes).map(|_| Worker::start(kind, url, tasks, length)).collect();
    for worker in &mut workers {
        worker.line();
    }
    for worker in &mut workers {
        worker.child.stdin.take().expect("a pipe").write_all(b"go\n").expect("it listens");
    }
    workers.iter_mut().map(Worker::finish).collect()
}

struct Worker {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start(kind: &str, url: &str, tasks: usize, length: Duration) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["worker", kind, url, &tasks.to_string(), &length.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a worker");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it speaks");
        line
    }

    fn finish(&mut self) -> Found {
        let found = serde_json::from_str(&self.line()).unwrap_or_default();
        self.child.wait().expect("it ends");
        found
    }
}
