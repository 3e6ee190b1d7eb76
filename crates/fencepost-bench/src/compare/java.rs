//! Peers in Java: Maven fetches their dependencies into our build folder, where they are compiled. Tasks are threads.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use super::subject::{built, install, require, sources, step};

/// Builds the worker of this peer; returns its command with the version of the library that the Maven model requires.
pub(crate) fn worker(name: &str, model: &Path, library: &str) -> Result<(Vec<OsString>, String), String> {
    require("javac")?;
    require("mvn")?;
    let folder = built(name)?;
    let required = std::fs::read_to_string(model).unwrap_or_default();
    install(&folder, &required, || {
        let mut mvn = Command::new("mvn");
        mvn.args(["--quiet", "--batch-mode", "--file"]).arg(model).arg("dependency:copy-dependencies");
        step(mvn.arg(format!("-DoutputDirectory={}", folder.display())))
    })?;
    let jars = folder.join("*");
    let mut javac = Command::new("javac");
    javac.arg("-cp").arg(&jars).arg("-d").arg(&folder);
    step(javac.arg(sources("java").join("Worker.java")).arg(sources(name).join("Peer.java")))?;
    let classes = std::env::join_paths([&folder, &jars]).map_err(|why| why.to_string())?;
    let words = vec!["java".into(), "-cp".into(), classes, "Peer".into()];
    Ok((words, version(&required, library).to_owned()))
}

/// Returns the version after the name of the library.
fn version<'a>(model: &'a str, library: &str) -> &'a str {
    let rest = model.split_once(&format!("<artifactId>{library}</artifactId>")).map_or("", |(_, rest)| rest);
    let rest = rest.split_once("<version>").map_or("", |(_, rest)| rest);
    rest.split('<').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_library() {
        let model = "<artifactId>us</artifactId><version>1</version> <artifactId>them</artifactId>\n <version>5.9.0</version>";
        assert_eq!(version(model, "them"), "5.9.0");
        assert_eq!(version(model, "unknown"), "");
    }
}
