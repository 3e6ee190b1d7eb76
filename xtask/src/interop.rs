//! `cargo xtask interop`: runs other libraries and ours around the same locks, and reports the share of each. Dependencies
//! are fetched into the build folder.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::shell::{self, Failure, Outcome, cargo, on_path, target_dir};
use crate::stages::Stages;

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "run other libraries and ours on one lock, and count the turns of each side";

/// The sources of the peers.
const PEERS: &str = "crates/fencepost-interop/peers";
/// Turns that take longer than most libraries pause between attempts.
const LONG_TURNS: &str = "--long-turns";
/// The Python packages that the peers need.
const PYTHON: [&str; 6] = [
    "redis==8.1.0",
    "python-redis-lock==4.0.1",
    "kazoo==2.11.0",
    "pottery==3.0.1",
    "tooz==9.1.0",
    "psycopg2-binary==2.9.13",
];

/// Prepares and runs every peer whose language is installed.
pub(crate) fn run(args: &[String]) -> Outcome {
    let turns = match args {
        [] => "",
        [word] if word == LONG_TURNS => LONG_TURNS,
        [word, ..] => {
            return Err(Failure::Usage(format!("`interop` takes only `{LONG_TURNS}`, but got `{word}`")));
        }
    };
    let mut stages = Stages::default();
    add_turns(&mut stages, turns, &["rslock", "etcdctl"]);
    if on_path("python3") {
        stages.add("python", prepare_python);
        let peers =
            ["redis-py", "python-redis-lock", "tooz", "tooz-postgres", "pottery", "kazoo", "kazoo-also"];
        add_turns(&mut stages, turns, &peers);
    } else {
        stages.skip("python", "python3 is not installed (Debian: python3 python3-venv)");
    }
    if on_path("node") && on_path("npm") {
        stages.add("node", prepare_node);
        add_turns(&mut stages, turns, &["node-redlock", "redis-semaphore"]);
    } else {
        stages.skip("node", "node and npm are not installed (Debian: nodejs npm)");
    }
    if on_path("go") {
        stages.add("go", prepare_go);
        add_turns(&mut stages, turns, &["redsync", "go-mutex", "go-election"]);
    } else {
        stages.skip("go", "go is not installed (Debian: golang-go)");
    }
    if on_path("javac") && on_path("mvn") {
        stages.add("java", || ["curator", "shedlock"].into_iter().try_for_each(prepare_java));
        add_turns(&mut stages, turns, &["curator", "shedlock"]);
    } else {
        stages.skip("java", "javac and mvn are not installed (Debian: default-jdk-headless maven)");
    }
    stages.run()
}

fn add_turns(stages: &mut Stages<'_>, turns: &'static str, peers: &[&'static str]) {
    for &peer in peers {
        stages.add(peer, move || turns_with(peer, turns));
    }
}

fn turns_with(peer: &str, turns: &str) -> Outcome {
    let mut command = cargo(["run", "-p", "fencepost-interop", "--", peer]);
    if !turns.is_empty() {
        command.arg(turns);
    }
    shell::run(&mut command)
}

/// Creates a virtual environment with the Python packages, unless it exists.
pub(crate) fn prepare_python() -> Outcome {
    let folder = folder("python")?;
    let done = folder.join("ready");
    let wanted = PYTHON.join(" ");
    if fs::read_to_string(&done).is_ok_and(|found| found == wanted) {
        println!("the libraries of Python are there");
        return Ok(());
    }
    shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder)).map_err(|failure| {
        Failure::Failed(format!("{failure:?}: is Debian's package python3-venv installed?"))
    })?;
    let mut pip = Command::new(folder.join("bin/pip"));
    shell::run(pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(PYTHON))?;
    write(&done, &wanted)
}

fn prepare_node() -> Outcome {
    let folder = folder("node")?;
    for name in ["package.json", "turns.js", "node_redlock.js", "redis_semaphore.js"] {
        let copied = fs::copy(shell::root().join(PEERS).join(name), folder.join(name));
        copied.map_err(|why| Failure::Failed(format!("could not copy {name}: {why}")))?;
    }
    let mut npm = Command::new("npm");
    shell::run(npm.args(["install", "--no-audit", "--no-fund", "--silent"]).current_dir(&folder))
}

fn prepare_go() -> Outcome {
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(folder("go")?).args(["./redsync", "./etcd"]);
    shell::run(go.current_dir(shell::root().join(PEERS).join("go")))
}

/// Compiles our class against a library and its dependencies, which Maven resolves.
fn prepare_java(library: &str) -> Outcome {
    let (folder, sources) = (folder(library)?, shell::root().join(PEERS).join(library));
    let mut mvn = Command::new("mvn");
    mvn.args(["--quiet", "--batch-mode", "--file"]).arg(sources.join("pom.xml"));
    mvn.arg("dependency:copy-dependencies").arg(format!("-DoutputDirectory={}", folder.display()));
    shell::run(&mut mvn)?;
    let mut javac = Command::new("javac");
    javac.arg("-cp").arg(folder.join("*")).arg("-d").arg(&folder).arg(sources.join("Turns.java"));
    shell::run(&mut javac)
}

fn folder(name: &str) -> Result<PathBuf, Failure> {
    let folder = target_dir().join("interop").join(name);
    let made = fs::create_dir_all(&folder);
    made.map_err(|why| Failure::Failed(format!("could not make {}: {why}", folder.display())))?;
    Ok(folder)
}

fn write(path: &std::path::Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|why| Failure::Failed(format!("could not write {}: {why}", path.display())))
}
