//! The metadata store, and how long it may take.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use georepl_storage::{Expected, MetadataError, MetadataStore, Version, Versioned};

/// A metadata store whose operations end in time: what was not answered by then is reported as
/// unavailable, with an unknown outcome.
pub(crate) struct Store {
    store: Arc<dyn MetadataStore>,
    timeout: Duration,
}

impl Store {
    pub(crate) fn new(store: Arc<dyn MetadataStore>, timeout: Duration) -> Self {
        Self { store, timeout }
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Option<Versioned>, MetadataError> {
        self.in_time(key, self.store.get(key)).await
    }

    pub(crate) async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        self.in_time(key, self.store.put(key, value, expected)).await
    }

    pub(crate) async fn delete(&self, key: &str, version: Version) -> Result<(), MetadataError> {
        self.in_time(key, self.store.delete(key, version)).await
    }

    pub(crate) async fn children(&self, key: &str) -> Result<Vec<String>, MetadataError> {
        self.in_time(key, self.store.children(key)).await
    }

    async fn in_time<T>(
        &self,
        key: &str,
        operation: impl Future<Output = Result<T, MetadataError>>,
    ) -> Result<T, MetadataError> {
        let timeout = self.timeout;
        tokio::time::timeout(timeout, operation).await.unwrap_or_else(|_| {
            let reason = format!("no answer within {timeout:?}");
            Err(MetadataError::Unavailable { key: key.into(), reason })
        })
    }
}
