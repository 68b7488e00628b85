//! Ledgers on bookies over TCP, as an embedder has them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use georepl_storage::wire::{BookieAddress, BookieServer, Limits, Protocol, TcpBookies, TcpConfig};
use georepl_storage::{
    AppendSink, BookieId, ClientConfig, EntryId, LedgerClient, LedgerId, LedgerOptions,
    LedgerState, MemoryBookieRegistry, MemoryBookies, MemoryMetadataStore, Password, QuorumSizes,
    write,
};
use tokio::sync::mpsc;

/// Four bookies in memory, each behind a socket of its own, and a client that knows only the sockets.
struct Cluster {
    bookies: Arc<MemoryBookies>,
    servers: HashMap<BookieId, BookieServer>,
    client: LedgerClient,
}

impl Cluster {
    async fn new(protocol: Protocol) -> Self {
        let bookies = Arc::new(MemoryBookies::new((1..=4).map(|n| format!("b{n}").into())));
        let (mut servers, mut addresses) = (HashMap::new(), HashMap::new());
        for id in bookies.ids() {
            let server = BookieServer::bind("127.0.0.1:0", id.clone(), bookies.clone(), None);
            let server = server.await.expect("a free port");
            let host_port = server.address().to_string().into();
            let instance = bookies.instance(&id);
            addresses.insert(id.clone(), BookieAddress { host_port, instance });
            servers.insert(id, server);
        }
        let resolver = move |bookie: &BookieId| addresses.get(bookie).cloned();
        let limits = Limits { protocol, ..Limits::default() };
        let config = TcpConfig { limits, ..TcpConfig::default() };
        let transport = Arc::new(TcpBookies::new(Arc::new(resolver), config));
        let store = Arc::new(MemoryMetadataStore::new());
        let registry = Arc::new(MemoryBookieRegistry::new(bookies.ids()));
        let client = LedgerClient::new(transport, store, registry, ClientConfig::default());
        Self { bookies, servers, client }
    }
}

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

fn options() -> LedgerOptions {
    LedgerOptions {
        sizes: QuorumSizes::new(3, 3, 2).expect("valid sizes"),
        password: Password::from("secret"),
        custom: BTreeMap::new(),
    }
}

fn payloads(range: std::ops::Range<usize>) -> Vec<Bytes> {
    range.map(|i| Bytes::from(vec![i as u8; i * 7 % 10_000])).collect()
}

type Told = Result<EntryId, write::Error>;

async fn confirmed(told: &mut mpsc::UnboundedReceiver<Told>, count: usize) {
    let last = EntryId(count as u64 - 1);
    while told.recv().await.expect("open").expect("nothing fails") < last {}
}

const COUNT: usize = 2000;

#[tokio::test]
async fn a_ledger_is_written_tailed_and_recovered_and_a_bookie_replaced_over_tcp() {
    for protocol in [Protocol::V2, Protocol::V3] {
        let mut cluster = Cluster::new(protocol).await;
        let (sink, mut told) = mpsc::unbounded_channel();
        let client = &cluster.client;
        let writer = client.create(options(), Arc::new(Sink(sink))).await.expect("four bookies");
        let ledger = writer.metadata();
        let member = ledger.last_ensemble().1[0].clone();

        writer.append(payloads(0..COUNT)).expect("the ledger is open");
        confirmed(&mut told, COUNT).await;

        // One goes; the spare takes its place.
        cluster.servers.remove(&member).expect("it is served").stop().await;
        writer.append(payloads(COUNT..2 * COUNT)).expect("the ledger is open");
        confirmed(&mut told, 2 * COUNT).await;

        // The writer is left as if it had died; another client finds the end.
        let id = LedgerId(writer_ledger(&cluster.bookies));
        let reader = client.recover(id, &options().password).await.expect("two of three answer");
        assert!(matches!(reader.metadata().state(), LedgerState::Closed(_)));
        let last = EntryId(2 * COUNT as u64 - 1);
        assert_eq!(reader.last_add_confirmed(), Some(last), "{protocol:?}");
        let read = reader.read(EntryId::FIRST, last).await.expect("every entry has two copies");
        let read: Vec<_> = read.into_iter().map(|entry| entry.payload).collect();
        assert!(read == payloads(0..2 * COUNT), "{protocol:?}");

        // And the first one finds out.
        writer.append(payloads(0..1)).expect("it does not know yet");
        let failed = told.recv().await.expect("open").expect_err("it is fenced");
        assert!(matches!(failed, write::Error::Fenced { .. }), "{failed}");
    }
}

fn writer_ledger(bookies: &MemoryBookies) -> u64 {
    let ledgers = bookies.ledgers();
    assert_eq!(ledgers.len(), 1);
    ledgers.first().expect("there is one").get()
}
