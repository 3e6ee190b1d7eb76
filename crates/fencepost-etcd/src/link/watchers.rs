//! The watches of a link, and the meaning of the server's messages about them. No I/O.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::proto::event::EventType;
use crate::proto::watch_create_request::FilterType;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{
    Event, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};

/// The id of a watch of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WatchId(pub(crate) i64);

/// The key or range to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchTarget {
    pub(crate) key: Vec<u8>,
    /// Empty for a single key.
    pub(crate) range_end: Vec<u8>,
    /// The first revision of interest; 0 means from the creation of the watch on.
    pub(crate) start_revision: i64,
    pub(crate) only_deletes: bool,
}

/// An event of a watch.
#[derive(Debug)]
pub(crate) struct WatchEvent {
    pub(crate) id: WatchId,
    pub(crate) change: Change,
}

/// The change of a watched key.
#[derive(Debug)]
pub(crate) enum Change {
    Put {
        value: Vec<u8>,
    },
    Deleted,
    /// The history was compacted: changes may have been missed. The watch continues.
    Missed,
    /// The server denies permission. The watch has ended.
    Refused,
}

/// What to do after a message.
#[derive(Debug)]
pub(super) enum Action {
    Emit(WatchEvent),
    Send(WatchRequest),
    /// The server has refused to create this watch.
    Refused {
        id: WatchId,
        number: i64,
    },
    /// The stream has to be opened again.
    Reopen,
}

/// The watches of a link and their progress. A watch gets a new number every time it is created on a stream, so that
/// messages about an earlier one are recognized.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    all: BTreeMap<WatchId, Watcher>,
    numbers: HashMap<i64, WatchId>,
    /// The numbers whose creation is unanswered, in the order of the responses.
    unanswered: VecDeque<i64>,
    last_number: i64,
}

#[derive(Debug)]
struct Watcher {
    target: WatchTarget,
    number: i64,
}

impl Watchers {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the number that was assigned last.
    pub(super) fn last_number(&self) -> i64 {
        self.last_number
    }

    pub(super) fn add(&mut self, id: WatchId, target: WatchTarget) {
        self.all.insert(id, Watcher { target, number: 0 });
    }

    /// Removes a watch. Returns the request that cancels it, if the server knows it.
    pub(super) fn remove(&mut self, id: WatchId) -> Option<WatchRequest> {
        let removed = self.all.remove(&id)?;
        self.numbers.remove(&removed.number)?;
        Some(cancel(removed.number))
    }

    /// Returns the requests that create all watches on a new stream.
    pub(super) fn create_all(&mut self) -> Vec<WatchRequest> {
        self.numbers.clear();
        self.unanswered.clear();
        let ids: Vec<WatchId> = self.all.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.create(id)).collect()
    }

    /// Returns the request that creates a watch on the present stream.
    pub(super) fn create(&mut self, id: WatchId) -> Option<WatchRequest> {
        let watcher = self.all.get_mut(&id)?;
        self.last_number += 1;
        watcher.number = self.last_number;
        self.numbers.insert(watcher.number, id);
        self.unanswered.push_back(watcher.number);
        let WatchTarget { key, range_end, start_revision, only_deletes } = watcher.target.clone();
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

    /// Handles a message of the server.
    pub(super) fn on_response(&mut self, message: WatchResponse) -> Vec<Action> {
        // The response to a refused watch may lack its number, but the server responds in order.
        let answered = if message.created { self.unanswered.pop_front() } else { None };
        let number = answered.unwrap_or(message.watch_id);
        let Some(id) = self.numbers.get(&number).copied() else {
            return Vec::new();
        };
        if message.canceled {
            return self.on_cancelled(id, number, &message);
        }
        let Some(watcher) = self.all.get_mut(&id) else {
            return Vec::new();
        };
        let next = &mut watcher.target.start_revision;
        if message.created && *next == 0 {
            *next = message.header.map_or(0, |header| header.revision + 1);
        }
        let mut actions = Vec::with_capacity(message.events.len());
        for event in message.events {
            let Some((revision, change)) = parse_event(event) else { continue };
            *next = (*next).max(revision + 1);
            actions.push(Action::Emit(WatchEvent { id, change }));
        }
        actions
    }

    fn on_cancelled(&mut self, id: WatchId, number: i64, message: &WatchResponse) -> Vec<Action> {
        if message.compact_revision > 0 {
            if let Some(watcher) = self.all.get_mut(&id) {
                watcher.target.start_revision = message.compact_revision;
            }
            self.numbers.remove(&number);
            let again = self.create(id).map(Action::Send);
            let missed = Action::Emit(WatchEvent { id, change: Change::Missed });
            return [Some(Action::Send(cancel(number))), again, Some(missed)].into_iter().flatten().collect();
        }
        vec![if message.created { Action::Refused { id, number } } else { Action::Reopen }]
    }
}

/// Returns a request that makes the server send a message.
pub(super) fn probe() -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) }
}

fn cancel(number: i64) -> WatchRequest {
    WatchRequest { request_union: Some(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: number })) }
}

fn parse_event(event: Event) -> Option<(i64, Change)> {
    let kind = event.r#type();
    let kv = event.kv?;
    let change = match kind {
        EventType::Put => Change::Put { value: kv.value },
        EventType::Delete => Change::Deleted,
    };
    Some((kv.mod_revision, change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{KeyValue, ResponseHeader};

    fn target(start_revision: i64) -> WatchTarget {
        WatchTarget { key: b"k".to_vec(), range_end: Vec::new(), start_revision, only_deletes: false }
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

    /// Returns number and start revision of the watches that these requests create.
    fn created_watches(requests: &[WatchRequest]) -> Vec<(i64, i64)> {
        let create = |request: &WatchRequest| match &request.request_union {
            Some(RequestUnion::CreateRequest(create)) => (create.watch_id, create.start_revision),
            other => panic!("{other:?}"),
        };
        requests.iter().map(create).collect()
    }

    fn emitted(actions: &[Action]) -> Vec<WatchId> {
        let id = |action: &Action| match action {
            Action::Emit(event) => event.id,
            other => panic!("{other:?}"),
        };
        actions.iter().map(id).collect()
    }

    #[test]
    fn a_new_stream_continues_after_the_last_change() {
        let mut watchers = Watchers::default();
        watchers.add(WatchId(1), target(5));
        watchers.add(WatchId(2), target(0));
        assert_eq!(created_watches(&watchers.create_all()), [(1, 5), (2, 0)]);
        assert_eq!(emitted(&watchers.on_response(created(1, 9))), []);
        assert_eq!(emitted(&watchers.on_response(created(2, 9))), []);
        assert_eq!(emitted(&watchers.on_response(deleted(1, 7))), [WatchId(1)]);
        assert_eq!(created_watches(&watchers.create_all()), [(3, 8), (4, 10)]);
        // A message of the previous stream.
        assert_eq!(emitted(&watchers.on_response(deleted(1, 8))), []);
    }

    #[test]
    fn a_removed_watch_emits_nothing() {
        let mut watchers = Watchers::default();
        watchers.add(WatchId(1), target(5));
        assert!(watchers.remove(WatchId(2)).is_none());
        watchers.create_all();
        assert!(watchers.remove(WatchId(1)).is_some());
        assert_eq!(emitted(&watchers.on_response(created(1, 9))), []);
        assert_eq!(emitted(&watchers.on_response(deleted(1, 7))), []);
        assert!(watchers.is_empty());
    }

    #[test]
    fn a_watch_continues_after_a_compaction() {
        let mut watchers = Watchers::default();
        watchers.add(WatchId(1), target(5));
        watchers.create_all();
        watchers.on_response(created(1, 30));
        let compacted =
            WatchResponse { watch_id: 1, canceled: true, compact_revision: 20, ..WatchResponse::default() };
        let actions = watchers.on_response(compacted.clone());
        let [Action::Send(_), Action::Send(again), Action::Emit(event)] = actions.as_slice() else {
            panic!("{actions:?}")
        };
        assert_eq!(created_watches(std::slice::from_ref(again)), [(2, 20)]);
        assert!(matches!(event.change, Change::Missed));
        assert_eq!(emitted(&watchers.on_response(compacted)), [], "it is emitted once");
    }

    #[test]
    fn a_refusal_without_a_number_is_of_the_oldest_unanswered_watch() {
        let mut watchers = Watchers::default();
        for id in 1..=3 {
            watchers.add(WatchId(id), target(5));
        }
        watchers.create_all();
        watchers.on_response(created(1, 9));
        let actions = watchers.on_response(WatchResponse { canceled: true, ..created(-1, 9) });
        assert!(
            matches!(actions.as_slice(), [Action::Refused { id: WatchId(2), number: 2, .. }]),
            "{actions:?}"
        );
        assert_eq!(emitted(&watchers.on_response(created(3, 9))), []);
    }
}
