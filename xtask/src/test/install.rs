//! Stage "install": finds missing programs and files, and installs them where possible.

use super::areas::Need;
use crate::shell::{self, Failure, Outcome, on_path};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::Command;

/// Waits for another apt instead of failing at once.
const APT_LOCK: &str = "DPkg::Lock::Timeout=300";

/// Keeps the services of new packages from being started, and PostgreSQL's from creating a cluster.
const WITHOUT_SERVICES: &str = "xtask/src/test/without_services.sh";
/// Where Debian looks for its policy on services.
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// Where the packages of PostgreSQL look for the machine's additions to their settings.
const CLUSTER_SETTING: &str = "/etc/postgresql-common/createcluster.d/fencepost.conf";

/// Makes sure that everything needed is installed; `yes` installs without asking.
pub(crate) fn run(needs: &[&Need], yes: bool) -> Outcome {
    let missing = missing(needs, is_there);
    if missing.is_empty() {
        println!("nothing is missing");
        return Ok(());
    }
    for need in &missing {
        println!("missing: `{}`, which {}", need.what, need.why);
    }
    let packages = packages(&missing);
    may_install(&packages, yes)?;
    apt_get(&["update"])?;
    apt_get(&[&["install", "-y", "--no-install-recommends"], packages.as_slice()].concat())?;
    match self::missing(&missing, is_there).first() {
        Some(need) => {
            Err(Failure::Failed(format!("`{}` is still missing after the installation", need.what)))
        }
        None => Ok(()),
    }
}

/// Returns whether the program can be run, or the file, which has a path, exists. A `*` in a path stands for any folder.
fn is_there(what: &str) -> bool {
    match what.split_once("/*/") {
        Some((parent, rest)) => {
            let mut folders = Path::new(parent).read_dir().into_iter().flatten().flatten();
            folders.any(|folder| folder.path().join(rest).is_file())
        }
        None if what.contains('/') => Path::new(what).is_file(),
        None => on_path(what),
    }
}

fn missing<'a>(needs: &[&'a Need], present: impl Fn(&str) -> bool) -> Vec<&'a Need> {
    needs.iter().copied().filter(|need| !present(need.what)).collect()
}

fn packages(missing: &[&Need]) -> Vec<&'static str> {
    missing.iter().flat_map(|need| need.packages).copied().collect()
}

/// Fails, with the command to type, unless we are root, on Debian, and allowed to.
fn may_install(packages: &[&str], yes: bool) -> Outcome {
    let by_hand = by_hand(packages);
    if !on_path("apt-get") {
        return Err(Failure::Failed(
            "install what is missing with the package manager of this system".into(),
        ));
    }
    if !is_root() {
        return Err(Failure::Failed(format!(
            "installing takes root; run this and come back:\n\n    {by_hand}\n"
        )));
    }
    if yes || agreed(&by_hand)? {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "not installed; `--yes` does it without asking, or by hand:\n\n    {by_hand}\n"
    )))
}

fn by_hand(packages: &[&str]) -> String {
    format!("apt-get update && apt-get install -y --no-install-recommends {}", packages.join(" "))
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|answer| answer.stdout.trim_ascii() == b"0")
}

/// Asks on the terminal; without one, the answer is no.
fn agreed(command: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    print!("run `{command}` now? [y/N] ");
    let mut answer = String::new();
    let read = io::stdout().flush().and_then(|()| io::stdin().read_line(&mut answer));
    read.map_err(|why| Failure::Failed(format!("could not ask on the terminal: {why}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn apt_get(args: &[&str]) -> Outcome {
    let mut command = without_services(POLICY, CLUSTER_SETTING);
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["apt-get", "-o", APT_LOCK]).args(args);
    shell::run(&mut command)
}

/// Returns a command that runs its additional arguments while a policy forbids to start services, and a setting to create a
/// cluster.
fn without_services(policy: &str, cluster_setting: &str) -> Command {
    let mut command = Command::new("sh");
    command.args([WITHOUT_SERVICES, policy, cluster_setting]).current_dir(shell::root());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Need = Need { what: "one", packages: &["one-bin", "one-dev"], why: "is first" };
    const TWO: Need = Need { what: "two", packages: &["two"], why: "is second" };

    #[test]
    fn only_what_is_not_there_is_installed() {
        let missing = missing(&[&ONE, &TWO], |what| what == "two");
        assert_eq!(missing, [&ONE]);
        let expected = "apt-get update && apt-get install -y --no-install-recommends one-bin one-dev";
        assert_eq!(by_hand(&packages(&missing)), expected);
    }

    #[test]
    fn a_path_is_looked_for_where_it_says() {
        let (here, folder) = (file!(), env!("CARGO_MANIFEST_DIR"));
        assert!(is_there(shell::root().join(here).to_str().unwrap()));
        assert!(!is_there(folder) && !is_there("/bin/no-such.jar") && !is_there("no-such-program"));
        assert!(is_there("sh"));
    }

    #[test]
    fn a_star_in_a_path_is_any_folder() {
        let folder = env!("CARGO_MANIFEST_DIR");
        assert!(is_there(&format!("{folder}/*/test/install.rs")));
        assert!(!is_there(&format!("{folder}/*/test")) && !is_there("/no-such-folder/*/test/install.rs"));
    }

    /// What is in a folder: names of files with their contents.
    type Files = Vec<(&'static str, String)>;

    /// Runs this script without services, with files of its own that exist before; returns its exit code and the files that
    /// are left.
    fn run_without_services(name: &str, before: &[(&str, &str)], script: &str) -> (u8, Files) {
        let folder = std::env::temp_dir().join(format!("fencepost {name} {}", std::process::id()));
        let parent = |file: &Path| std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        for (file, text) in before {
            parent(&folder.join(file));
            std::fs::write(folder.join(file), text).unwrap();
        }
        let (policy, setting) = (folder.join(NAMES[0]), folder.join(NAMES[1]));
        let mut command = without_services(policy.to_str().unwrap(), setting.to_str().unwrap());
        let code = shell::exit_code(command.args(["sh", "-c", script]).args([&policy, &setting])).unwrap();
        let left =
            NAMES.iter().filter_map(|name| Some((*name, std::fs::read_to_string(folder.join(name)).ok()?)));
        let left = left.collect();
        let made_folder = folder.join("common").exists();
        assert_eq!(made_folder, before.iter().any(|(file, _)| file.starts_with("common/")), "{name}");
        let _ = std::fs::remove_dir_all(&folder);
        (code, left)
    }

    /// The policy, and the setting of PostgreSQL's packages.
    const NAMES: [&str; 2] = ["policy", "common/createcluster.d/ours.conf"];

    #[test]
    fn no_service_is_started_while_packages_are_installed() {
        let asks = "sh -c '\"$0\"' \"$0\"; [ $? = 101 ] && exit 7";
        assert_eq!(run_without_services("asked", &[], asks), (7, vec![]));
    }

    #[test]
    fn no_cluster_is_created_while_packages_are_installed() {
        let reads = "[ \"$(cat \"$1\")\" = 'create_main_cluster = false' ] && exit 7";
        assert_eq!(run_without_services("read", &[], reads), (7, vec![]));
    }

    #[test]
    fn the_files_are_removed_when_the_installation_is_interrupted() {
        assert_eq!(run_without_services("interrupted", &[], "kill -INT $PPID; exit 0"), (130, vec![]));
    }

    #[test]
    fn files_of_the_machine_stay() {
        let before = NAMES.map(|name| (name, "exit 0 # the machine's"));
        let after = before.map(|(name, text)| (name, text.to_owned())).to_vec();
        assert_eq!(run_without_services("there", &before, "exit 0"), (0, after));
    }

    #[test]
    fn a_complete_machine_needs_no_root() {
        let shell = Need { what: "sh", packages: &[], why: "is everywhere" };
        assert_eq!(run(&[&shell], false), Ok(()));
    }
}
