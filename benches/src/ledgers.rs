//! One ledger on three bookies, and appends to it with so many in flight.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use georepl::storage::{
    AppendSink, BookieId, ClientConfig, DirectoryDisk, Disk, DurableBookies, DurableConfig,
    EntryId, LedgerClient, LedgerId, LedgerOptions, LedgerWriter, LocalMetadataStore, Password,
    QuorumSizes, write,
};
use tokio::sync::watch;

use crate::Failed;

/// A client of three new bookies in a directory.
///
/// # Errors
/// If they cannot be opened there.
pub async fn on_disk(directory: &Path) -> Result<LedgerClient, Failed> {
    let disk: Arc<dyn Disk> = Arc::new(DirectoryDisk::new(directory));
    let store = Arc::new(LocalMetadataStore::open(disk.clone()).await?);
    let ids = ["b1", "b2", "b3"].map(BookieId::from);
    let (bookies, failed) =
        DurableBookies::open(disk, ids, &*store, &DurableConfig::default()).await;
    if let Some((_, error)) = failed.into_iter().next() {
        return Err(error.into());
    }
    let registry = bookies.registry();
    Ok(LedgerClient::new(Arc::new(bookies), store, registry, ClientConfig::default()))
}

/// Each entry on three bookies, acknowledged when two have it.
#[must_use]
pub fn ledger_options() -> LedgerOptions {
    let sizes = QuorumSizes::new(3, 3, 2).expect("valid sizes");
    LedgerOptions { sizes, password: Password::default(), custom: BTreeMap::new() }
}

/// The writer of a ledger, who knows how many of its entries are confirmed.
#[derive(Debug)]
pub struct Appender {
    writer: LedgerWriter,
    sent: u64,
    confirmed: watch::Receiver<Result<u64, write::Error>>,
}

struct Sink(watch::Sender<Result<u64, write::Error>>);

impl AppendSink for Sink {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        self.0.send_modify(|told| *told = Ok(through.get() + 1));
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        self.0.send_modify(|told| *told = Err(error));
    }
}

impl Appender {
    /// Creates a ledger.
    ///
    /// # Errors
    /// If it cannot be created.
    pub async fn create(client: &LedgerClient) -> Result<Self, Failed> {
        let (sink, confirmed) = watch::channel(Ok(0));
        let writer = client.create(ledger_options(), Arc::new(Sink(sink))).await?;
        Ok(Self { writer, sent: 0, confirmed })
    }

    /// The ledger's writer.
    #[must_use]
    pub fn writer(&self) -> &LedgerWriter {
        &self.writer
    }

    /// Appends with at most `in_flight` entries unconfirmed, for as long as `more`, given how many were sent, says that
    /// more are wanted; then waits until all are confirmed. Returns how many that is.
    ///
    /// # Errors
    /// If an append fails.
    pub async fn append(
        &mut self,
        payloads: &[Bytes],
        in_flight: u64,
        mut more: impl FnMut(u64) -> u64,
    ) -> Result<u64, Failed> {
        let mut payloads = payloads.iter().cycle().cloned();
        loop {
            let more = more(self.sent);
            if more == 0 {
                break;
            }
            let room = in_flight - (self.sent - self.confirmed.borrow_and_update().clone()?);
            if room == 0 {
                self.confirmed.changed().await?;
                continue;
            }
            let entries = room.min(more);
            self.writer.append(payloads.by_ref().take(usize::try_from(entries)?))?;
            self.sent += entries;
        }
        let all = |told: &Result<u64, _>| told.as_ref().is_err() || *told == Ok(self.sent);
        Ok(self.confirmed.wait_for(all).await?.clone()?)
    }
}
