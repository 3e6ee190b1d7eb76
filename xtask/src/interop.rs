//! `cargo xtask interop`: the other libraries that take our locks, ours beside them, and who gets how many turns. What they
//! need is fetched into the build folder.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::shell::{self, Failure, Outcome, cargo, on_path, target_dir};
use crate::stages::Stages;

/// What `cargo xtask help` says about this command.
pub(crate) const HELP: &str = "other libraries and ours around one lock, and the turns of each side";

/// The sources of the peers.
const PEERS: &str = "crates/fencepost-interop/peers";
/// What Python's peers need.
const PYTHON: [&str; 2] = ["redis==8.1.0", "python-redis-lock==4.0.1"];

/// Prepares every peer whose language is there, and lets it run.
pub(crate) fn run(args: &[String]) -> Outcome {
    if let Some(word) = args.first() {
        return Err(Failure::Usage(format!("`interop` takes no arguments, but got `{word}`")));
    }
    let mut stages = Stages::default();
    stages.add("rslock", || turns_with("rslock"));
    if on_path("python3") {
        stages.add("python", prepare_python);
        stages.add("redis-py", || turns_with("redis-py"));
        stages.add("py-redis-lock", || turns_with("python-redis-lock"));
    } else {
        stages.skip("python", "python3 is not installed (Debian: python3 python3-venv)");
    }
    if on_path("node") && on_path("npm") {
        stages.add("node-redlock", || prepare_node().and_then(|()| turns_with("node-redlock")));
    } else {
        stages.skip("node-redlock", "node and npm are not installed (Debian: nodejs npm)");
    }
    if on_path("go") {
        stages.add("redsync", || prepare_redsync().and_then(|()| turns_with("redsync")));
    } else {
        stages.skip("redsync", "go is not installed (Debian: golang-go)");
    }
    stages.run()
}

fn turns_with(peer: &str) -> Outcome {
    shell::run(&mut cargo(["run", "-p", "fencepost-interop", "--", peer]))
}

/// Makes a virtual environment with the libraries of Python, unless it is there.
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
    for name in ["package.json", "node_redlock.js"] {
        let copied = fs::copy(shell::root().join(PEERS).join(name), folder.join(name));
        copied.map_err(|why| Failure::Failed(format!("could not copy {name}: {why}")))?;
    }
    let mut npm = Command::new("npm");
    shell::run(npm.args(["install", "--no-audit", "--no-fund", "--silent"]).current_dir(&folder))
}

fn prepare_redsync() -> Outcome {
    let program = folder("")?.join("redsync");
    let mut go = Command::new("go");
    shell::run(
        go.args(["build", "-o"]).arg(program).arg(".").current_dir(shell::root().join(PEERS).join("redsync")),
    )
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
