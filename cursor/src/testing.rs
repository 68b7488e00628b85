//! An embedded region for the tests of this crate.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use georepl_storage::fault::{FaultStore, FaultTransport};
use georepl_storage::{
    BookieId, ClientConfig, Expected, LedgerClient, LedgerId, MemoryBookieRegistry, MemoryBookies,
    MemoryMetadataStore, MetadataError, MetadataStore, Version, Versioned,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::managed_ledger::{ManagedLedger, ManagedLedgerConfig};

pub(crate) const NAME: &str = "persistent://acme/eu/orders";

pub(crate) struct Region {
    pub(crate) bookies: [BookieId; 3],
    pub(crate) memory: Arc<MemoryBookies>,
    pub(crate) faults: Arc<FaultTransport>,
    pub(crate) store: Arc<SilentStore>,
    /// The way of ledgers, not of topics, to the store.
    pub(crate) ledger_store: Arc<FaultStore>,
    pub(crate) registry: Arc<MemoryBookieRegistry>,
    pub(crate) client: LedgerClient,
}

impl Region {
    pub(crate) fn new() -> Self {
        let bookies = ["b1", "b2", "b3"].map(BookieId::from);
        let memory = Arc::new(MemoryBookies::new(bookies.clone()));
        let faults = Arc::new(FaultTransport::new(memory.clone()));
        let store = Arc::new(SilentStore::default());
        let registry = Arc::new(MemoryBookieRegistry::new(bookies.clone()));
        let config = ClientConfig::default();
        let ledger_store = Arc::new(FaultStore::new(store.clone()));
        let client =
            LedgerClient::new(faults.clone(), ledger_store.clone(), registry.clone(), config);
        Self { bookies, memory, faults, store, ledger_store, registry, client }
    }

    /// How many entries of the ledger that was created last all bookies have.
    pub(crate) fn entries_of_last_ledger(&self) -> usize {
        let newest = (0..).map(LedgerId).take_while(|ledger| {
            self.bookies.iter().any(|bookie| !self.memory.entries(bookie, *ledger).is_empty())
        });
        let newest = newest.last();
        let of = |bookie| newest.map_or(0, |ledger| self.memory.entries(bookie, ledger).len());
        self.bookies.iter().map(of).min().unwrap_or(0)
    }

    /// The topic, with ledgers of four entries.
    pub(crate) async fn topic(&self) -> ManagedLedger {
        let config = ManagedLedgerConfig { ledger_entries_max: 4, ..Default::default() };
        self.topic_with(config).await
    }

    pub(crate) async fn topic_with(&self, config: ManagedLedgerConfig) -> ManagedLedger {
        ManagedLedger::open(NAME, self.client.clone(), self.store.clone(), config)
            .await
            .expect("the topic opens")
    }
}

/// A metadata store that can be made to keep silent, or to wait.
#[derive(Default)]
pub(crate) struct SilentStore {
    inner: MemoryMetadataStore,
    silence: Mutex<Option<(String, Silence)>>,
    late: Mutex<Option<(String, Bytes, Expected)>>,
    refuses_deletes: AtomicBool,
    hangs_on_deletes: AtomicBool,
    refused: Mutex<Option<String>>,
    held: Mutex<Option<String>>,
    released: Notify,
}

/// What becomes of a change that is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It was made.
    Made,
    /// It will be made by [`SilentStore::make_late`], or never.
    Late,
}

impl SilentStore {
    /// The next change of `key` is not answered.
    pub(crate) fn keep_silent(&self, key: &str, silence: Silence) {
        *self.silence.lock() = Some((key.to_owned(), silence));
    }

    /// Every change of this key is refused, or of none any more.
    pub(crate) fn refuse(&self, key: Option<&str>) {
        *self.refused.lock() = key.map(ToOwned::to_owned);
    }

    /// The next change of `key` is made when it is released.
    pub(crate) fn hold(&self, key: &str) {
        *self.held.lock() = Some(key.to_owned());
    }

    /// Waits until the change that is to be held has come.
    pub(crate) async fn holds(&self) {
        while self.held.lock().is_some() {
            tokio::task::yield_now().await;
        }
    }

    /// Makes the change that is held.
    pub(crate) fn release(&self) {
        self.released.notify_one();
    }

    /// Answers the next change after all, if it has not come.
    pub(crate) fn answer(&self) {
        *self.silence.lock() = None;
    }

    /// Whether a change was put off.
    pub(crate) fn is_late(&self) -> bool {
        self.late.lock().is_some()
    }

    /// Refuses deletions, or no more.
    pub(crate) fn refuse_deletes(&self, refuse: bool) {
        self.refuses_deletes.store(refuse, Ordering::Relaxed);
    }

    /// Answers no deletion any more.
    pub(crate) fn hang_on_deletes(&self) {
        self.hangs_on_deletes.store(true, Ordering::Relaxed);
    }

    /// Makes the change that was put off.
    pub(crate) async fn make_late(&self) -> Result<Version, MetadataError> {
        let (key, value, expected) = self.late.lock().take().expect("a change was put off");
        self.inner.put(&key, value, expected).await
    }

    fn silence_for(&self, key: &str) -> Option<Silence> {
        let mut silence = self.silence.lock();
        let asked = silence.take_if(|(silent, _)| silent == key);
        asked.map(|(_, silence)| silence)
    }
}

#[async_trait]
impl MetadataStore for SilentStore {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, MetadataError> {
        self.inner.get(key).await
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        if self.refused.lock().as_deref() == Some(key) {
            let reason = "told to refuse".into();
            return Err(MetadataError::Unavailable { key: key.into(), reason });
        }
        let held = self.held.lock().take_if(|held| held == key);
        if held.is_some() {
            self.released.notified().await;
        }
        match self.silence_for(key) {
            None => return self.inner.put(key, value, expected).await,
            Some(Silence::Made) => drop(self.inner.put(key, value, expected).await),
            Some(Silence::Late) => *self.late.lock() = Some((key.to_owned(), value, expected)),
        }
        pending().await
    }

    async fn delete(&self, key: &str, version: Version) -> Result<(), MetadataError> {
        if self.hangs_on_deletes.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
        if self.refuses_deletes.load(Ordering::Relaxed) {
            let reason = "told to refuse".into();
            return Err(MetadataError::Unavailable { key: key.into(), reason });
        }
        self.inner.delete(key, version).await
    }

    async fn create_ephemeral(&self, key: &str, value: Bytes) -> Result<Version, MetadataError> {
        self.inner.create_ephemeral(key, value).await
    }

    async fn children(&self, key: &str) -> Result<Vec<String>, MetadataError> {
        self.inner.children(key).await
    }

    async fn allocate_ledger_id(&self) -> Result<LedgerId, MetadataError> {
        self.inner.allocate_ledger_id().await
    }
}

pub(crate) fn payloads(n: usize) -> Vec<bytes::Bytes> {
    (0..n).map(|i| format!("entry {i}").into()).collect()
}

/// Appends a batch and waits for it.
pub(crate) async fn append(topic: &ManagedLedger, n: usize) -> Vec<crate::Position> {
    let permit = topic.reserve(100 * n as u64).await.expect("the topic takes appends");
    topic.append_batch(permit, payloads(n)).await.expect("the bookies answer")
}
