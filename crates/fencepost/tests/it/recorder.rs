//! A recorder that keeps everything, for the whole process: the client's thread knows no other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// What was recorded, by name and labels: `name{key=value,…}`.
#[derive(Clone, Default)]
pub(crate) struct Recorded(Arc<Mutex<Heap>>);

#[derive(Default)]
struct Heap {
    counters: BTreeMap<String, Arc<AtomicU64>>,
    gauges: BTreeMap<String, Arc<AtomicU64>>,
    histograms: BTreeMap<String, Arc<Values>>,
    described: BTreeMap<String, String>,
}

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(value);
    }
}

/// The recorder of the process.
pub(crate) fn global() -> Recorded {
    static GLOBAL: LazyLock<Recorded> = LazyLock::new(|| {
        let recorded = Recorded::default();
        metrics::set_global_recorder(recorded.clone()).expect("no other recorder is installed");
        recorded
    });
    GLOBAL.clone()
}

impl Recorded {
    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counter(&self, key: &str) -> u64 {
        let heap = self.heap();
        let counter = heap.counters.get(key).unwrap_or_else(|| panic!("no counter {key}"));
        counter.load(Ordering::SeqCst)
    }

    pub(crate) fn gauge(&self, key: &str) -> f64 {
        let heap = self.heap();
        let gauge = heap.gauges.get(key).unwrap_or_else(|| panic!("no gauge {key}"));
        f64::from_bits(gauge.load(Ordering::SeqCst))
    }

    /// A histogram is there when it has its first value.
    pub(crate) fn values(&self, key: &str) -> Vec<f64> {
        let values = self.heap().histograms.get(key).cloned().unwrap_or_default();
        values.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Every name with its labels.
    pub(crate) fn keys(&self) -> Vec<String> {
        let heap = self.heap();
        let keys = heap.counters.keys().chain(heap.gauges.keys()).chain(heap.histograms.keys());
        keys.cloned().collect()
    }

    /// Every name that was described, and how.
    pub(crate) fn described(&self) -> BTreeMap<String, String> {
        self.heap().described.clone()
    }

    fn describe(&self, name: &KeyName, text: &SharedString) {
        self.heap().described.insert(name.as_str().to_owned(), text.to_string());
    }
}

fn written(key: &Key) -> String {
    let labels: Vec<String> =
        key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
    format!("{}{{{}}}", key.name(), labels.join(","))
}

impl Recorder for Recorded {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.describe(&name, &text);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.describe(&name, &text);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.describe(&name, &text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.heap().counters.entry(written(key)).or_default().clone())
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.heap().gauges.entry(written(key)).or_default().clone())
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.heap().histograms.entry(written(key)).or_default().clone())
    }
}
