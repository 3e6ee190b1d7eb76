//! Renews leases in one round trip. Most flights of a client that holds locks are renewals, and what one costs must not depend on
//! the holders and waiters of its lock.

use std::collections::{BTreeSet, HashMap};

use fencepost_core::backend::{Op, Reply};
use fencepost_core::{Grant, LockName, Owner, Result};
use fencepost_sql::{Row, Value, codec};

use crate::lease::fetch::{Fetch, NOW_MICROS};
use crate::lease::flight::Flight;
use crate::literal::Sql;

/// The index of the commit among the statements.
const COMMIT: usize = 4;

type Key<'k> = [(&'static str, Value<'k>); 2];

impl Flight<'_> {
    /// Renews all leases if the flight does nothing else. Returns `None` if one of them has to be decided by the rules: it may have
    /// expired.
    pub(crate) async fn renew_all(&self) -> Result<Option<Vec<Result<Reply>>>> {
        let leases: Option<Vec<(&LockName, &Grant)>> = self.ops.iter().map(renewal).collect();
        let Some(leases) = leases.filter(|leases| !leases.is_empty()) else { return Ok(None) };
        let mut lent = self.client.sessions.take().await?;
        let sets = match lent.session.run(&self.renewing(&leases), self.timeout).await {
            Ok(sets) => sets,
            Err(failure) if failure.is_connection_lost() && !lent.is_reused => {
                self.client.sessions.mark_failed();
                return Err(failure.into_commit_error(self.client.location(), COMMIT));
            }
            Err(failure) => {
                if failure.is_connection_lost() {
                    self.client.sessions.forget_idle();
                } else if lent.session.run("ROLLBACK", self.timeout).await.is_ok() {
                    self.client.sessions.put(lent);
                }
                return Ok(None);
            }
        };
        self.client.sessions.put(lent);
        let renewed =
            sets.iter().flatten().map(|row| Ok(((row.owner(0)?, row.integer(1)?), row.integer(2)?)));
        let renewed: HashMap<(Owner, i64), i64> = renewed.collect::<Result<_>>()?;
        let reply = |(_, grant): &(&LockName, &Grant)| {
            let ttl = renewed.get(&(grant.attempt.owner, codec::signed(grant.award.token.get())))?;
            Some(Ok(Reply::Renewed { ttl: codec::duration(*ttl) }))
        };
        Ok(leases.iter().map(reply).collect())
    }

    /// Returns the statements: with the rows of the locks locked, no flight takes a lease for expired that is being renewed.
    fn renewing(&self, leases: &[(&LockName, &Grant)]) -> String {
        let tables = &self.client.tables;
        let names: BTreeSet<&LockName> = leases.iter().map(|(name, _)| *name).collect();
        let keys = || leases.iter().map(|(name, grant)| key(name, grant));
        let mut sql = Sql::default();
        sql.text("START TRANSACTION; ");
        Fetch::lock(&mut sql, tables, names, self.client.is_galera);
        sql.text("; UPDATE ").keyed(keys(), ["name", "owner"], &tables.holders);
        sql.text(" SET d.until_ns = 1000 * ").text(NOW_MICROS).text(" + d.ttl_ns WHERE d.until_ns > 1000 * ");
        sql.text(NOW_MICROS).text("; SELECT d.owner, d.token, d.ttl_ns FROM ");
        sql.keyed(keys(), ["name", "owner"], &tables.holders);
        sql.text(" WHERE d.until_ns > 1000 * ").text(NOW_MICROS).text("; COMMIT");
        sql.into_string()
    }
}

/// Returns the only name of a lease to renew.
fn renewal(op: &Op) -> Option<(&LockName, &Grant)> {
    match op {
        Op::Renew(grant) => match grant.held() {
            [want] => Some((&want.name, grant)),
            _ => None,
        },
        _ => None,
    }
}

fn key<'k>(name: &'k LockName, grant: &Grant) -> Key<'k> {
    let owner = grant.attempt.owner.to_bytes().to_vec();
    [("name", name.as_str().into()), ("owner", Value::Bytes(owner.into()))]
}
