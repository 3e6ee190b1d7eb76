//! The processor time of a server: what an operation costs it, also on a busy machine.

use std::time::Duration;

/// Ticks of the times in `/proc` are hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// Returns the processor time that this process and its children have used.
pub(crate) fn used_by(pid: u32) -> Duration {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    let ticks = stats.filter_map(|stat| read(&stat)).filter(|stat| stat.pid == pid || stat.parent == pid);
    ticks.map(|stat| TICK * stat.ticks).sum()
}

/// A line of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    parent: u32,
    /// Of the process itself, and of children that have ended.
    ticks: u32,
}

fn read(stat: &str) -> Option<Stat> {
    let pid = stat.split(' ').next()?.parse().ok()?;
    // The name of the program is in parentheses, and may contain both of them and spaces.
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let parent = words.get(1)?.parse().ok()?;
    let ticks = words.get(11..15)?.iter().filter_map(|word| word.parse::<u32>().ok()).sum();
    Some(Stat { pid, parent, ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_also_of_a_program_with_a_strange_name() {
        let stat = "42 (a) b) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5";
        assert_eq!(read(stat), Some(Stat { pid: 42, parent: 7, ticks: 100 }));
        assert_eq!(read(""), None);
    }
}
