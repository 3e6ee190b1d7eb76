//! What is watched, and what the server's messages about it mean: no I/O here.

use std::collections::{BTreeMap, HashMap, VecDeque};

use fencepost_core::Error;

use crate::proto::event::EventType;
use crate::proto::watch_create_request::FilterType;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{
    Event, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};

/// One watch of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WatchId(pub(crate) i64);

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) key: Vec<u8>,
    /// Empty for the one key.
    pub(crate) range_end: Vec<u8>,
    /// The first revision of interest; 0 for from now on, whenever that is.
    pub(crate) start_revision: i64,
    pub(crate) only_deletes: bool,
}

/// Something happened to what is watched.
#[derive(Debug)]
pub(crate) struct WatchEvent {
    pub(crate) id: WatchId,
    pub(crate) what: Change,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Change {
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
        mod_revision: i64,
        create_revision: i64,
    },
    Deleted {
        key: Vec<u8>,
        mod_revision: i64,
    },
    /// The history is compacted away: something may have happened that nobody tells any more. The watch goes on.
    Missed,
    /// The server does not let us watch that. The watch is over.
    Refused(Error),
}

/// What a message makes necessary.
#[derive(Debug)]
pub(super) enum Todo {
    Tell(WatchEvent),
    Send(WatchRequest),
    /// The server does not want to make this watch.
    Refused {
        id: WatchId,
        number: i64,
        why: String,
    },
    /// The stream is of no use any more.
    Reopen,
}

/// The watches of a link, and how far each one is. Every time one is made on a stream it has a new number there, so that what
/// is said about the one before cannot be mistaken.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    all: BTreeMap<WatchId, Watcher>,
    numbers: HashMap<i64, WatchId>,
    /// Those that the server has not answered for yet, in the order in which it will.
    unanswered: VecDeque<i64>,
    last_number: i64,
}

#[derive(Debug)]
struct Watcher {
    watched: Watched,
    number: i64,
}

impl Watchers {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The number that was given last.
    pub(super) fn last_number(&self) -> i64 {
        self.last_number
    }

    pub(super) fn add(&mut self, id: WatchId, watched: Watched) {
        self.all.insert(id, Watcher { watched, number: 0 });
    }

    /// Forgets a watch. What to tell the server about it, if it knows.
    pub(super) fn remove(&mut self, id: WatchId) -> Option<WatchRequest> {
        let gone = self.all.remove(&id)?;
        self.numbers.remove(&gone.number)?;
        Some(cancel(gone.number))
    }

    /// Everything, for a new stream.
    pub(super) fn create_all(&mut self) -> Vec<WatchRequest> {
        self.numbers.clear();
        self.unanswered.clear();
        let ids: Vec<WatchId> = self.all.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.create(id)).collect()
    }

    /// One of them, for the stream that is there.
    pub(super) fn create(&mut self, id: WatchId) -> Option<WatchRequest> {
        let watcher = self.all.get_mut(&id)?;
        self.last_number += 1;
        watcher.number = self.last_number;
        self.numbers.insert(watcher.number, id);
        self.unanswered.push_back(watcher.number);
        let Watched { key, range_end, start_revision, only_deletes } = watcher.watched.clone();
        Some(WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
                key,
                range_end,
                start_revision,
                filters: if only_deletes { vec![FilterType::Noput.into()] } else { Vec::new() },
                watch_id: watcher.number,
                progress_notify: false,
                prev_kv: false,
            })),
        })
    }

    /// Takes a message of the server.
    pub(super) fn take(&mut self, message: WatchResponse) -> Vec<Todo> {
        // Of a watch that it does not make the server may not say which it was, but it answers in order.
        let answered = if message.created { self.unanswered.pop_front() } else { None };
        let number = answered.unwrap_or(message.watch_id);
        let Some(id) = self.numbers.get(&number).copied() else {
            return Vec::new();
        };
        if message.canceled {
            return self.cancelled(id, number, &message);
        }
        let Some(watcher) = self.all.get_mut(&id) else {
            return Vec::new();
        };
        let next = &mut watcher.watched.start_revision;
        if message.created && *next == 0 {
            *next = message.header.map_or(0, |header| header.revision + 1);
        }
        let mut todo = Vec::with_capacity(message.events.len());
        for event in message.events {
            let Some((revision, what)) = change(event) else { continue };
            *next = (*next).max(revision + 1);
            todo.push(Todo::Tell(WatchEvent { id, what }));
        }
        todo
    }

    fn cancelled(&mut self, id: WatchId, number: i64, message: &WatchResponse) -> Vec<Todo> {
        if message.compact_revision > 0 {
            if let Some(watcher) = self.all.get_mut(&id) {
                watcher.watched.start_revision = message.compact_revision;
            }
            self.numbers.remove(&number);
            let again = self.create(id).map(Todo::Send);
            let missed = Todo::Tell(WatchEvent { id, what: Change::Missed });
            return [Some(Todo::Send(cancel(number))), again, Some(missed)].into_iter().flatten().collect();
        }
        let why = message.cancel_reason.clone();
        vec![if message.created { Todo::Refused { id, number, why } } else { Todo::Reopen }]
    }
}

/// Asks the server to say anything.
pub(super) fn probe() -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) }
}

fn cancel(number: i64) -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: number })) }
}

fn change(event: Event) -> Option<(i64, Change)> {
    let kind = event.r#type();
    let kv = event.kv?;
    let (key, mod_revision) = (kv.key, kv.mod_revision);
    let what = match kind {
        EventType::Put => {
            Change::Put { key, value: kv.value, mod_revision, create_revision: kv.create_revision }
        }
        EventType::Delete => Change::Deleted { key, mod_revision },
    };
    Some((mod_revision, what))
}
