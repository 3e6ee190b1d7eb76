//! Peers on Redis in other languages.

use crate::compare::subject::{Subject, TASKS};
use crate::compare::{go, python};

pub(crate) fn redsync() -> Result<Subject, String> {
    let (program, version) = go::program("redsync", "redsync/v4 v")?;
    Ok(Subject { name: "redsync", version, program: vec![program.into()], tasks: TASKS })
}

pub(crate) fn redis_py() -> Result<Subject, String> {
    in_python("redis-py", "redis==", TASKS)
}

pub(crate) fn python_redis_lock() -> Result<Subject, String> {
    in_python("python-redis-lock", "python-redis-lock==", &[])
}

fn in_python(name: &'static str, mark: &str, tasks: &'static [usize]) -> Result<Subject, String> {
    let (mut program, version) = python::script("redis_locks.py", mark)?;
    program.push(name.into());
    Ok(Subject { name, version, program, tasks })
}
