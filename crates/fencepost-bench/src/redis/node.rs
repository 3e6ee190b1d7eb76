//! node-redlock, installed below our build folder. Tasks are async functions.

use std::process::Command;

use crate::compare::subject::{Subject, TASKS, after, built, install, require, sources, step};

pub(crate) fn subject() -> Result<Subject, String> {
    require("node")?;
    require("npm")?;
    let (folder, sources) = (built("node-redlock")?, sources("node-redlock"));
    for file in ["package.json", "worker.js"] {
        std::fs::copy(sources.join(file), folder.join(file)).map_err(|why| format!("{file}: {why}"))?;
    }
    let package = std::fs::read_to_string(sources.join("package.json")).unwrap_or_default();
    install(&folder, &package, || {
        let quiet = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error"];
        step(Command::new("npm").args(quiet).current_dir(&folder))
    })?;
    Ok(Subject {
        name: "node-redlock",
        version: after(&package, "\"redlock\": \"").to_owned(),
        program: vec!["node".into(), folder.join("worker.js").into()],
        tasks: TASKS,
    })
}
