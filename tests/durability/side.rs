//! A region on a disk that can lose power.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use georepl_cursor::{ManagedLedger, ManagedLedgerConfig, Retention};
use georepl_replicator::{EmbeddedTopic, EmbeddedTopicConfig, EmbeddedTopics};
use georepl_storage::fault::{CrashDisk, FaultTransport};
use georepl_storage::{
    BookieId, ClientConfig, Disk, DurableBookies, DurableConfig, LedgerClient, LocalMetadataStore,
    MetadataStore,
};
use tokio::sync::Mutex;

const BOOKIES: usize = 4;

pub(crate) struct Side {
    transport: Arc<FaultTransport>,
    store: Arc<LocalMetadataStore>,
    client: LedgerClient,
    topics: Mutex<BTreeMap<String, EmbeddedTopic>>,
}

impl Side {
    pub(crate) async fn open(name: &str, disk: &CrashDisk) -> Result<Self, String> {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let store = LocalMetadataStore::open(disk.clone()).await;
        let store = Arc::new(store.map_err(|error| error.to_string())?);
        let ids: Vec<_> =
            (1..=BOOKIES).map(|n| BookieId::from(format!("{name}-{n}").as_str())).collect();
        let config = DurableConfig { cache_bytes: 1 << 20, ..DurableConfig::default() };
        let (bookies, failed) = DurableBookies::open(disk, ids, &*store, &config).await;
        if let Some((bookie, error)) = failed.first() {
            return Err(format!("bookie {bookie} does not open: {error}"));
        }
        let registry = bookies.registry();
        let transport = Arc::new(FaultTransport::new(Arc::new(bookies)));
        let client =
            LedgerClient::new(transport.clone(), store.clone(), registry, ClientConfig::default());
        Ok(Self { transport, store, client, topics: Mutex::default() })
    }

    pub(crate) fn store(&self) -> &dyn MetadataStore {
        &*self.store
    }

    pub(crate) fn transport(&self) -> &FaultTransport {
        &self.transport
    }

    /// Leaves its topics to whoever opens them next, without closing them.
    pub(crate) async fn forget_topics(&self) {
        self.topics.lock().await.clear();
    }

    pub(crate) async fn close(&self) -> Result<(), String> {
        for topic in self.topics.lock().await.values() {
            topic.ledger().close().await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

#[async_trait]
impl EmbeddedTopics for Side {
    async fn topic(&self, name: &str) -> Result<EmbeddedTopic, Arc<str>> {
        let words = |error: &dyn ToString| Arc::from(error.to_string());
        let mut topics = self.topics.lock().await;
        if let Some(topic) = topics.get(name).filter(|topic| topic.ledger().refusal().is_none()) {
            return Ok(topic.clone());
        }
        let config = ManagedLedgerConfig {
            ledger_entries_max: 5,
            // What no cursor needs is deleted.
            retention: Retention::NONE,
            ..ManagedLedgerConfig::default()
        };
        let store: Arc<dyn MetadataStore> = self.store.clone();
        let ledger = ManagedLedger::open(name, self.client.clone(), store, config).await;
        let ledger = ledger.map_err(|error| words(&error))?;
        let topic = EmbeddedTopic::open(ledger, EmbeddedTopicConfig::default()).await;
        let topic = topic.map_err(|error| words(&error))?;
        topics.insert(name.to_owned(), topic.clone());
        Ok(topic)
    }
}
