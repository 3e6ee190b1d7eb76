//! Many processes add to a number in a plain file under the lock, and not one addition is lost.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use fencepost::clock::Clock;
use futures_executor::block_on;

use crate::sandbox::{Running, Sandbox};

const PROCESSES: usize = 16;
const ROUNDS: usize = 500;
const WORKER: &str = "FENCEPOST_TEST_WORKER";

#[test]
fn sixteen_processes_add_five_hundred_times_each_and_nothing_is_lost() {
    let sandbox = Sandbox::new();
    sandbox.write("number", "0");
    sandbox.write("tokens", "");
    let clock = Clock::system();
    let began = clock.now();
    let mut workers: Vec<Running> = (0..PROCESSES).map(|_| Running::start(&mut worker(&sandbox))).collect();
    for worker in &mut workers {
        worker.expect(0);
    }
    println!("{} additions took {:?}", PROCESSES * ROUNDS, clock.now().since(began));
    assert_eq!(sandbox.read("number"), (PROCESSES * ROUNDS).to_string());
    assert_increasing(&sandbox.read("tokens"), PROCESSES * ROUNDS);
    sandbox.assert_free("counter");
}

/// Returns this test binary executed again, with the one test that does the work.
fn worker(sandbox: &Sandbox) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "counting::worker_process"]).env(WORKER, sandbox.path("")).stdout(Stdio::null());
    command
}

/// Not a test by itself: the work of the processes of the test above.
#[test]
fn worker_process() {
    let Some(folder) = std::env::var_os(WORKER) else {
        return;
    };
    let folder = Path::new(&folder);
    let url = format!("sqlite:{}", folder.join("locks.db").display());
    let client = block_on(fencepost::connect(url)).unwrap();
    let lock = client.lock("counter");
    for _ in 0..ROUNDS {
        let guard = block_on(lock.acquire()).unwrap();
        add_one(folder, guard.token().get());
        block_on(guard.release()).unwrap();
    }
    block_on(client.close());
}

/// Without the lock, two processes that read the same number would lose an addition.
fn add_one(folder: &Path, token: u64) {
    use std::io::Write;

    let number = folder.join("number");
    let value: usize = fs::read_to_string(&number).unwrap().parse().unwrap();
    fs::write(&number, (value + 1).to_string()).unwrap();
    let mut tokens = fs::File::options().append(true).open(folder.join("tokens")).unwrap();
    writeln!(tokens, "{token}").unwrap();
}

fn assert_increasing(tokens: &str, count: usize) {
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), count);
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
}

#[test]
fn eight_shells_add_ten_times_each_with_the_command() {
    let sandbox = Sandbox::new();
    sandbox.write("number", "0");
    sandbox.write("tokens", "");
    let add = "n=$(cat number); echo $((n + 1)) > number; echo $FENCEPOST_TOKEN >> tokens";
    let shell = || {
        let mut shell = Command::new("sh");
        let script = "for i in 1 2 3 4 5 6 7 8 9 10; do \"$0\" run -q counter -c \"$1\" || exit 1; done";
        shell.args(["-c", script, env!("CARGO_BIN_EXE_fencepost"), add]);
        shell.current_dir(sandbox.path("")).env("FENCEPOST_URL", sandbox.url());
        Running::start(&mut shell)
    };
    let mut shells: Vec<Running> = (0..8).map(|_| shell()).collect();
    for shell in &mut shells {
        shell.expect(0);
    }
    assert_eq!(sandbox.line("number"), "80");
    assert_increasing(&sandbox.read("tokens"), 80);
}
