//! The commands that are executed on a backend: they make sense in any order, so that a failure shrinks well.

use std::time::Duration;

use fencepost_core::backend::OnBusy;
use fencepost_core::{Keep, Mode, Rule};
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

use super::step::{Ask, NAMES};

/// What happens in one step.
#[derive(Clone, Debug)]
pub(crate) enum Round {
    /// Flights that are executed concurrently, with the number of the client that sends each.
    Flights(Vec<(usize, Vec<Command>)>),
    /// The clock moves, and nothing else.
    Pass(Duration),
}

/// One operation. `of` selects one of the attempts that the client has made so far.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// A new attempt.
    Acquire {
        ask: Ask,
        on_busy: OnBusy,
    },
    /// The same attempt, repeated.
    Resend {
        of: Index,
        on_busy: OnBusy,
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
}

/// Selects one of the grants of an attempt, if it had several.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WhichGrant {
    First,
    Newest,
}

/// Properties of the backend that the commands are for.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Its clock moves on command; otherwise leases do not expire during the test.
    pub(crate) time_passes: bool,
    /// A waiter for all of several names blocks those behind it, also those that it could share with.
    pub(crate) is_strict: bool,
}

/// The clients that send the flights, by number.
pub(crate) const CLIENTS: usize = 3;

/// Generates rounds for a backend: one flight, or two concurrent ones, of up to three operations each.
pub(crate) fn rounds(kind: Kind) -> impl Strategy<Value = Vec<Round>> {
    let flight = (0..CLIENTS, prop::collection::vec(command(kind), 1..=3));
    let flights = prop::collection::vec(flight, 1..=2).prop_map(Round::Flights).boxed();
    let pass = (0..=6u64).prop_map(|seconds| Round::Pass(Duration::from_secs(seconds)));
    let round = if kind.time_passes { prop_oneof![6 => flights, 1 => pass].boxed() } else { flights };
    prop::collection::vec(round, 1..25)
}

fn command(kind: Kind) -> BoxedStrategy<Command> {
    let of = any::<Index>;
    let name = || 0..NAMES.len();
    prop_oneof![
        8 => (ask(kind), on_busy()).prop_map(|(ask, on_busy)| Command::Acquire { ask, on_busy }),
        2 => (of(), on_busy()).prop_map(|(of, on_busy)| Command::Resend { of, on_busy }),
        4 => of().prop_map(|of| Command::Check { of }),
        2 => of().prop_map(|of| Command::Leave { of }),
        2 => (of(), grant()).prop_map(|(of, grant)| Command::Renew { of, grant }),
        6 => (of(), grant()).prop_map(|(of, grant)| Command::Release { of, grant }),
        1 => (of(), grant(), name()).prop_map(|(of, grant, name)| Command::Break { of, grant, name }),
        2 => (of(), grant(), name(), any::<u8>(), keep(kind.time_passes))
            .prop_map(|(of, grant, name, value, keep)| Command::Write { of, grant, name, value, keep }),
        1 => name().prop_map(|name| Command::Read { name }),
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
        2 => Just(Mode::Semaphore { permits: 2 }),
        1 => Just(Mode::Semaphore { permits: 3 }),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![2 => Just(Rule::All), 1 => Just(Rule::Any)]
}

fn on_busy() -> impl Strategy<Value = OnBusy> {
    prop_oneof![1 => Just(OnBusy::Return), 3 => Just(OnBusy::Wait)]
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
