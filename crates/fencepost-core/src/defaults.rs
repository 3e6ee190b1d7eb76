//! What locks of a client have in common unless they say otherwise.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::LockState;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::options::Options;

/// The client-wide part of [`Options`].
#[derive(Debug)]
pub(crate) struct Defaults {
    pub(crate) ttl: Option<Duration>,
    pub(crate) label: Arc<str>,
    namespace: Option<String>,
}

impl Defaults {
    pub(crate) fn new(options: &Options) -> Self {
        let label = options.label.clone().unwrap_or_default();
        Self { ttl: options.ttl, label, namespace: options.namespace.clone() }
    }

    /// Returns the name within the namespace. The part without the namespace must be valid too: an empty name stays an error.
    pub(crate) fn name(&self, name: &str) -> Result<LockName> {
        let own = LockName::new(name)?;
        match &self.namespace {
            None => Ok(own),
            Some(namespace) => LockName::new(self.prefixed(name))
                .map_err(|error: Error| error.context(format!("in the namespace {namespace:?}"))),
        }
    }

    /// Returns the prefix within the namespace.
    pub(crate) fn prefixed(&self, prefix: &str) -> String {
        match &self.namespace {
            None => prefix.to_owned(),
            Some(namespace) => format!("{namespace}/{prefix}"),
        }
    }
}

impl Defaults {
    /// Returns whether names are within a namespace.
    pub(crate) fn has_namespace(&self) -> bool {
        self.namespace.is_some()
    }

    /// Returns a full name relative to the namespace: the inverse of [`Defaults::name`].
    pub(crate) fn relative(&self, name: &LockName) -> LockName {
        let namespace = self.namespace.as_deref();
        let relative =
            namespace.and_then(|namespace| name.as_str().strip_prefix(namespace)?.strip_prefix('/'));
        relative.and_then(|relative| LockName::new(relative).ok()).unwrap_or_else(|| name.clone())
    }

    /// Returns the state with its name relative to the namespace.
    pub(crate) fn relative_state(&self, state: LockState) -> LockState {
        LockState { name: self.relative(&state.name), ..state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn names_and_prefixes_are_put_into_the_namespace() {
        let defaults = Defaults::new(&Options::new().namespace("billing"));
        assert_eq!(defaults.name("invoice/42").unwrap().as_str(), "billing/invoice/42");
        assert_eq!(defaults.prefixed(""), "billing/");
        assert_eq!(defaults.relative(&defaults.name("billing/a").unwrap()).as_str(), "billing/a");
        assert_eq!(defaults.name("").unwrap_err().kind(), ErrorKind::BadName);
        let error = defaults.name(&"x".repeat(LockName::MAX_BYTES)).unwrap_err();
        assert!(error.to_string().starts_with("in the namespace \"billing\": "), "{error}");
        assert_eq!(Defaults::new(&Options::new()).name("a").unwrap().as_str(), "a");
    }
}
