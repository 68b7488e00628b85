//! A whole region in this process: bookies, their metadata, and topics.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use georepl_cursor::{CloseError, ManagedLedger, ManagedLedgerConfig, Refusal};
use georepl_replicator::{EmbeddedTopic, EmbeddedTopicConfig, EmbeddedTopics};
use georepl_storage::fault::FaultTransport;
use georepl_storage::{
    Advice, BookieId, ClientConfig, LedgerClient, MemoryBookieRegistry, MemoryBookies,
    MemoryMetadataStore, MetadataStore,
};
use tokio::sync::Mutex;

/// Settings of a [`Region`].
#[derive(Clone, Debug)]
pub struct RegionConfig {
    /// Bookies of the region, at least the ensemble size of `ledgers`. Default 4.
    pub bookies: usize,
    /// Settings of what reads and writes the ledgers.
    pub client: ClientConfig,
    /// Settings of every topic's ledgers. Default E 3, WQ 3, AQ 2.
    pub ledgers: ManagedLedgerConfig,
    /// Settings of every topic.
    pub topics: EmbeddedTopicConfig,
}

impl Default for RegionConfig {
    fn default() -> Self {
        Self {
            bookies: 4,
            client: ClientConfig::default(),
            ledgers: ManagedLedgerConfig::default(),
            topics: EmbeddedTopicConfig::default(),
        }
    }
}

/// The last ledger of a topic could not be closed, so that its end is not recorded.
#[derive(Debug, thiserror::Error)]
#[error("topic {topic} of region {region} was not closed: {error}")]
pub struct CloseRegionError {
    region: Arc<str>,
    topic: String,
    #[source]
    error: CloseError,
}

impl CloseRegionError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        self.error.advice()
    }
}

/// A region in memory. Its topics are made when they are first asked for, and kept. A topic whose
/// log failed is opened again when it is next asked for; its cursors must be opened again too.
#[derive(Debug)]
pub struct Region {
    name: Arc<str>,
    config: RegionConfig,
    bookies: Arc<MemoryBookies>,
    transport: Arc<FaultTransport>,
    registry: Arc<MemoryBookieRegistry>,
    store: Arc<MemoryMetadataStore>,
    client: LedgerClient,
    topics: Arc<Mutex<BTreeMap<String, EmbeddedTopic>>>,
}

impl Region {
    /// An empty region.
    pub fn in_memory(name: impl Into<Arc<str>>, config: RegionConfig) -> Self {
        let name = name.into();
        let ids: Vec<_> = (1..=config.bookies)
            .map(|n| BookieId::from(format!("{name}-bookie-{n}").as_str()))
            .collect();
        let bookies = Arc::new(MemoryBookies::new(ids.clone()));
        let transport = Arc::new(FaultTransport::new(bookies.clone()));
        let registry = Arc::new(MemoryBookieRegistry::new(ids));
        let store = Arc::new(MemoryMetadataStore::new());
        let client = LedgerClient::new(
            transport.clone(),
            store.clone(),
            registry.clone(),
            config.client.clone(),
        );
        let topics = Arc::default();
        Self { name, config, bookies, transport, registry, store, client, topics }
    }

    /// The region's name, which is its cluster's.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The bookies, for audits and planted damage.
    pub fn bookies(&self) -> &MemoryBookies {
        &self.bookies
    }

    /// The way to the bookies, for faults on it.
    pub fn transport(&self) -> &FaultTransport {
        &self.transport
    }

    /// Which bookies the region counts on.
    pub fn registry(&self) -> &MemoryBookieRegistry {
        &self.registry
    }

    /// Opens read handles on the region's ledgers.
    pub fn client(&self) -> &LedgerClient {
        &self.client
    }

    /// Where the records of the region's topics, cursors and ledgers are.
    pub fn store(&self) -> Arc<dyn MetadataStore> {
        Arc::<MemoryMetadataStore>::clone(&self.store)
    }

    /// The settings.
    pub fn config(&self) -> &RegionConfig {
        &self.config
    }

    /// Closes every topic: its appends are decided and its end is recorded. May be called again.
    ///
    /// # Errors
    /// [`CloseRegionError`] of the first topic that was not closed; those after it stay open.
    pub async fn close(&self) -> Result<(), CloseRegionError> {
        for (name, topic) in &*self.topics.lock().await {
            topic.ledger().close().await.map_err(|error| CloseRegionError {
                region: Arc::clone(&self.name),
                topic: name.clone(),
                error,
            })?;
        }
        Ok(())
    }
}

#[async_trait]
impl EmbeddedTopics for Region {
    async fn topic(&self, name: &str) -> Result<EmbeddedTopic, Arc<str>> {
        // Held while the topic is opened, so that it is opened once.
        let mut topics = Arc::clone(&self.topics).lock_owned().await;
        let failed = match topics.get(name) {
            None => None,
            Some(topic) => match topic.ledger().refusal() {
                None | Some(Refusal::Terminated { .. }) => return Ok(topic.clone()),
                Some(Refusal::WriteFailed { .. }) => Some(topic.clone()),
                // Whoever closed or took it has decided that it ends here.
                Some(
                    refusal @ (Refusal::Closed { .. }
                    | Refusal::Fenced { .. }
                    | Refusal::Lost { .. }),
                ) => {
                    return Err(words(refusal));
                }
            },
        };
        let (client, store, config) = (self.client.clone(), self.store(), self.config.clone());
        let name = name.to_owned();
        // A task of its own, so that a caller who goes leaves no log behind that is open and not
        // known to anybody.
        let opening = tokio::spawn(async move {
            if let Some(failed) = &failed {
                failed.ledger().close().await.map_err(words)?;
            }
            let log = ManagedLedger::open(&name, client, store, config.ledgers).await;
            let log = log.map_err(words)?;
            let opened = EmbeddedTopic::open(log.clone(), config.topics).await.map_err(words);
            match &opened {
                Ok(topic) => drop(topics.insert(name, topic.clone())),
                Err(_) => log.close().await.map_err(words)?,
            }
            opened
        });
        opening.await.unwrap_or_else(|error| Err(words(error)))
    }
}

fn words(error: impl ToString) -> Arc<str> {
    error.to_string().into()
}

#[cfg(test)]
mod tests;
