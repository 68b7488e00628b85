//! What a region is to be like, and how it comes to be.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use georepl_cursor::ManagedLedgerConfig;
use georepl_replicator::EmbeddedTopicConfig;
use georepl_storage::{
    BookieId, ClientConfig, Disk, DurableBookies, DurableConfig, LocalMetadataStore,
    MemoryBookieRegistry, MemoryBookies, MemoryMetadataStore, OpenBookieError, OpenFileError,
};
use tokio::task::spawn_blocking;

use super::directory::{Absent, Directory, HeldDisk, Manifest, Wanted, bookie_file};
use super::error::{MissingBookie, OpenRegionError};
use super::{Bookies, Memory, Region, Settings};

/// Settings of a [`Region`] that is to be opened.
#[derive(Clone, Debug)]
pub struct RegionBuilder {
    name: Option<String>,
    bookies: usize,
    absent: Absent,
    disk: DurableConfig,
    settings: Settings,
}

impl Default for RegionBuilder {
    fn default() -> Self {
        Self {
            name: None,
            bookies: 4,
            absent: Absent::Create,
            disk: DurableConfig::default(),
            settings: Settings::default(),
        }
    }
}

impl RegionBuilder {
    /// The region's name, which is its cluster's. One on disk that has another is refused. Default the name of its
    /// directory.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many bookies a new region has, at least the ensemble size of its ledgers. With more, that many may be lost
    /// and entries are still written to a whole ensemble. Default 4.
    #[must_use]
    pub fn bookies(mut self, bookies: usize) -> Self {
        self.bookies = bookies;
        self
    }

    /// What to do if there is no region in the directory. Default begin one.
    #[must_use]
    pub fn absent(mut self, absent: Absent) -> Self {
        self.absent = absent;
        self
    }

    /// Settings of bookies on disk: the limit of their files, their cache, their queues.
    #[must_use]
    pub fn disk(mut self, disk: DurableConfig) -> Self {
        self.disk = disk;
        self
    }

    /// Settings of what reads and writes the ledgers.
    #[must_use]
    pub fn client(mut self, client: ClientConfig) -> Self {
        self.settings.client = client;
        self
    }

    /// Settings of every topic's ledgers: quorums, retention, backlog quota.
    #[must_use]
    pub fn ledgers(mut self, ledgers: ManagedLedgerConfig) -> Self {
        self.settings.ledgers = ledgers;
        self
    }

    /// Settings of every topic.
    #[must_use]
    pub fn topics(mut self, topics: EmbeddedTopicConfig) -> Self {
        self.settings.topics = topics;
        self
    }

    /// An empty region that is gone with its last handle.
    ///
    /// # Panics
    /// Outside a tokio runtime, and if it has a name that cannot be one.
    #[must_use]
    pub fn in_memory(self) -> Region {
        let name = self.name.as_deref().unwrap_or("memory");
        let manifest = Manifest::new(name, self.bookies)
            .expect("the name of a region in memory has letters, digits, '.', '_' and '-' alone");
        let ids = ids(&manifest);
        let memory = Memory {
            bookies: Arc::new(MemoryBookies::new(ids.clone())),
            registry: Arc::new(MemoryBookieRegistry::new(ids)),
        };
        let store = Arc::new(MemoryMetadataStore::new());
        Region::start(
            manifest.name.into(),
            self.settings,
            Bookies::Memory(memory),
            store,
            Vec::new(),
            None,
        )
    }

    /// Opens the region in a directory, or begins one there. It is held until the last handle to the region, to its
    /// topics and to their ledgers is dropped; meanwhile nobody else can open it.
    ///
    /// Bookies whose files cannot be opened are done without if enough are left for the ensemble of a ledger:
    /// [`Region::missing`] names them.
    ///
    /// If the future is dropped, a new directory may be there, and be a region.
    ///
    /// # Errors
    /// [`OpenRegionError`].
    ///
    /// # Panics
    /// Outside a tokio runtime, and if threads cannot be started.
    pub async fn open(self, directory: impl Into<PathBuf>) -> Result<Region, OpenRegionError> {
        let path = directory.into();
        let wanted = Wanted { name: self.name, bookies: self.bookies, absent: self.absent };
        let Held { name, ids, disk, store } = hold(&path, wanted).await?;
        let store = Arc::new(store);
        let (bookies, failed) = DurableBookies::open(disk, ids, &*store, &self.disk).await;
        let missing: Vec<_> =
            failed.into_iter().map(|(bookie, error)| MissingBookie { bookie, error }).collect();
        // Somebody who does not heed the lock writes to it. That is no bookie to go on without.
        if missing.iter().any(|missing| {
            matches!(missing.error, OpenBookieError::File(OpenFileError::InUse { .. }))
        }) {
            return Err(in_use(&path));
        }
        let (opened, needed) = (bookies.ids().count(), self.settings.ledgers.sizes.ensemble());
        if opened < needed {
            return Err(OpenRegionError::TooFewBookies { region: name, opened, needed, missing });
        }
        let bookies = Bookies::Disk(Arc::new(bookies));
        Ok(Region::start(name, self.settings, bookies, store, missing, Some(path)))
    }
}

/// A region's directory that this process holds, and the metadata in it.
pub(super) struct Held {
    pub(super) name: Arc<str>,
    pub(super) ids: Vec<BookieId>,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) store: LocalMetadataStore,
}

/// Takes hold of a directory, and opens the metadata in it.
pub(super) async fn hold(path: &Path, wanted: Wanted) -> Result<Held, OpenRegionError> {
    let held = {
        let path = path.to_owned();
        let opening = spawn_blocking(move || Directory::open(&path, &wanted));
        opening.await.expect("opening a directory does not panic")?
    };
    let (ids, name) = (ids(&held.manifest), held.manifest.name.as_str().into());
    let disk: Arc<dyn Disk> = Arc::new(HeldDisk::new(path, held));
    let store = match bookie_file(path, &ids) {
        None => LocalMetadataStore::open(disk.clone()).await.map_err(OpenRegionError::from),
        Some(found) => {
            let opened = LocalMetadataStore::open_existing(disk.clone()).await;
            opened.map_err(|error| match error {
                OpenFileError::Gone { file: metadata } => {
                    OpenRegionError::MetadataGone { metadata, found }
                }
                error => error.into(),
            })
        }
    };
    let store = store.map_err(|error| match error {
        OpenRegionError::Metadata(OpenFileError::InUse { .. }) => in_use(path),
        error => error,
    })?;
    Ok(Held { name, ids, disk, store })
}

fn in_use(directory: &Path) -> OpenRegionError {
    OpenRegionError::InUse { directory: directory.to_owned(), pid: None }
}

fn ids(manifest: &Manifest) -> Vec<BookieId> {
    manifest.bookies.iter().map(|id| BookieId::from(id.as_str())).collect()
}
