//! node-redlock, installed below our build folder. Tasks are promises.

use std::process::Command;

use super::subject::{Subject, after, built, require, sources, step};

pub(crate) fn subject() -> Result<Subject, String> {
    require("node")?;
    require("npm")?;
    let (folder, sources) = (built("node-redlock")?, sources("node-redlock"));
    for file in ["package.json", "worker.js"] {
        std::fs::copy(sources.join(file), folder.join(file)).map_err(|why| format!("{file}: {why}"))?;
    }
    let package = std::fs::read_to_string(sources.join("package.json")).unwrap_or_default();
    let stamp = folder.join("installed");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == package) {
        return Ok(named(&package, &folder));
    }
    let quiet = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error"];
    step(Command::new("npm").args(quiet).current_dir(&folder))?;
    std::fs::write(&stamp, &package)
        .map_err(|why| format!("{} cannot be written: {why}", stamp.display()))?;
    Ok(named(&package, &folder))
}

fn named(package: &str, folder: &std::path::Path) -> Subject {
    Subject {
        name: "node-redlock",
        version: after(package, "\"redlock\": \"").to_owned(),
        program: vec!["node".into(), folder.join("worker.js").into()],
        // It sets the key by a script, too.
        sends: &["eval", "evalsha"],
    }
}
