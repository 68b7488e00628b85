//! A metadata store in memory. It forgets everything with the process.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::exchange::Version;
use super::store::{Expected, MetadataError, MetadataStore, Versioned};
use crate::id::LedgerId;

/// A session with a [`MetadataStore`] in memory. It answers at once and never loses an answer. The session ends when it
/// is dropped.
#[derive(Debug, Default)]
pub struct MemoryMetadataStore {
    state: Arc<Mutex<State>>,
    id: SessionId,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SessionId(u64);

#[derive(Debug, Default)]
struct State {
    values: BTreeMap<String, Stored>,
    /// One counter for all keys, so that a key that is deleted and created again does not repeat a version.
    last_version: u64,
    next_ledger: u64,
    last_session: SessionId,
}

#[derive(Debug)]
struct Stored {
    found: Versioned,
    lives: Lives,
}

/// For how long a key lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lives {
    UntilDeleted,
    With(SessionId),
}

impl MemoryMetadataStore {
    /// The first session with an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another session with the same store.
    #[must_use]
    pub fn session(&self) -> Self {
        let mut state = self.state.lock();
        state.last_session.0 += 1;
        Self { state: self.state.clone(), id: state.last_session }
    }
}

impl Drop for MemoryMetadataStore {
    fn drop(&mut self) {
        let ended = Lives::With(self.id);
        self.state.lock().values.retain(|_, stored| stored.lives != ended);
    }
}

impl State {
    fn check(&self, key: &str, expected: Expected) -> Result<(), MetadataError> {
        expected.check(key, self.values.get(key).map(|stored| stored.found.version))
    }

    fn put(&mut self, key: &str, value: Bytes, lives: Lives) -> Version {
        self.last_version += 1;
        let version = Version(self.last_version);
        self.values.insert(key.into(), Stored { found: Versioned { value, version }, lives });
        version
    }
}

#[async_trait]
impl MetadataStore for MemoryMetadataStore {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, MetadataError> {
        Ok(self.state.lock().values.get(key).map(|stored| stored.found.clone()))
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        let mut state = self.state.lock();
        state.check(key, expected)?;
        let lives = state.values.get(key).map_or(Lives::UntilDeleted, |stored| stored.lives);
        Ok(state.put(key, value, lives))
    }

    async fn create_ephemeral(&self, key: &str, value: Bytes) -> Result<Version, MetadataError> {
        let mut state = self.state.lock();
        state.check(key, Expected::Absent)?;
        Ok(state.put(key, value, Lives::With(self.id)))
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
    use super::*;

    #[tokio::test]
    async fn session_that_ends_takes_its_own_ephemeral_keys_alone() {
        let first = MemoryMetadataStore::new();
        let second = first.session();
        first.create_ephemeral("locks/a", "1".into()).await.unwrap();
        let held = second.create_ephemeral("locks/b", "2".into()).await.unwrap();
        let conflict = MetadataError::VersionConflict { key: "locks/a".into() };
        assert_eq!(second.create_ephemeral("locks/a", "2".into()).await, Err(conflict));
        assert_eq!(second.children("locks").await, Ok(vec!["a".into(), "b".into()]));
        // Changed by another session, and still its maker's.
        first.put("locks/b", "1".into(), Expected::Version(held)).await.unwrap();
        drop(first);
        assert_eq!(second.children("locks").await, Ok(vec!["b".into()]));
        second.create_ephemeral("locks/a", "2".into()).await.expect("its holder is gone");
    }
}
