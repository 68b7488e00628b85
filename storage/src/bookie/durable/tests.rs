//! The suite of all bookies, and what only those on a disk can suffer.

mod copies;
mod crashes;
mod endings;
mod failures;
mod opening;

use parking_lot::Mutex;

use super::serving::Stop;
use super::*;
use crate::bookie::conformance::{Kind, b1, conformance};
use crate::bookie::rules::Mode;
use crate::disk::DatabaseFile;
use crate::fault::CrashDisk;
use crate::metadata::MemoryMetadataStore;
use crate::registry::RegisteredBookie;
use crate::transport::{RequestBody, RequestId, ResponseBody};

conformance!(Durable::new().await);

/// A bookie on a disk that can lose power.
struct Durable {
    disk: CrashDisk,
    store: MemoryMetadataStore,
    config: DurableConfig,
    bookies: Option<DurableBookies>,
}

const FILE: &str = "bookie-b1.redb";

impl Durable {
    async fn new() -> Self {
        Self::with(DurableConfig::default()).await
    }

    async fn with(config: DurableConfig) -> Self {
        let mut durable = Self::stopped(config).await;
        durable.start().await;
        durable
    }

    /// One that was never started, with a store that has given out the ids that tests use.
    async fn stopped(config: DurableConfig) -> Self {
        let (disk, store) = (CrashDisk::new(), MemoryMetadataStore::new());
        while store.allocate_ledger_id().await.expect("it has many") < LedgerId(99) {}
        Self { disk, store, config, bookies: None }
    }

    async fn try_start(&mut self) -> Result<(), OpenBookieError> {
        let disk = Arc::new(self.disk.clone());
        let (bookies, failed) = DurableBookies::open(disk, [b1()], &self.store, &self.config).await;
        self.bookies = Some(bookies);
        failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    async fn start(&mut self) {
        self.try_start().await.expect("the file is usable");
    }

    async fn renew(&self) -> Result<(), RenewBookieError> {
        DurableBookies::renew(Arc::new(self.disk.clone()), &b1(), &self.store).await
    }

    fn stop(&mut self) {
        self.bookies = None;
    }

    fn bookies(&self) -> &DurableBookies {
        self.bookies.as_ref().expect("it was started")
    }
}

impl Kind for Durable {
    fn transport(&self) -> &dyn BookieTransport {
        self.bookies()
    }

    async fn restart(&mut self) {
        self.stop();
        self.start().await;
    }

    async fn wipe(&mut self) {
        self.stop();
        self.disk.remove(FILE);
        self.renew().await.expect("its file is gone");
        self.start().await;
    }

    async fn keep_only(&mut self, ledger: LedgerId) {
        let mut others = self.bookies().ledgers().await;
        others.remove(&ledger);
        self.bookies().delete_ledgers(others).await.expect("the disk works");
    }
}
