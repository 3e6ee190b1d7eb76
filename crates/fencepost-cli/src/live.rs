//! The live line: one line at the end of the terminal, redrawn in place while a run waits.
//!
//! It is drawn only if stderr is a terminal that can move its cursor, and only from its foreground: from the background it
//! would overwrite what the user types.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::stdio::stderr;
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use crate::output;
use crate::terminal::own_group;
use crate::words::plain;

/// Returns to the first column and erases to the end of the line.
const ERASE: &str = "\r\x1b[K";
/// The width of a terminal that does not tell it.
const DEFAULT_COLUMNS: usize = 80;

/// Whether the live line is on the terminal, and must be erased before anything else is written.
static IS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Returns whether the live line can be drawn now.
pub(crate) fn is_possible() -> bool {
    io::stderr().is_terminal()
        && has_cursor(std::env::var("TERM").ok().as_deref())
        && tcgetpgrp(stderr()).is_ok_and(|group| Some(group) == own_group())
}

fn has_cursor(term: Option<&str>) -> bool {
    !matches!(term, None | Some("" | "dumb"))
}

/// Draws the first of these texts that fits, in place of the line before. The shortest comes last, and is cut if it has to.
pub(crate) fn draw(texts: &[String]) {
    IS_DRAWN.store(true, Ordering::Relaxed);
    output::draw(format!("{ERASE}{}", fit(texts, columns())));
}

/// Erases the line, and waits until that is written: what follows on the terminal begins in the first column.
pub(crate) fn erase() {
    if IS_DRAWN.swap(false, Ordering::Relaxed) {
        output::erase(ERASE);
    }
}

/// Returns what must be written before a message; from then on the line counts as erased.
pub(crate) fn before_message() -> &'static str {
    if IS_DRAWN.swap(false, Ordering::Relaxed) { ERASE } else { "" }
}

/// Leaves the line where it is: the terminal belongs to another process group now.
pub(crate) fn abandon() {
    IS_DRAWN.store(false, Ordering::Relaxed);
}

fn columns() -> usize {
    let columns = tcgetwinsize(stderr()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { DEFAULT_COLUMNS } else { columns }
}

/// Returns the first text that leaves the last column free, or the beginning of the last one. A terminal that wraps a line
/// could not erase it.
fn fit(texts: &[String], columns: usize) -> String {
    let room = columns.saturating_sub(1);
    let texts = texts.iter().map(|text| plain(text));
    let mut shortest = String::new();
    for text in texts {
        if text_width(&text) <= room {
            return text;
        }
        shortest = text;
    }
    cut(&shortest, room)
}

/// Returns the beginning of a text that is as wide as `room` at most, its last column an ellipsis.
pub(crate) fn cut(text: &str, room: usize) -> String {
    let mut used = 1;
    let fits = |c: &char| {
        used += width(*c);
        used <= room
    };
    if room == 0 { String::new() } else { text.chars().take_while(fits).chain(['…']).collect() }
}

/// Returns the columns that a text takes at most.
pub(crate) fn text_width(text: &str) -> usize {
    text.chars().map(width).sum()
}

/// Returns the columns that a character takes at most.
fn width(c: char) -> usize {
    // From here on there are wide characters; those that are narrow leave a gap, which does no harm.
    if c < '\u{1100}' || c == '…' { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_text_that_fits_is_drawn() {
        let texts = ["waiting for a lock".to_owned(), "waiting".to_owned()];
        assert_eq!(fit(&texts, 19), "waiting for a lock");
        assert_eq!(fit(&texts, 18), "waiting");
        assert_eq!(fit(&texts, 8), "waiting");
        assert_eq!(fit(&texts, 7), "waiti…");
        assert_eq!(fit(&texts, 2), "…");
        assert_eq!(fit(&texts, 1), "");
    }

    #[test]
    fn wide_and_hostile_characters_do_not_wrap_the_line() {
        assert_eq!(fit(&["🔒🔒🔒".to_owned()], 6), "🔒🔒…");
        assert_eq!(fit(&["a\u{1b}[2J\nb".to_owned()], 80), "a\\u{1b}[2J\\nb");
    }

    #[test]
    fn a_terminal_without_a_cursor_has_no_live_line() {
        assert!(has_cursor(Some("xterm-256color")));
        assert!(![None, Some(""), Some("dumb")].into_iter().any(has_cursor));
    }
}
