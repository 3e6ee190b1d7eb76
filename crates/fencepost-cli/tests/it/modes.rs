//! The modes of a terminal: fencepost restores them, and is not stopped by them.

use crate::job_control::{LOOP, open_gate, shell};
use crate::losing::break_it;
use crate::sandbox::{state, until};
use crate::terminal::PROMPT;

#[test]
fn a_command_that_is_killed_leaves_the_terminal_as_it_was() {
    let (sandbox, mut terminal) = shell();
    let before = terminal.modes();
    sandbox.write("raw.sh", &format!("stty raw -echo; {LOOP}"));
    terminal.type_line("fencepost run --ttl 2s a -- sh raw.sh");
    sandbox.line("command");
    assert_ne!(terminal.modes().local_modes, before.local_modes);
    break_it(&sandbox, "a");
    terminal.until_next("was lost");
    terminal.expect_code(76);
    let after = terminal.modes();
    assert_eq!((after.local_modes, after.input_modes), (before.local_modes, before.input_modes));
    assert_eq!(after.output_modes, before.output_modes);
}

#[test]
fn a_command_that_was_brought_forward_and_killed_leaves_the_terminal_as_it_was() {
    let (sandbox, mut terminal) = shell();
    sandbox.write(
        "raw.sh",
        &format!("echo $PPID > fencepost; echo $$ > command; stty raw -echo; echo x > raw; {LOOP}"),
    );
    terminal.type_line("fencepost run --ttl 10s a -- sh raw.sh &");
    terminal.until_next(PROMPT);
    until("it is stopped", || state(&sandbox.line("fencepost")) == Some('T'));
    terminal.type_line("stty -echoe");
    terminal.until_next(PROMPT);
    let before = terminal.modes();
    terminal.type_line("fg");
    sandbox.line("raw");
    assert_ne!(terminal.modes().local_modes, before.local_modes);
    break_it(&sandbox, "a");
    terminal.until_next("was lost");
    terminal.expect_code(76);
    assert_eq!(terminal.modes().local_modes, before.local_modes);
}

#[test]
fn a_terminal_that_stops_background_output_does_not_stop_fencepost() {
    let (sandbox, mut terminal) = shell();
    terminal.type_line("stty tostop");
    terminal.type_line("fencepost run -v a -- sh waiter.sh &");
    terminal.until_next("holding");
    sandbox.line("command");
    terminal.type_line("fencepost run b -- fencepost run --wait 2s a -- true");
    terminal.expect_code(75);
    terminal.type_line("fencepost run --wait 2s a -- true &");
    terminal.until_next("is held by");
    open_gate(&sandbox);
    terminal.type_line("wait %1");
    terminal.until_next("released");
    terminal.expect_code(5);
}
