//! `ShedLock`'s own provider for JDBC, on PostgreSQL and MariaDB. It never waits, so that a task asks again after a pause.

use super::java;
use super::subject::{Subject, root};

/// Its name in the figures.
pub(crate) const NAME: &str = "ShedLock";

/// With more threads it is the machine that is measured.
const SHEDLOCK_TASKS: &[usize] = &[1, 64];

/// What it connects to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Database {
    Postgres,
    Mariadb,
}

pub(crate) fn subject(database: Database) -> Result<Subject, String> {
    // The interoperation tests have the same dependencies.
    let model = root().join("crates/fencepost-interop/peers/shedlock/pom.xml");
    let (mut program, version) = java::worker("shedlock", &model, "shedlock-provider-jdbc-template")?;
    program.push(
        match database {
            Database::Postgres => "postgresql",
            Database::Mariadb => "mariadb",
        }
        .into(),
    );
    let what = "JdbcTemplateLockProvider with the database's time, 16 connections of HikariCP; asked every 10 ms while the lock is held";
    Ok(Subject { name: NAME, version: format!("{version}, {what}"), program, tasks: SHEDLOCK_TASKS })
}
