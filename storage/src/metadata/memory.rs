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
        match (self.values.get(key), expected) {
            (None, Expected::Absent) => Ok(()),
            (Some(found), Expected::Version(version)) if found.version == version => Ok(()),
            (None, Expected::Version(_)) => Err(MetadataError::NotFound { key: key.into() }),
            (Some(_), _) => Err(MetadataError::VersionConflict { key: key.into() }),
        }
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
    use super::*;

    #[tokio::test]
    async fn a_change_needs_the_version_that_was_read() {
        let store = MemoryMetadataStore::new();
        let first = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
        let conflict = Err(MetadataError::VersionConflict { key: "a".into() });
        assert_eq!(store.put("a", "2".into(), Expected::Absent).await, conflict);
        let second = store
            .put("a", "2".into(), Expected::Version(first))
            .await
            .expect("the version just written");
        assert!(second > first);
        assert_eq!(store.put("a", "3".into(), Expected::Version(first)).await, conflict);
        assert_eq!(
            store.get("a").await,
            Ok(Some(Versioned { value: "2".into(), version: second }))
        );
    }

    #[tokio::test]
    async fn a_key_that_is_created_again_has_a_new_version() {
        let store = MemoryMetadataStore::new();
        let first = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
        store.delete("a", first).await.expect("the version just written");
        let second = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
        assert_ne!(first, second);
        assert!(store.delete("a", first).await.is_err());
        let missing = Err(MetadataError::NotFound { key: "b".into() });
        assert_eq!(store.put("b", "1".into(), Expected::Version(first)).await, missing);
    }

    #[tokio::test]
    async fn children_are_the_names_one_level_down() {
        let store = MemoryMetadataStore::new();
        for key in ["a", "a/x/1", "a/x-y", "a/x/2", "ab/z"] {
            store.put(key, Bytes::new(), Expected::Absent).await.expect("absent");
        }
        assert_eq!(store.children("a").await, Ok(vec!["x".into(), "x-y".into()]));
    }
}
