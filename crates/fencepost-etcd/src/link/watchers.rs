//! What is watched, and what the server's messages about it mean: no I/O here.

use std::collections::{BTreeMap, HashMap, VecDeque};

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
        value: Vec<u8>,
    },
    Deleted,
    /// The history is compacted away: something may have happened that nobody tells any more. The watch goes on.
    Missed,
    /// The server does not let us watch that. The watch is over.
    Refused,
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
        vec![if message.created { Todo::Refused { id, number } } else { Todo::Reopen }]
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
    let what = match kind {
        EventType::Put => Change::Put { value: kv.value },
        EventType::Delete => Change::Deleted,
    };
    Some((kv.mod_revision, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{KeyValue, ResponseHeader};

    fn watched(start_revision: i64) -> Watched {
        Watched { key: b"k".to_vec(), range_end: Vec::new(), start_revision, only_deletes: false }
    }

    fn created(number: i64, revision: i64) -> WatchResponse {
        let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        WatchResponse { header, watch_id: number, created: true, ..WatchResponse::default() }
    }

    fn deleted(number: i64, mod_revision: i64) -> WatchResponse {
        let kv = Some(KeyValue { key: b"k".to_vec(), mod_revision, ..KeyValue::default() });
        let event = Event { r#type: EventType::Delete.into(), kv, prev_kv: None };
        WatchResponse { watch_id: number, events: vec![event], ..WatchResponse::default() }
    }

    /// Number and first revision of what is asked for.
    fn asked(requests: &[WatchRequest]) -> Vec<(i64, i64)> {
        let create = |request: &WatchRequest| match &request.request_union {
            Some(RequestUnion::CreateRequest(create)) => (create.watch_id, create.start_revision),
            other => panic!("{other:?}"),
        };
        requests.iter().map(create).collect()
    }

    fn told(todo: &[Todo]) -> Vec<WatchId> {
        let told = |todo: &Todo| match todo {
            Todo::Tell(event) => event.id,
            other => panic!("{other:?}"),
        };
        todo.iter().map(told).collect()
    }

    #[test]
    fn a_new_stream_goes_on_after_the_last_change() {
        let mut watchers = Watchers::default();
        watchers.add(WatchId(1), watched(5));
        watchers.add(WatchId(2), watched(0));
        assert_eq!(asked(&watchers.create_all()), [(1, 5), (2, 0)]);
        assert_eq!(told(&watchers.take(created(1, 9))), []);
        assert_eq!(told(&watchers.take(created(2, 9))), []);
        assert_eq!(told(&watchers.take(deleted(1, 7))), [WatchId(1)]);
        assert_eq!(asked(&watchers.create_all()), [(3, 8), (4, 10)]);
        // Of the stream before.
        assert_eq!(told(&watchers.take(deleted(1, 8))), []);
    }

    #[test]
    fn what_is_forgotten_is_not_told() {
        let mut watchers = Watchers::default();
        watchers.add(WatchId(1), watched(5));
        assert!(watchers.remove(WatchId(2)).is_none());
        watchers.create_all();
        assert!(watchers.remove(WatchId(1)).is_some());
        assert_eq!(told(&watchers.take(created(1, 9))), []);
        assert_eq!(told(&watchers.take(deleted(1, 7))), []);
        assert!(watchers.is_empty());
    }

    #[test]
    fn a_compacted_history_is_left_behind() {
        let mut watchers = Watchers::default();
        watchers.add(WatchId(1), watched(5));
        watchers.create_all();
        watchers.take(created(1, 30));
        let compacted =
            WatchResponse { watch_id: 1, canceled: true, compact_revision: 20, ..WatchResponse::default() };
        let todo = watchers.take(compacted.clone());
        let [Todo::Send(_), Todo::Send(again), Todo::Tell(event)] = todo.as_slice() else {
            panic!("{todo:?}")
        };
        assert_eq!(asked(std::slice::from_ref(again)), [(2, 20)]);
        assert!(matches!(event.what, Change::Missed));
        assert_eq!(told(&watchers.take(compacted)), [], "it was told once");
    }

    #[test]
    fn a_refusal_without_a_number_is_of_the_oldest_that_is_unanswered() {
        let mut watchers = Watchers::default();
        for id in 1..=3 {
            watchers.add(WatchId(id), watched(5));
        }
        watchers.create_all();
        watchers.take(created(1, 9));
        let todo = watchers.take(WatchResponse { canceled: true, ..created(-1, 9) });
        assert!(matches!(todo.as_slice(), [Todo::Refused { id: WatchId(2), number: 2, .. }]), "{todo:?}");
        assert_eq!(told(&watchers.take(created(3, 9))), []);
    }
}
