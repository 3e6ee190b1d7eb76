//! A listener that keeps every span and event of the thread that set it, and of whatever was made there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// The fields of a span or an event, as text.
pub(crate) type Fields = BTreeMap<String, String>;

/// A span.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    id: Id,
    pub(crate) name: &'static str,
    pub(crate) parent: Option<&'static str>,
    pub(crate) fields: Fields,
    pub(crate) closed: bool,
}

/// An event.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) level: Level,
    pub(crate) inside: Option<&'static str>,
    pub(crate) fields: Fields,
}

#[derive(Default)]
struct Heap {
    spans: Vec<Seen>,
    events: Vec<Told>,
}

/// What was heard.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Heap>>);

impl Heard {
    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens on this thread until the guard is dropped.
    pub(crate) fn listen(&self) -> tracing::subscriber::DefaultGuard {
        // With one subscriber in the process, `tracing` caches the interest of a callsite from the first thread that reaches it,
        // which may be one of a test without a subscriber. So there are always two.
        static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Registry::default()));
        LazyLock::force(&ANOTHER);
        tracing::subscriber::set_default(Registry::default().with(self.clone()))
    }

    /// The spans of this name, in the order in which they were made.
    pub(crate) fn spans(&self, name: &str) -> Vec<Seen> {
        self.heap().spans.iter().filter(|span| span.name == name).cloned().collect()
    }

    /// The events whose message begins so.
    pub(crate) fn events(&self, message: &str) -> Vec<Told> {
        let heap = self.heap();
        let ours = heap.events.iter().filter(|event| event.fields["message"].starts_with(message));
        ours.cloned().collect()
    }
}

/// Writes fields down.
struct Writer<'a>(&'a mut Fields);

impl Visit for Writer<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Heard {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Writer(&mut fields));
        let span = context.span(id).expect("it was just made");
        let parent = span.parent().map(|parent| parent.name());
        let seen = Seen { id: id.clone(), name: span.name(), parent, fields, closed: false };
        self.heap().spans.push(seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut heap = self.heap();
        let span = heap.spans.iter_mut().rfind(|span| span.id == *id).expect("it was made");
        values.record(&mut Writer(&mut span.fields));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Writer(&mut fields));
        let inside = context.event_span(event).map(|span| span.name());
        self.heap().events.push(Told { level: *event.metadata().level(), inside, fields });
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut heap = self.heap();
        let span = heap.spans.iter_mut().rfind(|span| span.id == id).expect("it was made");
        span.closed = true;
    }
}
