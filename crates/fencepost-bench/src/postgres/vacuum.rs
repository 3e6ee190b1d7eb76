//! What a busy lock leaves for vacuum: 16 tasks hand it over without a pause, on a server that does not sync, until it has had as
//! many turns as asked for (an hour of turns of 5 ms is about 670,000), with autovacuum and without.

use std::time::Duration;

use super::{DATABASE, Postgres};
use crate::compare::docs::Page;
use crate::compare::{BenchServer, Setting, hold_times, ours};
use crate::contended::WAITERS;
use crate::report::Report;
use crate::rounds::{Reading, Rounds};
use crate::statistics::number;
use crate::workers::{self, Order};

const DEAD_PER_TURN: &str = "dead row versions per turn";
const HOT: &str = "HOT share of updates";
const DEAD_AT_END: &str = "dead rows at the end";
const TABLES: &str = "size of the tables";
const INDEXES: &str = "size of the indexes";
const RATE: &str = "turns per second";
const LAST_RATE: &str = "turns per second at the end";

/// Measures both settings.
pub(crate) fn measure(setting: &mut Setting<Postgres>, report: &mut Report) {
    let mut rounds = Rounds::new("vacuum", Postgres::NAME);
    for (subject, is_on) in [("autovacuum on", "on"), ("autovacuum off", "off")] {
        // Turns are faster than in the hour that they stand for: so is autovacuum.
        let mut postgres = Postgres::unsynced_with(&[("autovacuum", is_on), ("autovacuum_naptime", "3s")]);
        match turns(&mut postgres, setting.turns, setting.length) {
            Ok((turns, values)) => rounds.add(subject, WAITERS, turns, &values),
            Err(why) => report.note(Postgres::NAME, &format!("vacuum: {subject}: {why}")),
        }
    }
    rounds.report(report);
}

/// Adds the figures to the page.
pub(crate) fn add_section(page: &mut Page<'_>) {
    let columns = [
        ("dead row versions per turn", WAITERS, DEAD_PER_TURN),
        ("HOT share of updates", WAITERS, HOT),
        ("dead rows at the end", WAITERS, DEAD_AT_END),
        ("tables, kB", WAITERS, TABLES),
        ("indexes, kB", WAITERS, INDEXES),
        ("turns/s", WAITERS, RATE),
        ("at the end", WAITERS, LAST_RATE),
    ];
    page.table("A busy lock and vacuum: 16 tasks, without hold and think time", "vacuum", &columns);
}

/// Runs this many turns, in parts of this length; returns how many they were, and what they left.
fn turns(postgres: &mut Postgres, wanted: usize, length: Duration) -> Result<(usize, Vec<Reading>), String> {
    let order = Order {
        hold: Duration::ZERO,
        think: Duration::ZERO,
        ..Order::contended(&postgres.url(), WAITERS, length)
    };
    let (mut turns, mut wall, mut last_rate) = (0, 0.0, 0.0);
    while turns < wanted {
        let found = workers::run(&ours::subject().program, &order, 1)?;
        let part = hold_times::count(&found);
        let seconds: f64 = found.iter().map(|found| found.wall).sum();
        last_rate = number(part) / seconds;
        turns += part;
        wall += seconds;
    }
    let sql = format!(
        "SELECT sum(n_tup_upd + n_tup_del), sum(n_tup_upd), sum(n_tup_hot_upd), sum(n_dead_tup),
            sum(pg_table_size(relid)) / 1024, sum(pg_indexes_size(relid)) / 1024
        FROM pg_stat_user_tables WHERE schemaname = 'bench{}'",
        postgres.subjects
    );
    let row = postgres.server.try_psql(DATABASE, &sql)?;
    let columns: Vec<f64> = row.trim().split('|').filter_map(|word| word.parse().ok()).collect();
    let [dead, updates, hot, at_end, tables, indexes] = columns[..] else {
        return Err(format!("the statistics cannot be read: {row:?}"));
    };
    let value = |metric, value, unit| Reading { metric, value, unit };
    let values = vec![
        value(DEAD_PER_TURN, dead / number(turns), "rows"),
        value(HOT, hot / updates.max(1.0), "share"),
        value(DEAD_AT_END, at_end, "rows"),
        value(TABLES, tables, "kB"),
        value(INDEXES, indexes, "kB"),
        value(RATE, number(turns) / wall, "/s"),
        value(LAST_RATE, last_rate, "/s"),
    ];
    Ok((turns, values))
}
