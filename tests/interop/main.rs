//! The same ledgers in the hands of this project and of the Java client, on real bookies.
//!
//! Records of ledgers travel between ZooKeeper and a store in memory by the Java tool, byte for byte.

mod answers;
mod rig;
mod tls;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use georepl_storage::wire::{IdsAreAddresses, Limits, Protocol, TcpBookies, TcpConfig};
use georepl_storage::{
    AppendSink, BookieId, ClientConfig, EntryId, Expected, LedgerClient, LedgerId, LedgerOptions,
    LedgerState, LedgerWriter, MemoryBookieRegistry, MemoryMetadataStore, MetadataStore, Password,
    QuorumSizes, RecoveryStart, ledger_key, write,
};
use tokio::sync::mpsc;

use crate::rig::{Rig, number, text};

/// Ids of ours are above those that the Java client takes.
const FIRST_LEDGER: LedgerId = LedgerId(5000);

/// Bookies of a rig, the records of our ledgers in memory, and our client of both.
struct World {
    rig: Rig,
    store: Arc<MemoryMetadataStore>,
    client: LedgerClient,
}

impl World {
    async fn new(bookies: usize) -> Self {
        let rig = Rig::up(bookies);
        // So that the folders for records are there.
        rig.tool(["write", "--entries", "1", "--password", "secret"]);
        let store = Arc::new(MemoryMetadataStore::new());
        while store.allocate_ledger_id().await.expect("it has many") < FIRST_LEDGER {}
        let client = client(&rig, &store, Protocol::default());
        Self { rig, store, client }
    }

    /// Goes on in another protocol.
    fn speak(&mut self, protocol: Protocol) {
        self.client = client(&self.rig, &self.store, protocol);
    }

    async fn create(&self) -> (LedgerWriter, mpsc::UnboundedReceiver<Told>) {
        let (sink, told) = mpsc::unbounded_channel();
        let options = LedgerOptions {
            sizes: QuorumSizes::new(3, 3, 2).expect("valid sizes"),
            password: password(),
            custom: BTreeMap::new(),
        };
        (self.client.create(options, Arc::new(Sink(sink))).await.expect("enough bookies"), told)
    }

    /// Gives the record of a ledger of ours to ZooKeeper.
    async fn give(&self, ledger: LedgerId) {
        let record = self.store.get(&ledger_key(ledger)).await.expect("it answers");
        let mut hex = String::new();
        for byte in &*record.expect("the ledger exists").value {
            write!(hex, "{byte:02x}").expect("a text takes all");
        }
        self.rig.tool(["zk-set", &znode(ledger), "--hex", &hex]);
    }

    /// Takes the record of a ledger of Java's out of ZooKeeper.
    async fn take(&self, ledger: LedgerId) {
        let found = self.rig.tool(["zk-get", &znode(ledger)]);
        let hex = text(&found, "hex").as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hex digit") as u8;
        let record: Bytes =
            hex.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
        let key = ledger_key(ledger);
        self.store.put(&key, record, Expected::Absent).await.expect("it is new");
    }
}

fn client(rig: &Rig, store: &Arc<MemoryMetadataStore>, protocol: Protocol) -> LedgerClient {
    let ids = rig.bookies.iter().map(|id| BookieId::from(id.as_str()));
    let registry = Arc::new(MemoryBookieRegistry::new(ids));
    let resolver = Arc::new(IdsAreAddresses::new(&*registry));
    let limits = Limits { protocol, ..Limits::default() };
    let transport = TcpBookies::new(resolver, TcpConfig { limits, ..TcpConfig::default() });
    // The Java client recovers ledgers of this cluster as well.
    let config = ClientConfig { recovery_start: RecoveryStart::LastKey, ..ClientConfig::default() };
    LedgerClient::new(Arc::new(transport), store.clone(), registry, config)
}

/// Where BookKeeper keeps the record of a ledger whose id is below 10,000.
fn znode(ledger: LedgerId) -> String {
    assert!(ledger.get() < 10_000);
    format!("/ledgers/00/0000/L{:04}", ledger.get())
}

fn password() -> Password {
    Password::from("secret")
}

type Told = Result<EntryId, write::Error>;

/// Tells a test how far appends are confirmed, and how they failed.
struct Sink(mpsc::UnboundedSender<Told>);

impl AppendSink for Sink {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        // A test that is over no longer listens.
        let _ = self.0.send(Ok(through));
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        let _ = self.0.send(Err(error));
    }
}

async fn confirmed(told: &mut mpsc::UnboundedReceiver<Told>, through: u64) {
    while told.recv().await.expect("open").expect("nothing fails") < EntryId(through) {}
}

/// The payload that the Java tool gives to an entry: words of SplitMix64 that starts at seed + entry.
fn payload(seed: u64, entry: u64, size: usize) -> Bytes {
    let mut state = seed.wrapping_add(entry);
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(size);
    bytes.into()
}

fn payloads(seed: u64, entries: std::ops::Range<u64>, size: usize) -> Vec<Bytes> {
    entries.map(|entry| payload(seed, entry, size)).collect()
}

const BOTH: [Protocol; 2] = [Protocol::V2, Protocol::V3];

/// The id of the ledger that a writer was created with last.
async fn newest(store: &MemoryMetadataStore) -> LedgerId {
    let names = store.children("ledgers").await.expect("it answers");
    let last = names.last().expect("there is a ledger").trim_start_matches('L');
    LedgerId(last.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn java_recovers_and_reads_what_we_wrote_and_our_writer_is_fenced() {
    let mut world = World::new(3).await;
    for (protocol, size) in
        [(Protocol::V2, 0), (Protocol::V2, 100_000), (Protocol::V3, 100), (Protocol::V3, 100_000)]
    {
        world.speak(protocol);
        let (writer, mut told) = world.create().await;
        let ledger = newest(&world.store).await;
        writer.append(payloads(7, 0..40, size)).expect("it is open");
        confirmed(&mut told, 39).await;
        world.give(ledger).await;

        let ledger = ledger.to_string();
        let of_it = ["--ledger", &ledger, "--password", "secret"];
        let opened = world.rig.tool(["open-recovery"].into_iter().chain(of_it));
        assert_eq!(number(&opened, "lac"), 39, "{protocol:?} {size}: {opened}");
        assert_eq!(number(&opened, "length"), 40 * size as i64, "{opened}");
        let read = ["read", "--verify-seed", "7"].into_iter().chain(of_it);
        let read = world.rig.tool(read);
        assert_eq!(number(&read, "entries"), 40, "{read}");
        assert_eq!(number(&read, "wrong"), 0, "{read}");

        writer.append(payloads(7, 40..41, size)).expect("it does not know yet");
        let failed = told.recv().await.expect("open").expect_err("it is fenced");
        assert!(matches!(failed, write::Error::Fenced { .. }), "{failed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn we_recover_and_read_what_java_wrote_and_its_writer_is_fenced() {
    let mut world = World::new(3).await;
    for (protocol, java) in [
        (Protocol::V2, "--v2"),
        (Protocol::V3, "--v2"),
        (Protocol::V2, "--no-close"),
        (Protocol::V3, "--no-close"),
    ] {
        world.speak(protocol);
        let go = world.rig.path(&format!("go-{protocol:?}{java}"));
        let go_text = go.to_str().expect("a plain path").to_owned();
        let mut writing = world.rig.start_tool([
            "write",
            "--entries",
            "30",
            "--size",
            "1000",
            "--seed",
            "5",
            "--password",
            "secret",
            "--no-close",
            "--linger",
            "60000",
            "--extra-on",
            &go_text,
            java,
        ]);
        let first = writing.line();
        let ledger = LedgerId(number(&first, "ledger").unsigned_abs());
        world.take(ledger).await;

        let reader = world.client.open(ledger, &password()).await.expect("it can be read");
        let stored = reader.stored_lac().expect("many entries");
        assert!((28..=29).contains(&stored.get()), "an entry tells of the one before it: {stored}");
        let early = reader.read(EntryId::FIRST, stored).await.expect("they are confirmed");
        assert_eq!(early.len() as u64, stored.get() + 1);

        let reader = world.client.recover(ledger, &password()).await.expect("all answer");
        assert!(matches!(reader.metadata().state(), LedgerState::Closed(_)));
        assert_eq!(reader.last_add_confirmed(), Some(EntryId(29)), "{protocol:?} {java}");
        let read = reader.read(EntryId::FIRST, EntryId(29)).await.expect("it is closed");
        let read: Vec<_> = read.into_iter().map(|entry| entry.payload).collect();
        assert!(read == payloads(5, 0..30, 1000), "{protocol:?} {java}");

        std::fs::write(&go, "").expect("a file");
        let extra = writing.line();
        assert_ne!(number(&extra, "rc"), 0, "its writer acknowledges nothing more: {extra}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bookie_that_is_killed_is_replaced_and_nothing_is_lost() {
    let mut world = World::new(4).await;
    for (round, protocol) in BOTH.into_iter().enumerate() {
        world.speak(protocol);
        let (writer, mut told) = world.create().await;
        let ledger = newest(&world.store).await;
        writer.append(payloads(3, 0..500, 1000)).expect("it is open");
        confirmed(&mut told, 499).await;

        let member = writer.metadata().last_ensemble().1[round].clone();
        let number_of = world.rig.bookies.iter().position(|id| id == member.as_str());
        let number_of = 1 + number_of.expect("it is one of the rig's");
        world.rig.kill_bookie(number_of);
        writer.append(payloads(3, 500..1000, 1000)).expect("it is open");
        confirmed(&mut told, 999).await;
        assert!(!writer.metadata().last_ensemble().1.contains(&member), "{protocol:?}");

        let reader = world.client.recover(ledger, &password()).await.expect("enough answer");
        assert_eq!(reader.last_add_confirmed(), Some(EntryId(999)));
        let read = reader.read(EntryId::FIRST, EntryId(999)).await.expect("two copies of each");
        let read: Vec<_> = read.into_iter().map(|entry| entry.payload).collect();
        assert!(read == payloads(3, 0..1000, 1000), "{protocol:?}");
        world.rig.start_bookie(number_of);
    }
}
