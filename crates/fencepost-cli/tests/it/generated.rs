//! What is generated from the definition of the command line: completions and man pages.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::sandbox::{Ran, Sandbox};

/// The names of all commands, as the help lists them.
fn commands(sandbox: &Sandbox) -> Vec<String> {
    let help = sandbox.run(&["-h"]).expect(0).stdout();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn completions_know_every_command() {
    let sandbox = Sandbox::new();
    let commands = commands(&sandbox);
    assert!(commands.len() > 9, "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sandbox.run(&["completions", shell]).expect(0).stdout();
        for command in &commands {
            assert!(script.contains(command.as_str()), "{command} is missing for {shell}");
        }
    }
    let ran = sandbox.run(&["completions", "tcsh"]).expect(125);
    assert!(ran.stderr().contains("possible values: bash"), "{}", ran.stderr());
}

#[test]
fn bash_accepts_the_script_and_completes_with_it() {
    let sandbox = Sandbox::new();
    sandbox.write("script", &sandbox.run(&["completions", "bash"]).expect(0).stdout());
    let checked =
        Ran(Command::new("bash").args(["-n", "script"]).current_dir(sandbox.path("")).output().unwrap());
    assert_eq!(checked.expect(0).stderr(), "");
    let complete = "source ./script; COMP_WORDS=(fencepost hol); COMP_CWORD=1; _fencepost fencepost hol fencepost; \
                    echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", complete]).current_dir(sandbox.path("")).output().unwrap();
    assert_eq!(Ran(output).expect(0).stdout(), "hold\n");
}

#[test]
fn the_man_page_names_every_command_and_each_has_its_own() {
    let sandbox = Sandbox::new();
    let page = sandbox.run(&["man"]).expect(0).stdout();
    assert!(page.contains(".TH fencepost 1"), "{page}");
    std::fs::create_dir(sandbox.path("pages")).unwrap();
    assert_eq!(sandbox.run(&["man", "--dir", "pages"]).expect(0).stdout(), "");
    assert_eq!(sandbox.read("pages/fencepost.1"), page);
    let commands = commands(&sandbox);
    for command in &commands {
        assert!(page.contains(&format!("fencepost\\-{command}(1)")), "{command} is missing in {page}");
        let own = sandbox.run(&["man", command]).expect(0).stdout();
        assert!(own.contains(&format!(".TH fencepost-{command} 1")), "{own}");
        assert_eq!(sandbox.read(&format!("pages/fencepost-{command}.1")), own);
    }
    assert_eq!(std::fs::read_dir(sandbox.path("pages")).unwrap().count(), commands.len() + 1);
    let ran = sandbox.run(&["man", "nonsense"]).expect(125);
    assert!(ran.stderr().contains("there is no command \"nonsense\""), "{}", ran.stderr());
    let ran = sandbox.run(&["man", "rnu"]).expect(125);
    assert!(ran.stderr().contains("; did you mean \"run\"?"), "{}", ran.stderr());
    sandbox.run(&["man", "--dir", "no/such/folder"]).expect(125);
}

/// They use no backend. The option is accepted nevertheless, before and after the command.
#[test]
fn the_help_of_commands_without_a_backend_does_not_show_the_url() {
    let sandbox = Sandbox::new();
    for args in [["man", "-h"], ["completions", "-h"]] {
        let help = sandbox.run(&args).expect(0).stdout();
        assert!(!help.contains("--url") && help.contains("--color"), "{help}");
    }
    for args in [["--url", "sqlite:", "man"], ["man", "--url", "sqlite:"]] {
        sandbox.run(&args).expect(0);
    }
}

/// Where groff is not installed, nothing is checked.
#[test]
fn groff_has_no_complaints_and_examples_keep_their_lines() {
    let sandbox = Sandbox::new();
    let page = sandbox.run(&["man", "hold"]).expect(0).stdout();
    let mut groff = Command::new("groff");
    groff.args(["-man", "-Tascii", "-P-cbou", "-rLL=120n", "-ww"]);
    groff.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut groff) = groff.spawn() else { return };
    groff.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let ran = Ran(groff.wait_with_output().unwrap()).expect(0);
    assert_eq!(ran.stderr(), "");
    let lines: Vec<String> = ran.stdout().lines().map(|line| line.trim().to_owned()).collect();
    for line in ["coproc LOCK { fencepost hold deploy; }", "EXAMPLES", "exec 8>&-; wait $!"] {
        assert!(lines.iter().any(|found| found == line), "{line:?} is missing in {}", ran.stdout());
    }
}
