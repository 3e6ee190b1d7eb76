//! What is tried on a storage: a list of commands that make sense in any order, so that a failure shrinks well.

use std::time::Duration;

use fencepost_core::backend::Queue;
use fencepost_core::{Keep, Mode, Rule};
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

use super::step::{Ask, NAMES};

/// One command. `of` chooses one of the attempts made so far.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// A new attempt.
    Acquire {
        ask: Ask,
        queue: Queue,
    },
    /// The same attempt once more.
    Resend {
        of: Index,
        queue: Queue,
    },
    Check {
        of: Index,
    },
    Leave {
        of: Index,
    },
    Renew {
        of: Index,
        grant: WhichGrant,
    },
    Release {
        of: Index,
        grant: WhichGrant,
    },
    Break {
        of: Index,
        grant: WhichGrant,
        name: usize,
    },
    Write {
        of: Index,
        grant: WhichGrant,
        name: usize,
        value: u8,
        keep: Keep,
    },
    Read {
        name: usize,
    },
    Pass(Duration),
}

/// Which of the grants of an attempt, if it had several.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WhichGrant {
    First,
    Newest,
}

/// What is known of the storage that the commands are for.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Its clock moves on command; otherwise leases do not end during the test.
    pub(crate) time_passes: bool,
    /// Whoever waits for all of several names keeps those behind it out, also those that it could share with.
    pub(crate) is_strict: bool,
}

/// Commands for a storage.
pub(crate) fn commands(kind: Kind) -> impl Strategy<Value = Vec<Command>> {
    prop::collection::vec(command(kind), 1..50)
}

fn command(kind: Kind) -> BoxedStrategy<Command> {
    let time_passes = kind.time_passes;
    let of = any::<Index>;
    let name = || 0..NAMES.len();
    let longest = if time_passes { 6u64 } else { 0 };
    let pass = (0..=longest).prop_map(|seconds| Command::Pass(Duration::from_secs(seconds)));
    prop_oneof![
        8 => (ask(kind), queue()).prop_map(|(ask, queue)| Command::Acquire { ask, queue }),
        2 => (of(), queue()).prop_map(|(of, queue)| Command::Resend { of, queue }),
        4 => of().prop_map(|of| Command::Check { of }),
        2 => of().prop_map(|of| Command::Leave { of }),
        2 => (of(), grant()).prop_map(|(of, grant)| Command::Renew { of, grant }),
        6 => (of(), grant()).prop_map(|(of, grant)| Command::Release { of, grant }),
        1 => (of(), grant(), name()).prop_map(|(of, grant, name)| Command::Break { of, grant, name }),
        2 => (of(), grant(), name(), any::<u8>(), keep(time_passes))
            .prop_map(|(of, grant, name, value, keep)| Command::Write { of, grant, name, value, keep }),
        1 => name().prop_map(|name| Command::Read { name }),
        4 => pass,
    ]
    .boxed()
}

fn ask(kind: Kind) -> impl Strategy<Value = Ask> {
    let ttl = if kind.time_passes { 2..8u64 } else { 3000..3001 };
    let wants = prop_oneof![
        1 => (0..NAMES.len()).prop_map(|name| vec![name]),
        1 => subsequence((0..NAMES.len()).collect::<Vec<_>>(), 1..=NAMES.len()),
    ];
    (wants, mode(), rule(), ttl).prop_map(move |(wants, mode, rule, seconds)| {
        let is_open = !kind.is_strict && rule == Rule::All && wants.len() > 1;
        let mode = if is_open { Mode::Exclusive } else { mode };
        Ask { wants, mode, rule, ttl: Duration::from_secs(seconds) }
    })
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        6 => Just(Mode::Exclusive),
        4 => Just(Mode::Shared),
        2 => Just(Mode::Slots { of: 2 }),
        1 => Just(Mode::Slots { of: 3 }),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![2 => Just(Rule::All), 1 => Just(Rule::Any)]
}

fn queue() -> impl Strategy<Value = Queue> {
    prop_oneof![1 => Just(Queue::Never), 3 => Just(Queue::Join)]
}

fn grant() -> impl Strategy<Value = WhichGrant> {
    prop_oneof![4 => Just(WhichGrant::Newest), 1 => Just(WhichGrant::First)]
}

fn keep(time_passes: bool) -> impl Strategy<Value = Keep> {
    let time = if time_passes { 1..6u64 } else { 3000..3001 };
    prop_oneof![
        2 => Just(Keep::WhileHeld),
        1 => time.prop_map(|seconds| Keep::For(Duration::from_secs(seconds))),
        1 => Just(Keep::Always),
    ]
}
