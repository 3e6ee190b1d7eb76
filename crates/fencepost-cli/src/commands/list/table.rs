//! The table of locks: aligned columns, and a row for every holder.

use std::time::Duration;

use fencepost::{HolderState, LockState};

use crate::colors::{HEADER, Palette};
use crate::durations::{show, show_lease};
use crate::environment::COMMAND_META;
use crate::live::{self, text_width};
use crate::timestamps;
use crate::words::{mode, plain};

const COLUMNS: usize = 9;
const TITLES: [&str; COLUMNS] =
    ["NAME", "MODE", "HOLDER", "TOKEN", "SINCE", "HELD FOR", "TTL LEFT", "WAITING", "COMMAND"];
const GAP: &str = "  ";
/// What is done, in this order, until a row fits the terminal.
const STEPS: [Step; 8] = [
    Step::Cut(8, 7),
    // SINCE says the same.
    Step::Omit(5),
    Step::Cut(2, 12),
    Step::Omit(1),
    Step::Cut(0, 12),
    Step::Cut(2, 8),
    Step::Cut(0, 8),
    Step::Omit(4),
];

type Row = [String; COLUMNS];
/// The widths of the columns; `None` if a column is left out.
type Widths = [Option<usize>; COLUMNS];

/// A way to make rows shorter.
enum Step {
    /// Cut the texts of a column, down to a smallest width.
    Cut(usize, usize),
    /// Leave a column out.
    Omit(usize),
}

/// Returns the table. On a terminal of this width, texts are cut and columns are left out so that no row wraps.
pub(super) fn table(locks: &[LockState], now: Duration, width: Option<usize>, palette: Palette) -> String {
    if locks.is_empty() {
        return String::new();
    }
    let rows: Vec<Row> = locks.iter().flat_map(|state| rows(state, now)).collect();
    let titles = TITLES.map(str::to_owned);
    let widest = |column: usize| {
        let cells = rows.iter().chain([&titles]).map(|row| text_width(&row[column]));
        cells.max()
    };
    let widths = fit(std::array::from_fn(widest), width);
    let header = palette.paint(HEADER, &line(&titles, &widths));
    let lines = rows.iter().map(|row| line(row, &widths));
    [header].into_iter().chain(lines).map(|line| line + "\n").collect()
}

fn rows(state: &LockState, now: Duration) -> Vec<Row> {
    let name = plain(state.name.as_str());
    let waiting = state.waiter_count.to_string();
    if state.holders.is_empty() {
        let mut row: Row = std::array::from_fn(|_| "-".to_owned());
        (row[0], row[7]) = (name, waiting);
        return vec![row];
    }
    let row = |holder: &HolderState| {
        [
            name.clone(),
            mode(holder.mode),
            plain(&holder.label),
            known(holder.token.map(|token| token.to_string())),
            known(holder.held_for.map(|held_for| timestamps::short(now.saturating_sub(held_for), now))),
            known(holder.held_for.map(show)),
            known(holder.expires_in.map(show_lease)),
            waiting.clone(),
            command(holder).map_or_else(|| "-".to_owned(), plain),
        ]
    };
    state.holders.iter().map(row).collect()
}

/// Returns the program that a holder runs, if it has recorded one.
pub(in crate::commands) fn command(holder: &HolderState) -> Option<&str> {
    holder.meta.iter().find(|(key, _)| key == COMMAND_META).map(|(_, value)| value.as_str())
}

/// The backend does not record everything about holders that are not Fencepost clients.
fn known(value: Option<String>) -> String {
    value.unwrap_or_else(|| "unknown".to_owned())
}

/// Reduces the widths so that a row fits the terminal, as far as that is possible.
fn fit(mut widths: Widths, terminal: Option<usize>) -> Widths {
    let Some(terminal) = terminal else { return widths };
    for step in STEPS {
        let shown = widths.iter().flatten();
        let row = shown.clone().sum::<usize>() + GAP.len() * (shown.count() - 1);
        let excess = row.saturating_sub(terminal);
        match step {
            _ if excess == 0 => break,
            Step::Omit(column) => widths[column] = None,
            Step::Cut(column, smallest) => {
                let cut = |width: usize| width.saturating_sub(excess).max(smallest.min(width));
                widths[column] = widths[column].map(cut);
            }
        }
    }
    widths
}

fn line(row: &Row, widths: &Widths) -> String {
    let cells = row.iter().zip(widths).filter_map(|(cell, width)| {
        let width = (*width)?;
        let cell = cut(cell, width);
        let padding = width.saturating_sub(text_width(&cell));
        Some(cell + &" ".repeat(padding))
    });
    cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
}

/// Returns the text in at most this many columns.
fn cut(text: &str, width: usize) -> String {
    if text_width(text) <= width { text.to_owned() } else { live::cut(text, width) }
}

#[cfg(test)]
mod tests {
    use fencepost::Mode;

    use super::*;
    use crate::sample;

    /// 2026-05-09T07:29:33Z.
    const NOW: Duration = Duration::from_secs(1_778_311_773);

    fn lock(name: &str, holders: &[(&str, u64)]) -> LockState {
        let holder = |(label, token): &(&str, u64)| sample::holder(label, *token, Mode::Shared);
        let mut state = sample::lock(name, holders.iter().map(holder));
        state.waiter_count = 2;
        state
    }

    fn locks() -> [LockState; 2] {
        let mut locks = [lock("a", &[("web-3:4711:deploy", 7), ("x", 12)]), lock("invoice/42", &[])];
        locks[0].holders[0].meta = [("command".to_owned(), "/srv/jobs/import.sh".to_owned())].into();
        locks
    }

    #[test]
    fn columns_are_aligned_and_every_holder_has_a_row() {
        assert_eq!(
            table(&locks(), NOW, None, Palette::PLAIN),
            "NAME        MODE    HOLDER             TOKEN  SINCE      HELD FOR  TTL LEFT  WAITING  COMMAND\n\
             a           shared  web-3:4711:deploy  7      07:27:23Z  2m10s     21s       2        /srv/jobs/import.sh\n\
             a           shared  x                  12     07:27:23Z  2m10s     21s       2        -\n\
             invoice/42  -       -                  -      -          -         -         2        -\n"
        );
        assert_eq!(table(&[], NOW, None, Palette::PLAIN), "");
    }

    #[test]
    fn a_narrow_terminal_gets_shorter_texts_and_then_fewer_columns() {
        let at = |width| table(&locks(), NOW, Some(width), Palette::PLAIN);
        let row = |width| at(width).lines().nth(1).unwrap().to_owned();
        assert_eq!(
            row(97),
            "a           shared  web-3:4711:deploy  7      07:27:23Z  2m10s     21s       2        /srv/jobs/…"
        );
        assert_eq!(
            row(90),
            "a           shared  web-3:4711:deploy  7      07:27:23Z  21s       2        /srv/j…"
        );
        assert_eq!(
            row(80),
            "a           shared  web-3:4711:de…  7      07:27:23Z  21s       2        /srv/j…"
        );
        assert_eq!(row(66), "a           web-3:4…  7      07:27:23Z  21s       2        /srv/j…");
        assert_eq!(row(60), "a         web-3:4…  7      21s       2        /srv/j…");
        for width in 53..120 {
            assert!(at(width).lines().all(|line| line.chars().count() <= width), "{width}");
        }
        assert_eq!(at(20), at(10), "a terminal that is too narrow for the rest");
    }

    #[test]
    fn real_tokens_and_labels_fit_80_columns() {
        let mut lock = sample::lock(
            "jobs/nightly-backup",
            [sample::holder("web-3.example:4711:deploy", 1_794_836_636_425_356, Mode::Exclusive)],
        );
        lock.holders[0].meta = [("command".to_owned(), "./backup.sh".to_owned())].into();
        let text = table(&[lock], NOW, Some(80), Palette::PLAIN);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("  SINCE  ") && text.contains("  07:27:23Z  "), "{text}");
    }

    #[test]
    fn wide_characters_keep_the_columns_aligned() {
        let locks = [lock("🔒🔒", &[("web", 7)]), lock("a", &[("語語語語語語語語語語", 8)])];
        assert_eq!(
            table(&locks, NOW, None, Palette::PLAIN),
            "NAME  MODE    HOLDER                TOKEN  SINCE      HELD FOR  TTL LEFT  WAITING  COMMAND\n\
             🔒🔒  shared  web                   7      07:27:23Z  2m10s     21s       2        -\n\
             a     shared  語語語語語語語語語語  8      07:27:23Z  2m10s     21s       2        -\n"
        );
        for width in 60..90 {
            let text = table(&locks, NOW, Some(width), Palette::PLAIN);
            assert!(text.lines().all(|line| text_width(line) <= width), "{width}\n{text}");
        }
    }

    #[test]
    fn only_the_header_is_coloured() {
        let text = table(&locks(), NOW, None, Palette::COLORED);
        assert!(
            text.starts_with("\u{1b}[1mNAME ") && text.lines().next().unwrap().ends_with("COMMAND\u{1b}[0m")
        );
        assert_eq!(text.matches('\u{1b}').count(), 2);
    }
}
