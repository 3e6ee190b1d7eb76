//! redis-py and python-redis-lock, in a virtual environment below our build folder. Tasks are threads.

use std::path::PathBuf;
use std::process::Command;

use super::subject::{Subject, after, built, require, sources, step};

pub(crate) fn redis_py() -> Result<Subject, String> {
    subject("redis-py", "redis==", &["set", "eval", "evalsha"])
}

pub(crate) fn python_redis_lock() -> Result<Subject, String> {
    subject("python-redis-lock", "python-redis-lock==", &["set", "blpop", "eval", "evalsha"])
}

fn subject(name: &'static str, mark: &str, sends: &'static [&'static str]) -> Result<Subject, String> {
    let python = environment()?;
    let worker = sources("python").join("worker.py");
    let version = after(&requirements()?, &format!("\n{mark}")).to_owned();
    Ok(Subject { name, version, program: vec![python.into(), worker.into(), name.into()], sends })
}

fn requirements() -> Result<String, String> {
    let file = sources("python").join("requirements.txt");
    std::fs::read_to_string(&file).map_err(|why| format!("{} cannot be read: {why}", file.display()))
}

/// The interpreter of an environment that has what is required; made once.
fn environment() -> Result<PathBuf, String> {
    require("python3")?;
    let (folder, required) = (built("python")?, requirements()?);
    let (python, stamp) = (folder.join("bin/python"), folder.join("installed"));
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == required) {
        return Ok(python);
    }
    step(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let list = sources("python").join("requirements.txt");
    step(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(list))?;
    std::fs::write(&stamp, required)
        .map_err(|why| format!("{} cannot be written: {why}", stamp.display()))?;
    Ok(python)
}
