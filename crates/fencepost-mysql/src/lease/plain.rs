//! Flights of plain operations, in one round trip: acquires of locks of which nothing is stored, releases that leave nothing behind,
//! and renewals. Most flights have no others. The server checks that they are plain before it commits; if they are not, the rules
//! decide.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Op, Reply};
use fencepost_core::clock::StorageTime;
use fencepost_core::lock_table::LockTable;
use fencepost_core::record::{Holder, LockRecord};
use fencepost_core::{Attempt, Award, FencingToken, Grant, LockName, Result};
use fencepost_sql::{Row, Value, codec, holder_columns, holder_values};

use crate::lease::fetch::{Counter, Fetch, NOW_MICROS};
use crate::lease::flight::{Flight, Replies, Retry, Round};
use crate::lease::save::{Key, MAX_REQUEST, Statements};
use crate::lease::state::ClientState;
use crate::literal::UNMINTED;
use crate::session::Rows;
use crate::sessions::Lent;

/// The operations of a flight that may be plain. Each is about one lock, and no two are about the same one, apart from renewals.
#[derive(Debug, Default)]
pub(crate) struct Plain<'a> {
    acquires: Vec<&'a Arc<Attempt>>,
    releases: Vec<&'a Grant>,
    renewals: Vec<&'a Grant>,
}

impl<'a> Plain<'a> {
    /// Returns the operations of a flight, unless one cannot be plain.
    fn of(flight: &Flight<'a>) -> Option<Self> {
        let mut plain = Self::default();
        let (mut changed, mut renewed) = (HashSet::new(), HashSet::new());
        for op in flight.ops {
            let [want] = op.wants() else { return None };
            match op {
                // An owner that was sent before may have a ticket.
                Op::Acquire { attempt, .. } if !flight.wanted.acquiring.contains(&attempt.owner) => {
                    plain.acquires.push(attempt);
                }
                Op::Release(grant) => plain.releases.push(grant),
                Op::Renew(grant) => {
                    renewed.insert(&want.name);
                    plain.renewals.push(grant);
                    continue;
                }
                _ => return None,
            }
            if !changed.insert(&want.name) {
                return None;
            }
        }
        (!flight.ops.is_empty() && changed.is_disjoint(&renewed)).then_some(plain)
    }

    /// Whether it can be repeated although it may have been executed.
    fn is_repeatable(&self) -> bool {
        self.acquires.is_empty() && self.releases.is_empty()
    }
}

impl<'a> Flight<'a> {
    /// Returns the operations of the flight if all of them are likely to be plain.
    pub(crate) fn plain(&self, lent: &Lent<'_>) -> Option<Plain<'a>> {
        let plain = Plain::of(self)?;
        let Self { client, wanted, .. } = self;
        let is_held = |attempt: &&Arc<Attempt>| client.held.contains(&attempt.wants[0].name);
        let is_likely = !client.is_galera
            && client.busy.among(&wanted.names).is_empty()
            && !plain.acquires.iter().any(is_held);
        // The server may have closed a connection that was not used for a while: the outcome would be unknown.
        let is_safe = plain.is_repeatable() || lent.session.was_used_lately();
        (is_likely && is_safe).then_some(plain)
    }

    /// Executes the operations and commits. [`Retry::Again`] if one of them is not plain.
    pub(crate) async fn execute_plain(&mut self, lent: &mut Lent<'_>, plain: &Plain<'_>) -> Round<Replies> {
        let counter = if plain.acquires.is_empty() { Counter::Keep } else { Counter::of(&mut lent.session) };
        let request = self.plain_request(plain, counter);
        if request.sql.len() > MAX_REQUEST {
            return Err(Retry::Again);
        }
        let commit = request.count - 1;
        // If it is refused, because of a tombstone for example, the rules look for all that may be stored about these owners.
        self.wanted.acquiring.extend(plain.acquires.iter().map(|attempt| attempt.owner));
        let sets = lent.session.run(request.sql.as_str(), self.timeout).await.map_err(|failure| {
            if failure.is_not_plain() {
                Retry::Again
            } else if plain.is_repeatable() {
                self.before_commit(failure)
            } else {
                self.at_commit(failure, commit)
            }
        })?;
        lent.session.has_raised |= !plain.acquires.is_empty();
        plain.releases.iter().for_each(|grant| self.client.held.remove(name_of(grant)));
        self.plain_replies(&sets).map_err(Retry::Failed)
    }

    fn plain_request(&self, plain: &Plain<'_>, counter: Counter) -> Statements {
        let tables = &self.client.tables;
        let mut request = Statements::default();
        request.next().text("START TRANSACTION");
        if counter == Counter::Raise {
            Fetch::raise(request.next(), tables);
        }
        let renewed: BTreeSet<_> = plain.renewals.iter().map(|grant| name_of(grant)).collect();
        // A row that exists must not count as one that was created, nor like it: with CLIENT_FOUND_ROWS, which a proxy may have set,
        // one that is not changed counts 1, and one that is changed counts 2 in any case.
        let created = plain.acquires.len() + 2 * (renewed.len() + plain.releases.len());
        if !plain.acquires.is_empty() {
            Fetch::lock(request.next(), tables, &self.wanted.names, ("1", "version = version + 1"));
        } else if !renewed.is_empty() {
            Fetch::lock(request.next(), tables, &self.wanted.names, ("1", "name = name"));
        }
        self.put_acquired(&mut request, &plain.acquires);
        self.extend_renewed(&mut request, &plain.renewals);
        self.remove_released(&mut request, &plain.releases);
        let counts = [
            ("@fp_created", created, plain.acquires.is_empty()),
            ("@fp_renewed", plain.renewals.len(), plain.renewals.is_empty()),
            // The rows of the statement before this one.
            ("ROW_COUNT()", plain.releases.len(), plain.releases.is_empty()),
        ];
        let counts = counts.into_iter().filter(|(.., is_unused)| !is_unused);
        // An overflow is an error, which ends the request before the commit.
        let sql = request.next().text("SELECT LAST_INSERT_ID(), EXP(710 * (");
        sql.separated(" OR ", counts, |sql, (found, count, _)| {
            sql.text(found).text(" <> ").number(count);
        });
        if plain.acquires.is_empty() {
            sql.text("))");
        } else {
            // The request may arrive after its sender has left the queue.
            sql.text(" OR COUNT(*) > 0)) FROM ").text(&tables.tombstones).text(" WHERE owner");
            sql.owners(plain.acquires.iter().map(|attempt| attempt.owner));
        }
        request.next().text("COMMIT");
        request
    }

    fn put_acquired(&self, request: &mut Statements, acquires: &[&Arc<Attempt>]) {
        if acquires.is_empty() {
            return;
        }
        request.next().text("SET @fp_created = ROW_COUNT()");
        request.mint(&self.client.tables, acquires.len() as u64);
        let sql = request.next().text("INSERT INTO ").text(&self.client.tables.holders);
        sql.text(concat!(" (", holder_columns!(), ") VALUES "));
        sql.list((UNMINTED..).zip(acquires), |sql, (token, attempt)| {
            let holder = self.holder(attempt, FencingToken::new(token));
            sql.row(&holder_values(&attempt.wants[0].name, &holder), |sql, column| {
                match column {
                    2 => sql.minted(token),
                    5 => sql.text("1000 * ").text(NOW_MICROS).text(" + ").number(codec::nanos(attempt.ttl)),
                    6 => sql.text(NOW_MICROS).text(" DIV 1000"),
                    _ => return false,
                };
                true
            });
        });
    }

    /// Returns the holder of a plain acquire; the server adds the times.
    fn holder(&self, attempt: &Attempt, token: FencingToken) -> Holder {
        Holder {
            owner: attempt.owner,
            token,
            mode: attempt.wants[0].mode,
            ttl: attempt.ttl,
            until: StorageTime::from_nanos(0),
            since: Duration::ZERO,
            client: self.client.id,
            names: None,
            chosen: 0,
            label: attempt.label.clone(),
            meta: attempt.meta.clone(),
        }
    }

    fn extend_renewed(&self, request: &mut Statements, renewals: &[&Grant]) {
        if renewals.is_empty() {
            return;
        }
        let keys: Vec<_> = renewals.iter().map(|grant| holder_key(grant)).collect();
        let sql = request.next().text("UPDATE ").keyed(&self.client.tables.holders, &keys);
        sql.text(" SET d.until_ns = 1000 * ").text(NOW_MICROS).text(" + d.ttl_ns WHERE ").matching(&keys);
        sql.text(" AND d.until_ns > 1000 * ").text(NOW_MICROS);
        request.next().text("SET @fp_renewed = ROW_COUNT()");
    }

    /// Removes the rows of the locks, sorted, and then as many holders.
    fn remove_released(&self, request: &mut Statements, releases: &[&Grant]) {
        if releases.is_empty() {
            return;
        }
        let tables = &self.client.tables;
        let mut keys: Vec<_> = releases.iter().map(|grant| (name_of(grant), holder_key(grant))).collect();
        keys.sort_by_key(|(name, _)| *name);
        let keys: Vec<_> = keys.into_iter().map(|(_, key)| key).collect();
        let names: Vec<_> = keys.iter().map(|[name, ..]| [name.clone()]).collect();
        let sql = request.next().text("DELETE d FROM ").keyed(&tables.locks, &names);
        sql.text(" WHERE ").matching(&names).text(" AND d.is_plain = 1");
        let sql = request.next().text("DELETE d FROM ").keyed(&tables.holders, &keys).text(" WHERE ");
        sql.matching(&keys).text(" AND d.until_ns > 1000 * ").text(NOW_MICROS);
        sql.text(" AND ROW_COUNT() = ").number(releases.len());
    }

    fn plain_replies(&self, sets: &[Rows]) -> Result<Replies> {
        let mut tokens =
            sets.iter().flatten().next().map_or(Ok(0), |row| row.integer(0)).map(codec::unsigned)?..;
        let reply = |op: &Op| match op {
            Op::Acquire { attempt, .. } => {
                let token = FencingToken::new(tokens.next().unwrap_or(0));
                Reply::Granted(Award { token, ttl: attempt.ttl, chosen: 0, elapsed: Duration::ZERO })
            }
            Op::Renew(grant) => Reply::Renewed { ttl: grant.award.ttl },
            _ => Reply::Released,
        };
        Ok(self.ops.iter().map(reply).map(Ok).collect())
    }

    /// Records which locks are in use after a flight that the rules have decided: no operation on them is likely to be plain, or
    /// only those of their holder.
    pub(crate) fn note_busy(&self, table: &LockTable) {
        let ClientState { busy, held, .. } = self.client;
        for name in &self.wanted.names {
            let record = table.record(name).filter(|record| !record.is_empty());
            let is_held = record.is_some_and(has_holder_only);
            held.set(name, is_held);
            busy.set(name, record.is_some() && !is_held);
        }
    }
}

/// Whether nothing is stored about a lock but one holder: its release is plain.
pub(crate) fn has_holder_only(record: &LockRecord) -> bool {
    record.holders.len() == 1 && record.cell.is_none() && record.positions(0..u64::MAX).next().is_none()
}

fn name_of(grant: &Grant) -> &LockName {
    &grant.held()[0].name
}

fn holder_key(grant: &Grant) -> Key<'_, 3> {
    let owner = grant.attempt.owner.to_bytes().to_vec();
    [
        ("name", name_of(grant).as_str().into()),
        ("owner", Value::Bytes(owner.into())),
        ("token", codec::signed(grant.award.token.get()).into()),
    ]
}
