//! A primary and a standby that replicates it.

use super::{PostgresServer, PostgresServerConfig, SUPERUSER, programs, start_together};
use crate::wait;
use crate::wire::Wire;

/// The name of the standby in `synchronous_standby_names`.
const STANDBY: &str = "standby";

/// When the primary confirms a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// When it has written it itself: a promotion may lose the last commits.
    Asynchronous,
    /// When the standby has written it too. Without the standby, commits wait.
    Synchronous,
}

/// Two servers, which replicate through a [`Wire`].
#[derive(Debug)]
pub struct PostgresPair {
    primary: PostgresServer,
    standby: PostgresServer,
    wire: Wire,
}

impl PostgresPair {
    /// Starts both and waits until the standby replicates.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start(replication: Replication) -> Self {
        Self::start_with(replication, &PostgresServerConfig::plain())
    }

    /// Like [`PostgresPair::start`], with servers of this configuration, which must accept unencrypted connections.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start_with(replication: Replication, config: &PostgresServerConfig) -> Self {
        // A standby connects again at once; by default it would wait for 5 s.
        let config = config.clone().with_setting("wal_retrieve_retry_interval", "100ms");
        let primary = PostgresServer::start(&config);
        let wire = Wire::to(primary.port());
        let [standby] = start_together(|| {
            [PostgresServer::prepare(&config, |data| {
                let source = format!(
                    "host=127.0.0.1 port={} user={SUPERUSER} application_name={STANDBY}",
                    wire.port()
                );
                let mut copy = programs::command("pg_basebackup", data.parent().expect("it has one"));
                copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--no-password"]);
                copy.args(["--dbname", &source, "--pgdata"]).arg(data);
                copy.env("PGPASSWORD", config.password_of(SUPERUSER).unwrap_or_default());
                programs::output(&mut copy).unwrap_or_else(|error| panic!("pg_basebackup failed: {error}"));
            })]
        });
        let pair = Self { primary, standby, wire };
        pair.wait_until_connected();
        if replication == Replication::Synchronous {
            pair.primary.change_setting("synchronous_standby_names", STANDBY);
            wait::block_until("the standby is synchronous", || pair.replication_state() == "streaming|sync");
        }
        pair
    }

    /// Returns the server that was started as the primary.
    pub fn primary(&self) -> &PostgresServer {
        &self.primary
    }

    /// Returns the server that was started as the standby; it is the primary after [`PostgresPair::promote`].
    pub fn standby(&self) -> &PostgresServer {
        &self.standby
    }

    /// Returns the wire through which the standby replicates: while it is cut, commits do not arrive.
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Waits until the standby replicates.
    ///
    /// # Panics
    /// If it does not in time.
    pub fn wait_until_connected(&self) {
        wait::block_until("the standby replicates", || self.replication_state().starts_with("streaming"));
    }

    fn replication_state(&self) -> String {
        self.primary.psql("SELECT state, sync_state FROM pg_stat_replication")
    }

    /// Waits until queries on the standby see all that is committed on the primary at present.
    ///
    /// # Panics
    /// If they do not in time.
    pub fn wait_until_caught_up(&self) {
        let position = self.primary.psql("SELECT pg_current_wal_insert_lsn()");
        let query = format!("SELECT pg_last_wal_replay_lsn() >= '{position}'");
        wait::block_until("the standby catches up", || self.standby.psql(&query) == "t");
    }

    /// Makes the standby a primary. The old primary is not told: a test kills, pauses or keeps it before.
    ///
    /// # Panics
    /// If it is not promoted in time.
    pub fn promote(&self) {
        assert_eq!(self.standby.psql("SELECT pg_promote(true, 30)"), "t", "{}", self.standby.log());
    }
}
