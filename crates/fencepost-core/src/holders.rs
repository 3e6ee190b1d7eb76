//! The holders of one lock. Lookup, renewal and expiry do not depend on the number of holders: ten thousand readers renew ten
//! thousand times in each third of a ttl.

use std::collections::{BTreeSet, HashMap};

use crate::clock::StorageTime;
use crate::record::Holder;
use crate::token::{FencingToken, Owner};

/// The holders of one lock, all in one mode.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    by_owner: HashMap<Owner, Holder>,
    by_end: BTreeSet<(StorageTime, Owner)>,
}

impl Holders {
    /// Returns whether the lock is free.
    pub fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// Returns the number of holders.
    pub fn len(&self) -> usize {
        self.by_owner.len()
    }

    /// Returns the holder with this owner.
    pub fn get(&self, owner: Owner) -> Option<&Holder> {
        self.by_owner.get(&owner)
    }

    /// Returns the holder with this token.
    pub fn with_token(&self, token: FencingToken) -> Option<&Holder> {
        self.iter().find(|holder| holder.token == token)
    }

    /// Returns any holder: all have the same mode.
    pub fn any(&self) -> Option<&Holder> {
        self.iter().next()
    }

    /// Iterates over the holders, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.by_owner.values()
    }

    /// Adds a holder.
    pub fn insert(&mut self, holder: Holder) {
        let (owner, until) = (holder.owner, holder.until);
        self.remove(owner);
        self.by_end.insert((until, owner));
        self.by_owner.insert(owner, holder);
    }

    /// Removes the holder with this owner.
    pub fn remove(&mut self, owner: Owner) -> Option<Holder> {
        let holder = self.by_owner.remove(&owner)?;
        self.by_end.remove(&(holder.until, owner));
        Some(holder)
    }

    /// Removes all holders.
    pub fn clear(&mut self) {
        self.by_owner.clear();
        self.by_end.clear();
    }

    /// Returns when the first lease ends, and its owner.
    pub fn first_end(&self) -> Option<(StorageTime, Owner)> {
        self.by_end.first().copied()
    }

    /// Returns when the last lease ends.
    pub fn last_end(&self) -> Option<StorageTime> {
        self.by_end.last().map(|(until, _)| *until)
    }
}

impl FromIterator<Holder> for Holders {
    fn from_iter<I: IntoIterator<Item = Holder>>(holders: I) -> Self {
        let mut all = Self::default();
        holders.into_iter().for_each(|holder| all.insert(holder));
        all
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::grant::Mode;
    use crate::record::ClientId;

    fn at(seconds: u64) -> StorageTime {
        StorageTime::from_nanos(0) + Duration::from_secs(seconds)
    }

    fn holder(until: u64) -> Holder {
        Holder {
            owner: Owner::random(),
            token: FencingToken::new(until),
            mode: Mode::Shared,
            ttl: Duration::from_secs(10),
            until: at(until),
            since: Duration::ZERO,
            client: ClientId(1),
            names: None,
            chosen: 0,
            label: "test".into(),
            meta: [].into(),
        }
    }

    #[test]
    fn ends_follow_what_is_extended_and_removed() {
        let (first, second) = (holder(5), holder(7));
        let mut holders: Holders = [first.clone(), second.clone()].into_iter().collect();
        assert_eq!((holders.first_end(), holders.last_end()), (Some((at(5), first.owner)), Some(at(7))));
        holders.insert(Holder { until: at(11), ..first.clone() });
        assert_eq!(holders.len(), 2);
        assert_eq!((holders.first_end(), holders.last_end()), (Some((at(7), second.owner)), Some(at(11))));
        holders.insert(Holder { until: at(20), ..second.clone() });
        assert_eq!((holders.len(), holders.last_end()), (2, Some(at(20))));
        assert!(holders.remove(second.owner).is_some() && holders.remove(second.owner).is_none());
        assert_eq!(holders.first_end(), Some((at(11), first.owner)));
        holders.clear();
        assert!(holders.is_empty() && holders.first_end().is_none());
    }
}
