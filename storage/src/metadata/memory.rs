//! A metadata store in memory. It forgets everything with the process.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::exchange::Version;
use super::store::{Expected, MetadataError, MetadataStore, Versioned};
use crate::id::LedgerId;

/// A [`MetadataStore`] in memory. It answers at once and never loses an answer.
#[derive(Debug, Default)]
pub struct MemoryMetadataStore {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    values: BTreeMap<String, Versioned>,
    /// One counter for all keys, so that a key that is deleted and created again does not repeat a version.
    last_version: u64,
    next_ledger: u64,
}

impl MemoryMetadataStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl State {
    fn check(&self, key: &str, expected: Expected) -> Result<(), MetadataError> {
        expected.check(key, self.values.get(key).map(|found| found.version))
    }
}

#[async_trait]
impl MetadataStore for MemoryMetadataStore {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, MetadataError> {
        Ok(self.state.lock().values.get(key).cloned())
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        let mut state = self.state.lock();
        state.check(key, expected)?;
        state.last_version += 1;
        let version = Version(state.last_version);
        state.values.insert(key.into(), Versioned { value, version });
        Ok(version)
    }

    async fn delete(&self, key: &str, version: Version) -> Result<(), MetadataError> {
        let mut state = self.state.lock();
        state.check(key, Expected::Version(version))?;
        state.values.remove(key);
        Ok(())
    }

    async fn children(&self, key: &str) -> Result<Vec<String>, MetadataError> {
        let state = self.state.lock();
        let prefix = format!("{key}/");
        let below =
            state.values.range(prefix.clone()..).map_while(|(path, _)| path.strip_prefix(&prefix));
        let mut names: Vec<_> =
            below.map(|rest| rest.split_once('/').map_or(rest, |(name, _)| name).into()).collect();
        // Paths sort by their separators too, so equal names need not stand together.
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    async fn allocate_ledger_id(&self) -> Result<LedgerId, MetadataError> {
        let mut state = self.state.lock();
        let id = LedgerId(state.next_ledger);
        state.next_ledger += 1;
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryMetadataStore;

    crate::metadata::conformance::conformance!(MemoryMetadataStore::new());
}
