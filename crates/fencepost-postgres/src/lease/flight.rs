//! Sends flights: one call of the function `flight` each.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::{Error, ErrorKind, Result, request_timeout};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use crate::config::quoted;
use crate::error::call_failed;
use crate::lease::encode::{Arguments, PLAIN};
use crate::lease::pool::Connection;
use crate::lease::reply::{self, LOCKED, PUSH, ReplyRow};
use crate::lease::state::ClientState;
use crate::lease::{listener, push};

/// The timeout of operations that have no ttl.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before an operation is sent again whose row another transaction has locked.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// How often a waiter checks that the server cannot push to.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The types of the arguments of `flight`.
const TYPES: &[Type] = &[
    Type::INT8,
    Type::INT4,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT4_ARRAY,
    Type::INT4_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::BOOL_ARRAY,
    Type::UUID_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::BYTEA_ARRAY,
];

/// The statement of a flight with one operation.
const SINGLE: &str = include_str!("single.sql");

/// Returns the statements to prepare, and the types of their parameters: that of every flight, and that of flights with one
/// operation of class 1.
pub(crate) fn statements(namespace: &str) -> Vec<(String, &'static [Type])> {
    let single = SINGLE.replace("@schema@", &quoted(namespace));
    vec![(sql(namespace), TYPES), (single, TYPES)]
}

fn sql(namespace: &str) -> String {
    let parameters: Vec<String> = (1..=TYPES.len()).map(|number| format!("${number}")).collect();
    format!(
        "SELECT op, code, token, number, note, bytes FROM {}.flight({})",
        quoted(namespace),
        parameters.join(", ")
    )
}

/// Why a call has no result.
enum CallError {
    /// Another transaction has locked a row for too long, or there was a deadlock. Nothing was applied.
    Locked,
    Failed(Error),
}

/// What a call does about rows that another transaction has locked: how long it waits, in ms, or 0 to skip them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Locking {
    /// Waits as long as other flights take.
    Brief = 250,
    /// Waits longer: the call delays no other lock.
    Patient = 500,
    Skip = 0,
    /// Skips them, but adds waiters to their queues.
    SkipAndJoin = -1,
}

/// Executes the operations. Those on rows that a transaction of another program has locked delay no other.
pub(crate) async fn execute(state: &Arc<ClientState>, ops: &[Op]) -> Vec<Result<Reply>> {
    let timeout = ops.iter().filter_map(Op::ttl).min().map_or(TIMEOUT, request_timeout);
    let flight = Flight { state, ops, deadline: state.clock.now() + timeout };
    let (apart, together): (Vec<usize>, Vec<usize>) =
        (0..ops.len()).partition(|index| state.is_suspect(&ops[*index]));
    let (together, apart) = futures_util::future::join(flight.together(together), flight.apart(apart)).await;
    let mut replies: Vec<Option<Result<Reply>>> = ops.iter().map(|_| None).collect();
    for (index, reply) in together.into_iter().chain(apart) {
        replies[index] = Some(reply);
    }
    let missing = || Err(reply::unexpected(&state.location));
    let replies: Vec<_> = replies.into_iter().map(|reply| reply.unwrap_or_else(missing)).collect();
    if replies.iter().any(|reply| matches!(reply, Ok(Reply::Waiting { .. }))) {
        listener::start(state, None);
    }
    sweep(state, ops);
    replies
}

/// Replies, with the indices of their operations.
type Replies = Vec<(usize, Result<Reply>)>;

struct Flight<'a> {
    state: &'a Arc<ClientState>,
    ops: &'a [Op],
    deadline: Moment,
}

impl Flight<'_> {
    /// Executes operations in one call. Those that it cannot execute because their rows are locked are then kept apart.
    async fn together(&self, mut indices: Vec<usize>) -> Replies {
        let mut replies = Vec::with_capacity(indices.len());
        for locking in [Locking::Brief, Locking::Skip] {
            if !self.call(&mut indices, locking, &mut replies).await {
                break;
            }
        }
        if !indices.is_empty() {
            for index in &indices {
                self.state.suspect(&self.ops[*index], false);
            }
            replies.extend(Box::pin(self.apart(indices)).await);
        }
        replies
    }

    /// Executes operations on rows that another transaction has locked. If it is not a flight, it may take for ever.
    async fn apart(&self, indices: Vec<usize>) -> Replies {
        let mut replies = Vec::with_capacity(indices.len());
        let is_confirmed = |index: &usize| self.state.is_confirmed(&self.ops[*index]);
        let (mut confirmed, mut suspects): (Vec<usize>, Vec<usize>) =
            indices.into_iter().partition(is_confirmed);
        if self.call(&mut suspects, Locking::Patient, &mut replies).await {
            for index in &suspects {
                self.state.suspect(&self.ops[*index], true);
            }
            confirmed.append(&mut suspects);
        }
        while !confirmed.is_empty() {
            self.call(&mut confirmed, Locking::SkipAndJoin, &mut replies).await;
            if self.state.clock.now() + RETRY_AFTER >= self.deadline {
                let locked = |index: usize| (index, Err(row_locked(self.state, &self.ops[index])));
                replies.extend(confirmed.drain(..).map(locked));
            } else if !confirmed.is_empty() {
                // If the clock cannot sleep, the wait is only shorter than it should be.
                let clock = &self.state.clock;
                let _ = clock.sleep_until(clock.now() + RETRY_AFTER).await;
            }
        }
        replies
    }

    /// Executes these operations in one call, and removes those that have a reply. Returns whether nothing was executed because
    /// another transaction has locked a row.
    async fn call(&self, indices: &mut Vec<usize>, locking: Locking, replies: &mut Replies) -> bool {
        if indices.is_empty() {
            return false;
        }
        let chosen: Vec<&Op> = indices.iter().map(|index| &self.ops[*index]).collect();
        let rows = match call(self.state, &chosen, locking, self.deadline).await {
            Ok(rows) => rows,
            Err(CallError::Locked) => return true,
            Err(CallError::Failed(error)) => {
                replies.extend(indices.drain(..).map(|index| (index, Err(error.clone()))));
                return false;
            }
        };
        let mut answered = vec![false; indices.len()];
        for row in rows {
            let op = row.op.wrapping_sub(1);
            if let Some(index) = indices.get(op) {
                let reply = self.reply(&self.ops[*index], row, locking);
                answered[op] = reply.is_some();
                replies.extend(reply.map(|reply| (*index, reply)));
            } else if row.code == PUSH
                && let Some(wakeup) = row.note.as_deref().and_then(push::wakeup)
            {
                self.state.pusher.push(wakeup);
            }
        }
        let mut answered = answered.into_iter();
        indices.retain(|_| answered.next() == Some(false));
        false
    }

    /// Returns the reply to an operation; none if it has to be sent again because its row is locked.
    fn reply(&self, op: &Op, row: ReplyRow, locking: Locking) -> Option<Result<Reply>> {
        let is_locked = row.code == LOCKED;
        if is_locked && locking == Locking::SkipAndJoin {
            self.state.suspect(op, true);
        } else if !is_locked {
            self.state.trust(op);
        }
        match row.reply(op, &self.state.location).transpose() {
            Some(Ok(Reply::Waiting { check_after })) if !self.state.can_listen() => {
                Some(Ok(Reply::Waiting { check_after: check_after.min(POLL_INTERVAL) }))
            }
            None if is_locked && matches!(op, Op::Acquire { on_busy: OnBusy::Return, .. }) => {
                (locking == Locking::SkipAndJoin).then_some(Ok(Reply::Busy))
            }
            reply => reply,
        }
    }
}

/// Calls the function once.
async fn call(
    state: &ClientState,
    ops: &[&Op],
    locking: Locking,
    deadline: Moment,
) -> std::result::Result<Vec<ReplyRow>, CallError> {
    let unreachable = |kind| {
        let message = format!("{} did not respond in time", state.location);
        CallError::Failed(Error::new(kind, message))
    };
    let time_left = || deadline.since(state.clock.now());
    let connection = match locking {
        Locking::Patient => timeout(time_left(), state.pool.get_slow()).await,
        _ => timeout(time_left(), state.pool.get()).await,
    };
    let connection =
        connection.map_err(|_| unreachable(ErrorKind::Unreachable))?.map_err(CallError::Failed)?;
    let arguments = Arguments::of(ops);
    let called = timeout(time_left(), query(&connection, state, locking as i32, &arguments)).await;
    let rows = match called {
        Ok(Ok(rows)) => rows,
        Err(_) => {
            connection.give_up();
            return Err(unreachable(ErrorKind::OutcomeUnknown));
        }
        Ok(Err(error)) => {
            let is_locked = matches!(
                error.code(),
                Some(
                    &SqlState::LOCK_NOT_AVAILABLE
                        | &SqlState::T_R_DEADLOCK_DETECTED
                        | &SqlState::T_R_SERIALIZATION_FAILURE
                )
            );
            return Err(if is_locked {
                CallError::Locked
            } else {
                let error = call_failed(&state.location, &error);
                if error.kind() == ErrorKind::OutcomeUnknown {
                    connection.give_up();
                }
                CallError::Failed(error)
            });
        }
    };
    let rows: std::result::Result<Vec<_>, _> = rows.iter().map(ReplyRow::read).collect();
    rows.map_err(|_| CallError::Failed(reply::unexpected(&state.location)))
}

async fn query(
    connection: &Connection,
    state: &ClientState,
    locking: i32,
    arguments: &Arguments,
) -> std::result::Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
    let Arguments { lock_names, new_names, kinds, classes, op_names, op_modes, anys, .. } = arguments;
    let Arguments { owners, tokens, ttls, labels, metas, contents, .. } = arguments;
    let values: [&(dyn ToSql + Sync); 15] = [
        &state.id, &locking, lock_names, new_names, kinds, classes, op_names, op_modes, anys, owners, tokens,
        ttls, labels, metas, contents,
    ];
    // The statement waits as long as its session: it cannot be patient.
    let is_single = locking == Locking::Brief as i32 && matches!(classes[..], [class] if class & PLAIN != 0);
    match &connection.statements[..] {
        [_, single] if is_single => return connection.query(single, &values).await,
        [flight, ..] => return connection.query(flight, &values).await,
        [] => {}
    }
    let typed: Vec<_> = values.into_iter().zip(TYPES.iter().cloned()).collect();
    connection.query_typed(&sql(&state.namespace), &typed).await
}

fn row_locked(state: &ClientState, op: &Op) -> Error {
    let names: Vec<String> = op.names().map(|name| format!("{name:?}")).collect();
    let message = format!(
        "a transaction of another program has locked the row of lock {} in {}",
        names.join(", "),
        state.location
    );
    Error::new(ErrorKind::Unreachable, message)
}

/// Removes a bounded number of expired and unused rows, in the background, if it is time.
fn sweep(state: &Arc<ClientState>, ops: &[Op]) {
    let Some((limit, after)) = state.sweep_after(ops) else { return };
    let state = state.clone();
    tokio::spawn(async move {
        let Ok(connection) = state.pool.get().await else { return };
        let sql = format!("SELECT next FROM {}.sweep($1, $2)", quoted(&state.namespace));
        let swept = connection.query_typed(&sql, &[(&limit, Type::INT4), (&after, Type::TEXT)]).await;
        // A failed sweep costs nothing: the next one does its work.
        if let Ok(rows) = swept {
            let next = rows.first().and_then(|row| row.try_get(0).ok());
            state.set_sweep_after(next.unwrap_or_default());
        }
    });
}
