//! Peers in Python, in a virtual environment below our build folder. Tasks are threads.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use super::subject::{after, built, install, require, sources, step};

/// Returns the command of this script, with the required version of the library.
pub(crate) fn script(name: &str, mark: &str) -> Result<(Vec<OsString>, String), String> {
    let version = after(&requirements()?, &format!("\n{mark}")).to_owned();
    Ok((vec![environment()?.into(), sources("python").join(name).into()], version))
}

fn requirements() -> Result<String, String> {
    let file = sources("python").join("requirements.txt");
    std::fs::read_to_string(&file).map_err(|why| format!("{} cannot be read: {why}", file.display()))
}

/// Returns the interpreter of an environment with the required packages; created once.
fn environment() -> Result<PathBuf, String> {
    require("python3")?;
    let folder = built("python")?;
    let python = folder.join("bin/python");
    install(&folder, &requirements()?, || {
        step(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let list = sources("python").join("requirements.txt");
        step(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(list))
    })?;
    Ok(python)
}
