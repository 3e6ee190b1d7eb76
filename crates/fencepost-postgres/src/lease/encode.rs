//! Encodes operations as the arrays that the function `flight` takes.

use std::collections::HashMap;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op};
use fencepost_core::{LockName, Mode, Owner, Rule};
use fencepost_sql::codec;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

/// The class of an operation that may concern nothing but the row of its lock.
pub(crate) const PLAIN: i32 = 1;

/// An owner as a value of type uuid.
#[derive(Debug)]
pub(crate) struct Uuid(pub(crate) Owner);

impl ToSql for Uuid {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut tokio_postgres::types::private::BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0.to_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }

    to_sql_checked!();
}

/// The arguments of a flight, an element per operation but for the names.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    /// The rows to lock, sorted.
    pub(crate) lock_names: Vec<String>,
    /// Those of them that are created if they do not exist.
    pub(crate) new_names: Vec<String>,
    pub(crate) kinds: Vec<i32>,
    pub(crate) classes: Vec<i32>,
    pub(crate) op_names: Vec<String>,
    pub(crate) op_modes: Vec<String>,
    pub(crate) anys: Vec<bool>,
    pub(crate) owners: Vec<Option<Uuid>>,
    pub(crate) tokens: Vec<Option<i64>>,
    pub(crate) ttls: Vec<Option<i64>>,
    pub(crate) labels: Vec<Option<String>>,
    pub(crate) metas: Vec<Option<String>>,
    pub(crate) contents: Vec<Option<Vec<u8>>>,
}

impl Arguments {
    pub(crate) fn of(ops: &[&Op]) -> Self {
        let mut arguments = Self::default();
        let classes = classes(ops);
        ops.iter().zip(classes).for_each(|(op, class)| arguments.add(op, class));
        arguments.lock_names.sort_unstable();
        arguments.lock_names.dedup();
        arguments.new_names.sort_unstable();
        arguments.new_names.dedup();
        arguments
    }

    fn add(&mut self, op: &Op, class: i32) {
        let kind = kind(op);
        self.kinds.push(kind);
        self.classes.push(class);
        let names: Vec<&str> = op.names().map(LockName::as_str).collect();
        self.op_names.push(names.join("\n"));
        if !matches!(op, Op::ReadCell(_)) {
            self.lock_names.extend(names.iter().map(|name| (*name).to_owned()));
        }
        // A tombstone must not be missed by an acquire that arrives at the same time, and a ticket may be older than the row.
        if matches!(kind, 1..=4) {
            self.new_names.extend(names.into_iter().map(str::to_owned));
        }
        let modes = op.wants().iter().map(|want| codec::mode_number(want.mode).to_string());
        let mut modes = modes.collect::<Vec<_>>().join(",");
        let mut ttl = op.ttl().map(millis);
        let (mut token, mut contents) = (None, None);
        match op {
            Op::Renew(grant) | Op::Release(grant) => token = Some(grant.award.token),
            Op::WriteCell { grant, bytes, keep, .. } => {
                let (number, length) = codec::keep_numbers(*keep);
                modes = number.to_string();
                ttl = Some(millis(codec::duration(length)));
                token = Some(grant.award.token);
                contents = Some(bytes.to_vec());
            }
            Op::Break { token: broken, .. } => token = Some(*broken),
            _ => {}
        }
        self.op_modes.push(modes);
        self.ttls.push(ttl);
        self.tokens.push(token.map(|token| codec::signed(token.get())));
        self.contents.push(contents);
        let attempt = op.attempt();
        self.anys.push(attempt.is_some_and(|attempt| attempt.rule == Rule::Any && attempt.wants.len() > 1));
        self.owners.push(attempt.map(|attempt| Uuid(attempt.owner)));
        let described = attempt.filter(|_| matches!(kind, 1..=3));
        self.labels.push(described.map(|attempt| printable(&attempt.label)));
        self.metas.push(described.map(|attempt| meta_text(&attempt.meta)));
    }
}

/// The use of one name by the operations of a flight.
#[derive(Clone, Copy, Default)]
struct Use {
    count: usize,
    /// How many of them can be executed in any order, unless one breaks the lock: renewals.
    renewals: usize,
    breaks: usize,
    /// How many acquire the lock shared, and no other.
    shared: usize,
    /// How many acquire the lock or check a ticket, for this name alone, exclusive or shared.
    waits: usize,
}

/// Returns the classes of the operations: 1 for the renewal of one lock that no other operation breaks, and the acquire or
/// release of one exclusive lock that no other operation names; 2 for the acquire of a shared lock, 4 for acquires and checks of
/// a lock, where all other operations on the name do the same. An owner with several operations has none.
fn classes(ops: &[&Op]) -> Vec<i32> {
    let (mut uses, mut owners): (HashMap<&LockName, Use>, HashMap<_, usize>) = Default::default();
    for op in ops {
        op.owner().into_iter().for_each(|owner| *owners.entry(owner).or_default() += 1);
        for name in op.names() {
            let entry = uses.entry(name).or_default();
            entry.count += 1;
            entry.renewals += usize::from(kind(op) == 5);
            entry.breaks += usize::from(kind(op) == 9);
            if let (1..=3, [want]) = (kind(op), op.wants()) {
                entry.shared += usize::from(want.mode == Mode::Shared && kind(op) != 3);
                entry.waits += usize::from(!matches!(want.mode, Mode::Semaphore { .. }));
            }
        }
    }
    let class = |op: &Op| {
        let ([want], Some(owner)) = (op.wants(), op.owner()) else { return 0 };
        if owners.get(&owner) != Some(&1) {
            return 0;
        }
        let Use { count, renewals, breaks, shared, waits } =
            uses.get(&want.name).copied().unwrap_or_default();
        let is_exclusive = want.mode == Mode::Exclusive;
        match kind(op) {
            5 => PLAIN * i32::from(breaks == 0),
            6 => PLAIN * i32::from(is_exclusive && count == 1),
            kind @ 1..=3 => {
                PLAIN * i32::from(is_exclusive && count == 1 && kind != 3)
                    + 2 * i32::from(want.mode == Mode::Shared && kind != 3 && shared + renewals == count)
                    + 4 * i32::from(waits + renewals == count && !matches!(want.mode, Mode::Semaphore { .. }))
            }
            _ => 0,
        }
    };
    ops.iter().map(|op| class(op)).collect()
}

fn kind(op: &Op) -> i32 {
    match op {
        Op::Acquire { on_busy: OnBusy::Wait, .. } => 1,
        Op::Acquire { on_busy: OnBusy::Return, .. } => 2,
        Op::Check(_) => 3,
        Op::Leave(_) => 4,
        Op::Renew(_) => 5,
        Op::Release(_) => 6,
        Op::ReadCell(_) => 7,
        Op::WriteCell { .. } => 8,
        Op::Break { .. } => 9,
    }
}

/// Rounds up: the server's lease must not be shorter than the client's.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

fn meta_text(meta: &[(String, String)]) -> String {
    let pairs: Vec<_> = meta.iter().map(|(key, value)| (printable(key), printable(value))).collect();
    codec::meta_text(&pairs)
}

/// Replaces the one character that PostgreSQL cannot store.
fn printable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
