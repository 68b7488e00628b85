//! The way to the metadata store. An operation that is under way goes on when its caller has left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use georepl_storage::{
    Expected, LedgerId, MemoryMetadataStore, MetadataError, MetadataStore, Version, Versioned,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::oracle::Oracle;
use crate::weather::{StoreFate, Weather};

#[derive(Clone)]
pub struct Store {
    inner: Arc<MemoryMetadataStore>,
    weather: Arc<Weather>,
    oracle: Arc<Oracle>,
    /// The value of a key before its last change.
    before: Arc<Mutex<BTreeMap<String, Versioned>>>,
}

impl Store {
    pub fn new(weather: Arc<Weather>, oracle: Arc<Oracle>) -> Self {
        Self { inner: Arc::default(), weather, oracle, before: Arc::default() }
    }

    /// Carries an operation out as its fate has it.
    async fn under_way<T: Send + 'static>(
        &self,
        key: &str,
        fate: Option<StoreFate>,
        operation: impl Future<Output = Result<T, MetadataError>> + Send + 'static,
    ) -> Result<T, MetadataError> {
        let no_session = || {
            let reason = "the session is lost".into();
            MetadataError::Unavailable { key: key.into(), reason }
        };
        let fate = fate.ok_or_else(no_session)?;
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            let Some(after) = fate.carried_out else {
                return;
            };
            tokio::time::sleep(after).await;
            let result = operation.await;
            tokio::time::sleep(fate.answered.unwrap_or(Duration::ZERO)).await;
            if fate.answered.is_some() {
                // Who has left does not hear of it.
                let _ = answer.send(result);
            }
        });
        match answered.await {
            Ok(_) if self.weather.is_lost(&fate) => Err(no_session()),
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }

    async fn carry_out_put(
        self,
        key: String,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        let before = self.inner.get(&key).await?;
        let result = self.inner.put(&key, value.clone(), expected).await;
        self.weather.note(format_args!("store: put {key} at {expected:?}: {result:?}"));
        if result.is_ok() {
            if key.starts_with("ledgers/") {
                self.oracle.stored(&value);
            }
            if let Some(before) = before {
                self.before.lock().insert(key, before);
            }
        }
        result
    }
}

#[async_trait]
impl MetadataStore for Store {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, MetadataError> {
        let (store, name, fate) = (self.clone(), key.to_owned(), self.weather.store());
        let read = async move {
            let is_stale = fate.is_some_and(|fate| fate.stale);
            let stale = store.before.lock().get(&name).cloned().filter(|_| is_stale);
            match stale {
                Some(stale) => Ok(Some(stale)),
                None => store.inner.get(&name).await,
            }
        };
        self.under_way(key, fate, read).await
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        let put = self.clone().carry_out_put(key.to_owned(), value, expected);
        self.under_way(key, self.weather.store(), put).await
    }

    async fn create_ephemeral(&self, key: &str, value: Bytes) -> Result<Version, MetadataError> {
        let (inner, name) = (self.inner.clone(), key.to_owned());
        let create = async move { inner.create_ephemeral(&name, value).await };
        self.under_way(key, self.weather.store(), create).await
    }

    async fn delete(&self, key: &str, version: Version) -> Result<(), MetadataError> {
        self.inner.delete(key, version).await
    }

    async fn children(&self, key: &str) -> Result<Vec<String>, MetadataError> {
        self.inner.children(key).await
    }

    async fn allocate_ledger_id(&self) -> Result<LedgerId, MetadataError> {
        let (inner, fate) = (self.inner.clone(), self.weather.store());
        self.under_way("a ledger id", fate, async move { inner.allocate_ledger_id().await }).await
    }
}
