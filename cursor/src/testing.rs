//! An embedded region for the tests of this crate.

use std::sync::Arc;

use georepl_storage::fault::FaultTransport;
use georepl_storage::{
    BookieId, ClientConfig, LedgerClient, LedgerId, MemoryBookieRegistry, MemoryBookies,
    MemoryMetadataStore,
};

use crate::managed_ledger::{ManagedLedger, ManagedLedgerConfig};

pub(crate) const NAME: &str = "persistent://acme/eu/orders";

pub(crate) struct Region {
    pub(crate) bookies: [BookieId; 3],
    pub(crate) memory: Arc<MemoryBookies>,
    pub(crate) faults: Arc<FaultTransport>,
    pub(crate) store: Arc<MemoryMetadataStore>,
    pub(crate) client: LedgerClient,
}

impl Region {
    pub(crate) fn new() -> Self {
        let bookies = ["b1", "b2", "b3"].map(BookieId::from);
        let memory = Arc::new(MemoryBookies::new(bookies.clone()));
        let faults = Arc::new(FaultTransport::new(memory.clone()));
        let store = Arc::new(MemoryMetadataStore::new());
        let registry = Arc::new(MemoryBookieRegistry::new(bookies.clone()));
        let config = ClientConfig::default();
        let client = LedgerClient::new(faults.clone(), store.clone(), registry, config);
        Self { bookies, memory, faults, store, client }
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

pub(crate) fn payloads(n: usize) -> Vec<bytes::Bytes> {
    (0..n).map(|i| format!("entry {i}").into()).collect()
}

/// Appends a batch and waits for it.
pub(crate) async fn append(topic: &ManagedLedger, n: usize) -> Vec<crate::Position> {
    let permit = topic.reserve(100 * n as u64).await.expect("the topic takes appends");
    topic.append_batch(permit, payloads(n)).await.expect("the bookies answer")
}
