//! `fencepost man`: man pages, generated from the definition of the command line.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use fencepost::{Error, ErrorKind, Result, did_you_mean};

use super::{failed, printed};
use crate::args;
use crate::exit::Exit;
use crate::output;
use crate::words::shortened;

pub(crate) fn man(args: &args::Man) -> Result<Exit> {
    let mut root = args::Args::command().disable_help_subcommand(true);
    root.build();
    if let Some(dir) = &args.dir {
        return write_all(&root, dir).map(|()| Exit::Done);
    }
    let command = match &args.command {
        None => &root,
        Some(name) => root.find_subcommand(name).ok_or_else(|| unknown(&root, name))?,
    };
    let page = page(command).map_err(|error| failed("could not format the page", error))?;
    printed(output::results(page))
}

fn unknown(root: &Command, name: &str) -> Error {
    let known: Vec<&str> = root.get_subcommands().map(Command::get_name).collect();
    let suggestion = did_you_mean(name, known.iter().copied());
    Error::new(ErrorKind::BadConfig, format!("there is no command {:?}{suggestion}", shortened(name)))
        .with_hint(format!("the commands are {}", known.join(", ")))
}

fn write_all(root: &Command, dir: &Path) -> Result<()> {
    for command in std::iter::once(root).chain(root.get_subcommands()) {
        let path = dir.join(format!("{}.1", command.get_display_name().unwrap_or(command.get_name())));
        let written = page(command).and_then(|page| fs::write(&path, page));
        written.map_err(|error| failed(&format!("could not write {}", path.display()), error))?;
    }
    Ok(())
}

/// Returns the page of one command. clap's own renderer would run the lines of the examples together.
fn page(command: &Command) -> io::Result<String> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let long_help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    Ok(String::from_utf8_lossy(&page).into_owned() + &sections(&long_help))
}

/// Converts the long help: a line in capitals begins a section, indented lines stay as they are, other lines are filled.
fn sections(help: &str) -> String {
    let line = |line: &str| match escape(line) {
        text if is_heading(line) => format!(".SH \"{text}\"\n"),
        text if line.starts_with(' ') => format!(".nf\n{text}\n.fi\n"),
        text if text.is_empty() => ".PP\n".to_owned(),
        text => text + "\n",
    };
    let roff = help.lines().map(line).collect::<String>();
    // Text before the first section needs a section, too.
    if roff.starts_with(".SH") || roff.is_empty() { roff } else { format!(".SH NOTES\n{roff}") }
}

fn is_heading(line: &str) -> bool {
    line.split([' ', ','])
        .next()
        .is_some_and(|word| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase()))
}

/// Escapes what roff would interpret.
fn escape(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_command_is_answered_with_the_nearest() {
        let root = args::Args::command();
        assert_eq!(unknown(&root, "rnu").to_string(), "there is no command \"rnu\"; did you mean \"run\"?");
        assert_eq!(unknown(&root, "elephant").to_string(), "there is no command \"elephant\"");
    }

    #[test]
    fn headings_begin_sections_and_examples_keep_their_lines() {
        assert_eq!(
            sections("Reads it.\nTwice.\n\nEXAMPLES\n  a -n\n  'b' \\\n"),
            ".SH NOTES\nReads it.\nTwice.\n.PP\n.SH \"EXAMPLES\"\n.nf\n  a \\-n\n.fi\n.nf\n  'b' \\e\n.fi\n"
        );
        assert_eq!(sections("JSON, one object per line\n"), ".SH \"JSON, one object per line\"\n");
        assert!(!is_heading("A duration is 30") && is_heading("EXIT CODES, first that applies"));
    }
}
