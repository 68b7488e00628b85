//! The storage of a cluster of Apache BookKeeper: bookies, metadata and registry, which belong together.

use std::fmt;
use std::sync::Arc;

use crate::client::LedgerClient;
use crate::config::{ClientConfig, RecoveryStart};
use crate::metadata::{
    ConnectError, MetadataServiceUri, MetadataStore, ZooKeeperConfig, ZooKeeperMetadata,
};
use crate::registry::{BookieRegistry, ZooKeeperRegistry};
use crate::transport::BookieTransport;
use crate::wire::{TcpBookies, TcpConfig};

/// Where ledgers are kept. Clones share connections and session.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use georepl_storage::{BookKeeperConfig, ClientConfig, LedgerId, Password, Storage};
///
/// let uri = "zk://zk1:2181,zk2:2181,zk3:2181/ledgers".parse()?;
/// let storage = Storage::bookkeeper(BookKeeperConfig::new(uri)).await?;
/// let client = storage.client(ClientConfig::default());
/// let ledger = client.open(LedgerId(42), &Password::default()).await?;
/// println!("up to entry {:?}", ledger.last_add_confirmed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Storage {
    transport: Arc<dyn BookieTransport>,
    store: Arc<dyn MetadataStore>,
    registry: Arc<dyn BookieRegistry>,
}

/// How to reach a cluster of Apache BookKeeper.
#[derive(Clone, Debug)]
pub struct BookKeeperConfig {
    /// Its metadata.
    pub metadata: ZooKeeperConfig,
    /// How its bookies are spoken to.
    pub bookies: TcpConfig,
}

impl BookKeeperConfig {
    /// The cluster whose metadata is there, with the defaults of an unchanged one.
    #[must_use]
    pub fn new(uri: MetadataServiceUri) -> Self {
        Self { metadata: ZooKeeperConfig::new(uri), bookies: TcpConfig::default() }
    }
}

impl Storage {
    /// The bookies of a cluster that is there. Bookies are found by what they register, and connected to when they are
    /// needed. It all lives on the runtime in which this is called, until the last clone and client are dropped.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectError`] if its metadata cannot be used.
    pub async fn bookkeeper(config: BookKeeperConfig) -> Result<Self, ConnectError> {
        let store = ZooKeeperMetadata::connect(config.metadata).await?;
        let registry = Arc::new(ZooKeeperRegistry::follow(&store).await);
        let transport = TcpBookies::new(registry.clone(), config.bookies);
        Ok(Self { transport: Arc::new(transport), store: Arc::new(store), registry })
    }

    /// A client of its ledgers. Java clients may recover ledgers of the cluster as well, so that recoveries begin at the
    /// last ensemble, whatever `config` says.
    #[must_use]
    pub fn client(&self, config: ClientConfig) -> LedgerClient {
        let config = ClientConfig { recovery_start: RecoveryStart::LastKey, ..config };
        LedgerClient::new(self.transport.clone(), self.store.clone(), self.registry.clone(), config)
    }

    /// The metadata, in which topics and cursors are kept as well.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn MetadataStore> {
        &self.store
    }

    /// The bookies.
    #[must_use]
    pub fn registry(&self) -> &Arc<dyn BookieRegistry> {
        &self.registry
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").finish_non_exhaustive()
    }
}
