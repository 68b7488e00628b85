//! How fast ledgers on disk are. Not part of the usual run: it measures the machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

use super::*;
use crate::client::{LedgerClient, LedgerOptions};
use crate::config::ClientConfig;
use crate::disk::DirectoryDisk;
use crate::entry::Password;
use crate::id::EntryId;
use crate::metadata::LocalMetadataStore;
use crate::quorum::QuorumSizes;
use crate::write::{self, AppendSink};

struct Sink(watch::Sender<u64>);

impl AppendSink for Sink {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        self.0.send_replace(through.get() + 1);
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        panic!("the disks work: {error}");
    }
}

/// Appends entries of 1 KiB, so many in flight, for five seconds; how many per second were confirmed.
async fn appends_per_second(directory: &Path, in_flight: u64) -> f64 {
    let directory = tempfile::tempdir_in(directory).expect("a directory for the test");
    let disk: Arc<dyn Disk> = Arc::new(DirectoryDisk::new(directory.path()));
    let store = Arc::new(LocalMetadataStore::open(disk.clone()).await.expect("an empty directory"));
    let ids = ["b1", "b2", "b3"].map(BookieId::from);
    let (bookies, failed) =
        DurableBookies::open(disk, ids, &*store, &DurableConfig::default()).await;
    assert_eq!(failed, []);
    let registry = bookies.registry();
    let client = LedgerClient::new(Arc::new(bookies), store, registry, ClientConfig::default());
    let options = LedgerOptions {
        sizes: QuorumSizes::new(3, 3, 2).expect("valid sizes"),
        password: Password::default(),
        custom: BTreeMap::new(),
    };
    let (sink, mut confirmed) = watch::channel(0);
    let writer = client.create(options, Arc::new(Sink(sink))).await.expect("three bookies");
    let payload = Bytes::from(vec![7; 1 << 10]);
    let (begun, mut sent) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(5) {
        let room = in_flight - (sent - *confirmed.borrow_and_update());
        if room == 0 {
            confirmed.changed().await.expect("the ledger is open");
            continue;
        }
        writer.append((0..room).map(|_| payload.clone()).collect::<Vec<_>>()).expect("it is open");
        sent += room;
    }
    let count = confirmed.wait_for(|count| *count == sent).await.map(|count| *count);
    count.expect("the ledger is open") as f64 / begun.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures the machine; run it alone, in release"]
async fn durable_appends_per_second() {
    for directory in ["/tmp", "/dev/shm"].map(Path::new) {
        if directory.is_dir() {
            for in_flight in [1, 64, 1024, 8192] {
                let rate = appends_per_second(directory, in_flight).await;
                println!("{}: {in_flight} in flight: {rate:.0}/s", directory.display());
            }
        }
    }
}
