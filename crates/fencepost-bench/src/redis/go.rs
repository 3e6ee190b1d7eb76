//! redsync, built below our build folder. Tasks are goroutines.

use std::process::Command;

use super::subject::{Subject, after, built, require, sources, step};

pub(crate) fn subject() -> Result<Subject, String> {
    require("go")?;
    let (program, sources) = (built("redsync")?.join("redsync"), sources("redsync"));
    step(Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(&sources))?;
    let module = std::fs::read_to_string(sources.join("go.mod")).unwrap_or_default();
    let version = after(&module, "redsync/v4 v").to_owned();
    Ok(Subject {
        name: "redsync",
        version,
        program: vec![program.into()],
        sends: &["set", "eval", "evalsha"],
    })
}
