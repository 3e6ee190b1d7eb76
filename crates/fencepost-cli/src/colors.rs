//! Colours: on a terminal only, unless `--color` says otherwise. No text has its meaning from a colour alone.

use std::ffi::OsString;
use std::io;

use anstream::AutoStream;
use anstream::stream::RawStream;
use anstyle::{AnsiColor, Style};
use clap::{ColorChoice, ValueEnum};
use fencepost::Severity;

pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const HEADER: Style = Style::new().bold();

/// Returns the style of a verdict of the doctor.
pub(crate) fn severity(severity: Severity) -> Style {
    match severity {
        Severity::Ok => GOOD,
        Severity::Warning => WARNING,
        Severity::Problem => ERROR,
    }
}

/// Sets when colours are used, for the whole process.
pub(crate) fn choose(choice: ColorChoice) {
    let choice = match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// Returns the `--color` of a command line that could not be parsed.
pub(crate) fn asked_for(args: impl IntoIterator<Item = OsString>) -> ColorChoice {
    let mut args = args.into_iter();
    let mut found = ColorChoice::Auto;
    while let Some(arg) = args.next() {
        let value = match arg.to_str() {
            Some("--color") => args.next(),
            Some(arg) => arg.strip_prefix("--color=").map(OsString::from),
            None => None,
        };
        if let Some(choice) = value.and_then(|value| ColorChoice::from_str(value.to_str()?, false).ok()) {
            found = choice;
        }
    }
    found
}

/// Whether text for one stream is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Palette {
    enabled: bool,
}

impl Palette {
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { enabled: false };
    #[cfg(test)]
    pub(crate) const COLORED: Self = Self { enabled: true };

    pub(crate) fn stdout() -> Self {
        Self::of(&io::stdout())
    }

    pub(crate) fn stderr() -> Self {
        Self::of(&io::stderr())
    }

    fn of(stream: &impl RawStream) -> Self {
        Self { enabled: AutoStream::choice(stream) != anstream::ColorChoice::Never }
    }

    pub(crate) fn is_enabled(self) -> bool {
        self.enabled
    }

    /// Returns the text in this style, or unchanged if colours are off.
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        if self.enabled { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_valid_choice_of_a_broken_command_line_counts() {
        let asked = |words: &[&str]| asked_for(words.iter().map(OsString::from));
        assert_eq!(asked(&["fencepost", "lst"]), ColorChoice::Auto);
        assert_eq!(asked(&["fencepost", "--color", "never", "lst"]), ColorChoice::Never);
        assert_eq!(asked(&["fencepost", "--color=never", "lst", "--color=always"]), ColorChoice::Always);
        assert_eq!(asked(&["fencepost", "--color=blue", "--color"]), ColorChoice::Auto);
    }

    #[test]
    fn text_is_painted_only_if_colours_are_on() {
        assert_eq!(Palette::PLAIN.paint(ERROR, "error:"), "error:");
        assert_eq!(Palette::COLORED.paint(HEADER, "NAME"), "\u{1b}[1mNAME\u{1b}[0m");
    }
}
