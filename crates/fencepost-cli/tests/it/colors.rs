//! Colours: on a terminal only, unless asked for.

use std::process::Command;

use futures_executor::block_on;

use crate::sandbox::{Ran, Sandbox};
use crate::terminal::Terminal;

const ESCAPE: char = '\u{1b}';

/// A command whose colours do not depend on where the tests run.
fn command(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = sandbox.fencepost(args);
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
        command.env_remove(name);
    }
    command.env("TERM", "xterm");
    command
}

/// Everything that a command shows on a terminal.
fn shown(command: &Command, last: &str) -> String {
    let mut terminal = Terminal::start(command);
    terminal.wait();
    terminal.until_shown(last);
    terminal.screen()
}

#[test]
fn verdicts_headers_and_prefixes_are_coloured_on_a_terminal() {
    let sandbox = Sandbox::new();
    let _guard = block_on(sandbox.client().lock("a").acquire()).unwrap();
    for (args, painted) in [
        (["list"].as_slice(), "\u{1b}[1mNAME"),
        (&["doctor"], "\u{1b}[32mfine   \u{1b}[0m  program"),
        (&["list", "--url", "nonsense:"], "\u{1b}[1m\u{1b}[31merror:\u{1b}[0m "),
        (&["lst"], "\u{1b}[1m\u{1b}[31merror:\u{1b}[0m unrecognized"),
    ] {
        let screen = shown(&command(&sandbox, args), painted);
        assert!(screen.contains(painted), "{args:?}: {screen}");
    }
}

#[test]
fn nothing_is_coloured_if_the_user_or_the_terminal_does_not_want_it() {
    let sandbox = Sandbox::new();
    let _guard = block_on(sandbox.client().lock("a").acquire()).unwrap();
    for (args, last) in [
        (["list"].as_slice(), "exclusive"),
        (&["doctor"], "warning"),
        (&["lst"], "--help"),
        (&["--help"], "codes"),
    ] {
        let never = [&["--color", "never"], args].concat();
        for plain in [
            command(&sandbox, args).env("NO_COLOR", "1"),
            command(&sandbox, args).env("TERM", "dumb"),
            &mut command(&sandbox, &never),
        ] {
            let screen = shown(plain, last);
            assert!(!screen.contains(ESCAPE), "{plain:?}: {screen}");
        }
    }
}

#[test]
fn a_pipe_gets_no_colours_unless_asked_for() {
    let sandbox = Sandbox::new();
    let _guard = block_on(sandbox.client().lock("a").acquire()).unwrap();
    let run = |args: &[&str]| Ran(command(&sandbox, args).output().unwrap());
    for args in
        [["list"].as_slice(), &["show", "a"], &["doctor"], &["lst"], &["--help"], &["run", "-n", "a", "true"]]
    {
        let ran = run(args);
        assert!(!(ran.stdout() + &ran.stderr()).contains(ESCAPE), "{args:?}");
    }
    for args in [["--color", "always", "list"], ["list", "--color", "always"]] {
        assert!(run(&args).expect(0).stdout().contains("\u{1b}[1mNAME"));
    }
    assert!(run(&["--color", "always", "--help"]).expect(0).stdout().contains(ESCAPE));
    assert!(!run(&["--color", "always", "list", "--json"]).expect(0).stdout().contains(ESCAPE));
    run(&["--color", "green", "list"]).expect(125);
}
