//! MariaDB with the rules in a stored procedure: one call and one round trip for each flight.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Op, Reply, Wakeup};
use fencepost_core::{Attempt, Award, FencingToken, Owner, Result};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Statement};
use serde_json::{Value, json};

use super::prototype::{CHECK_AFTER, Connections, Flown, Prototype, failed, name_of};

const SCHEMA: &str = include_str!("procedures.sql");
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SET SESSION group_concat_max_len = 1000000, time_zone = '+00:00'";
/// How often a call is repeated because of a deadlock.
const MAX_DEADLOCKS: usize = 20;
const DEADLOCK: u16 = 1213;

/// The prototype.
pub(crate) struct Procedures {
    connections: Connections<Connection>,
    /// The attempts that wait, by owner.
    waiting: Mutex<HashMap<Owner, Arc<Attempt>>>,
}

struct Connection {
    conn: Conn,
    call: Statement,
}

impl Procedures {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        let first = Connection::open(url, SCHEMA).await?;
        let second = Connection::open(url, "DO 0").await?;
        Ok(Self { connections: Connections::new([first, second]), waiting: Mutex::default() })
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Owner, Arc<Attempt>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    async fn open(url: &str, setup: &str) -> Result<Self> {
        let opts = Opts::from_url(url).map_err(failed)?;
        let opts = OptsBuilder::from_opts(opts).prefer_socket(false);
        let mut conn = Conn::new(opts).await.map_err(failed)?;
        conn.query_drop(format!("{SESSION}; {setup}")).await.map_err(failed)?;
        let call = conn.prep("CALL trial_flight(?)").await.map_err(failed)?;
        Ok(Self { conn, call })
    }

    async fn call(&mut self, ops: &str) -> Result<(String, String)> {
        for _ in 0..MAX_DEADLOCKS {
            match self.conn.exec_first(&self.call, (ops,)).await {
                Ok(row) => return row.ok_or_else(|| failed("no reply")),
                Err(mysql_async::Error::Server(error)) if error.code == DEADLOCK => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed("too many deadlocks"))
    }
}

#[async_trait]
impl Prototype for Procedures {
    async fn fly(&self, ops: &[Op]) -> Flown {
        for op in ops {
            if let Op::Acquire { attempt, .. } = op {
                self.waiting().insert(attempt.owner, attempt.clone());
            }
        }
        let sent: Vec<Value> = ops.iter().map(encoded).collect::<Result<_>>()?;
        let (replies, pushes) = self.connections.get().await.call(&Value::from(sent).to_string()).await?;
        let rows: Vec<(u8, u64)> = serde_json::from_str(&replies).map_err(failed)?;
        let pushes: Vec<(String, u64)> = serde_json::from_str(&pushes).map_err(failed)?;
        let replies = ops.iter().zip(rows).map(|(op, (is_held, token))| self.reply(op, is_held == 1, token));
        let replies = replies.collect();
        let wakeups = pushes.into_iter().filter_map(|(owner, token)| {
            let attempt = self.waiting().remove(&Owner::from_hex(&owner.to_lowercase())?)?;
            let award = award(&attempt, token);
            Some(Wakeup::Granted { attempt, award })
        });
        Ok((replies, wakeups.collect()))
    }
}

impl Procedures {
    /// Returns the reply to an operation, after which its owner is the holder or not.
    fn reply(&self, op: &Op, is_held: bool, token: u64) -> Reply {
        match op {
            Op::Acquire { attempt, .. } | Op::Check(attempt) if is_held => {
                self.waiting().remove(&attempt.owner);
                Reply::Granted(award(attempt, token))
            }
            Op::Renew(grant) if is_held => Reply::Renewed { ttl: grant.award.ttl },
            Op::Release(_) => Reply::Released,
            Op::Leave(_) => Reply::Left,
            Op::Renew(_) => Reply::NotHeld,
            _ => Reply::Waiting { check_after: CHECK_AFTER },
        }
    }
}

fn award(attempt: &Attempt, token: u64) -> Award {
    Award { token: FencingToken::new(token), ttl: attempt.ttl, chosen: 0, elapsed: Duration::ZERO }
}

fn encoded(op: &Op) -> Result<Value> {
    let (kind, attempt, token) = match op {
        Op::Acquire { attempt, .. } => (1, attempt, 0),
        Op::Check(attempt) => (3, attempt, 0),
        Op::Leave(attempt) => (4, attempt, 0),
        Op::Renew(grant) => (5, &grant.attempt, grant.award.token.get()),
        Op::Release(grant) => (6, &grant.attempt, grant.award.token.get()),
        _ => return Err(failed("it is a prototype")),
    };
    let (owner, ttl) = (attempt.owner.to_hex(), u64::try_from(attempt.ttl.as_micros()).map_err(failed)?);
    let name = name_of(op)?.as_str();
    Ok(json!({"k": kind, "n": name, "o": owner, "t": token, "l": ttl, "b": &*attempt.label}))
}
