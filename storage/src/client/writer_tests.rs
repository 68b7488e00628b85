//! Writers over bookies in memory that fail, seen by their owner and by readers.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;

use super::*;
use crate::bookie::MemoryBookies;
use crate::bookie::rules::Mode;
use crate::client::{LedgerClient, LedgerOptions};
use crate::config::ClientConfig;
use crate::entry::Password;
use crate::fault::{Fault, FaultTransport};
use crate::id::{BookieId, Instance};
use crate::metadata::MemoryMetadataStore;
use crate::quorum::QuorumSizes;
use crate::registry::{MemoryBookieRegistry, RegisteredBookie};
use crate::transport::BookieError;
use crate::write::AppendSink;

struct Cluster {
    bookies: Arc<MemoryBookies>,
    transport: Arc<FaultTransport>,
    registry: Arc<MemoryBookieRegistry>,
    client: LedgerClient,
}

struct Sink(mpsc::UnboundedSender<Result<EntryId, write::Error>>);

impl AppendSink for Sink {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        // A test that is over no longer listens.
        let _ = self.0.send(Ok(through));
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        let _ = self.0.send(Err(error));
    }
}

type Told = mpsc::UnboundedReceiver<Result<EntryId, write::Error>>;

impl Cluster {
    fn new(names: &[&str]) -> Self {
        let ids = || names.iter().map(|name| BookieId::from(*name));
        let bookies = Arc::new(MemoryBookies::new(ids()));
        let transport = Arc::new(FaultTransport::new(bookies.clone()));
        let store = Arc::new(MemoryMetadataStore::new());
        let registry = Arc::new(MemoryBookieRegistry::new(ids()));
        let config = ClientConfig::default();
        let client = LedgerClient::new(transport.clone(), store, registry.clone(), config);
        Self { bookies, transport, registry, client }
    }

    async fn create(&self) -> (LedgerWriter, Told) {
        let (sink, told) = mpsc::unbounded_channel();
        let options = LedgerOptions {
            sizes: QuorumSizes::new(3, 3, 2).unwrap(),
            password: Password::default(),
            custom: BTreeMap::new(),
        };
        (self.client.create(options, Arc::new(Sink(sink))).await.unwrap(), told)
    }
}

async fn append(writer: &LedgerWriter, told: &mut Told, count: usize) {
    let payloads = (0..count).map(|i| Bytes::from(format!("payload {i}")));
    let first = writer.append(payloads).unwrap();
    let last = EntryId(first.get() + count as u64 - 1);
    while told.recv().await != Some(Ok(last)) {}
}

#[tokio::test(start_paused = true)]
async fn a_lost_bookie_is_replaced_and_every_entry_is_read_by_whoever_opens_the_ledger() {
    let cluster = Cluster::new(&["b1", "b2", "b3", "b4"]);
    let (writer, mut told) = cluster.create().await;
    append(&writer, &mut told, 10).await;
    let lost = writer.metadata().last_ensemble().1[1].clone();
    cluster.transport.inject(&lost, Fault::Answer(BookieError::Unreachable));
    append(&writer, &mut told, 10).await;
    assert_eq!(writer.stats(), WriterStats { ensemble_changes: 1, ..WriterStats::default() });
    let record = writer.metadata();
    let (key, members) = record.last_ensemble();
    assert!(key.get() >= 10 && !members.contains(&lost), "{key} {members:?}");

    let end = writer.close().await.unwrap();
    assert_eq!(end.last_entry, Some(EntryId(19)));
    for bookie in members {
        let held = cluster.bookies.entries(bookie, writer.id());
        assert_eq!(
            held.iter().filter(|entry| entry.entry() >= key).count(),
            20 - key.get() as usize
        );
    }
    let reader = cluster.client.open(writer.id(), &Password::default()).await.unwrap();
    assert_eq!(reader.read(EntryId(0), EntryId(19)).await.map(|read| read.len()), Ok(20));
}

#[tokio::test(start_paused = true)]
async fn without_a_spare_a_writer_goes_on_and_uses_the_bookie_again_when_it_answers() {
    let cluster = Cluster::new(&["b1", "b2", "b3"]);
    let (writer, mut told) = cluster.create().await;
    let lost = BookieId::from("b2");
    cluster.transport.inject(&lost, Fault::Answer(BookieError::Unreachable));
    append(&writer, &mut told, 5).await;
    assert_eq!((writer.stats().lost_members, writer.stats().ensemble_changes), (1, 0));
    cluster.transport.heal(&lost);
    // One probe interval and a little.
    tokio::time::sleep(Duration::from_secs(6)).await;
    append(&writer, &mut told, 5).await;
    assert_eq!(writer.stats().lost_members, 0);
    assert_eq!(cluster.bookies.entries(&lost, writer.id()).len(), 5);
    let [shortfall] = &writer.shortfalls()[..] else { panic!("one bookie lacks entries") };
    assert_eq!((&shortfall.bookie, shortfall.first), (&lost, EntryId(0)));
    assert!(writer.stats().entries_below_write_quorum >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_reader_sees_the_last_entry_of_an_idle_ledger() {
    let cluster = Cluster::new(&["b1", "b2", "b3"]);
    let (writer, mut told) = cluster.create().await;
    append(&writer, &mut told, 3).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let reader = cluster.client.open(writer.id(), &Password::default()).await.unwrap();
    assert_eq!(reader.last_add_confirmed(), Some(EntryId(2)));
}

#[tokio::test(start_paused = true)]
async fn closes_at_the_same_time_share_one_result() {
    let cluster = Cluster::new(&["b1", "b2", "b3"]);
    let (writer, mut told) = cluster.create().await;
    append(&writer, &mut told, 3).await;
    let (one, other, third) = tokio::join!(writer.close(), writer.close(), writer.close());
    let end = LedgerEnd { last_entry: Some(EntryId(2)), length: 27 };
    assert_eq!((one, other, third), (Ok(end), Ok(end), Ok(end)));
    assert_eq!(writer.append([Bytes::new()]), Err(write::Error::Closed { ledger: writer.id() }));
}

#[tokio::test(start_paused = true)]
async fn the_last_news_of_a_registry_that_is_gone_is_heard() {
    let cluster = Cluster::new(&["b1", "b2", "b3", "b4"]);
    cluster.registry.unregister(&"b4".into());
    let (writer, mut told) = cluster.create().await;
    append(&writer, &mut told, 1).await;
    let Cluster { transport, registry, client, .. } = cluster;
    let (id, instance) = (BookieId::from("b4"), Instance(1));
    registry.register(RegisteredBookie { id, instance, mode: Mode::Writable });
    // Before the writer's task has run.
    drop((registry, client));
    transport.inject(&"b2".into(), Fault::Answer(BookieError::Unreachable));
    append(&writer, &mut told, 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(writer.metadata().last_ensemble().1.contains(&"b4".into()));
}
