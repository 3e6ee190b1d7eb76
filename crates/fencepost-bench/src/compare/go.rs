//! Peers in Go: one module with a program for each, built below our build folder. Tasks are goroutines.

use std::path::PathBuf;
use std::process::Command;

use super::subject::{after, built, require, sources, step};

/// Builds a program of the module; returns it with the required version of the library.
pub(crate) fn program(name: &str, mark: &str) -> Result<(PathBuf, String), String> {
    require("go")?;
    let (program, sources) = (built("go")?.join(name), sources("go"));
    let package = format!("./{name}");
    step(Command::new("go").args(["build", "-o"]).arg(&program).arg(package).current_dir(&sources))?;
    let module = std::fs::read_to_string(sources.join("go.mod")).unwrap_or_default();
    Ok((program, after(&module, mark).to_owned()))
}
