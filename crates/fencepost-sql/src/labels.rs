//! One copy of each label: there are few, and every row has one.

use std::collections::HashMap;
use std::sync::Arc;

/// How many labels are kept.
const MAX_LABELS: usize = 1024;

/// The labels of the rows that a client has read.
#[derive(Debug, Default)]
pub struct Labels(HashMap<String, Arc<str>>);

impl Labels {
    /// Returns the one copy of this label.
    pub fn interned(&mut self, label: String) -> Arc<str> {
        if let Some(known) = self.0.get(&label) {
            return known.clone();
        }
        if self.0.len() >= MAX_LABELS {
            self.0.clear();
        }
        let interned: Arc<str> = label.as_str().into();
        self.0.insert(label, interned.clone());
        interned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_labels_are_one_copy_and_their_number_is_bounded() {
        let mut labels = Labels::default();
        let first = labels.interned("x".into());
        assert!(Arc::ptr_eq(&first, &labels.interned("x".into())));
        for n in 0..3 * MAX_LABELS {
            labels.interned(n.to_string());
        }
        assert!(labels.0.len() <= MAX_LABELS);
    }
}
