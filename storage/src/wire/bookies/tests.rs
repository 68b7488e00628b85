//! The suite of all bookies, over TCP, and what only a wire can suffer.

mod auth;
mod hostile;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use super::*;
use crate::bookie::MemoryBookies;
use crate::bookie::conformance::{Kind, One, add, b1, conformance};
use crate::id::{Instance, LedgerId};
use crate::transport::AddKind;
use crate::wire::server::BookieServer;
use crate::wire::tls::TlsServer;

conformance!(Tcp::new(config(Protocol::V3), None).await);

mod v2 {
    use super::*;

    // Not the waits, which are in v3 and therefore come in any order with the adds.
    conformance! { Tcp::new(config(Protocol::V2), None).await =>
        an_entry_is_returned_byte_for_byte
        the_first_key_binds_the_ledger
        a_fenced_ledger_takes_only_what_a_recovery_adds
        a_ledger_never_seen_is_fenced_as_well
        a_second_add_is_the_first_again_and_a_recovery_replaces
        denials_tell_ledger_and_entry_apart
        the_lac_is_the_highest_that_was_heard_of
        requests_of_a_batch_are_carried_out_in_order
        a_bookie_that_is_not_there_cannot_be_reached
        a_restart_keeps_life_entries_fences_and_lac_and_loses_waits
        a_wiped_bookie_is_another_life_without_entries_and_fences
        a_deleted_ledger_is_gone_and_the_others_stay
    }
}

/// Waits are not to end by themselves in a test.
pub(super) fn config(protocol: Protocol) -> TcpConfig {
    let lac_wait = Duration::from_secs(600);
    TcpConfig { limits: Limits { protocol, lac_wait, ..Limits::default() }, ..TcpConfig::default() }
}

/// A bookie in memory behind a socket.
struct Tcp {
    transport: TcpBookies,
    bookies: Arc<MemoryBookies>,
    server: Option<BookieServer>,
    tls: Option<TlsServer>,
    address: SocketAddr,
    place: Place,
    lives: u64,
}

/// Where b1 is, as the resolver knows it.
type Place = Arc<Mutex<Option<BookieAddress>>>;

fn at(address: SocketAddr, instance: u64) -> BookieAddress {
    BookieAddress { host_port: address.to_string().into(), instance: Some(Instance(instance)) }
}

/// A transport that finds b1 at `place`.
fn transport(place: &Place, config: TcpConfig) -> TcpBookies {
    let place = place.clone();
    let resolver = move |bookie: &BookieId| place.lock().clone().filter(|_| *bookie == b1());
    TcpBookies::new(Arc::new(resolver), config)
}

impl Tcp {
    async fn new(config: TcpConfig, tls: Option<TlsServer>) -> Self {
        let bookies = Arc::new(MemoryBookies::new([b1()]));
        let server = BookieServer::bind("127.0.0.1:0", b1(), bookies.clone(), tls.clone()).await;
        let server = server.expect("a free port");
        let address = server.address();
        let place = Arc::new(Mutex::new(Some(at(address, 1))));
        let transport = transport(&place, config);
        Self { transport, bookies, server: Some(server), tls, address, place, lives: 1 }
    }

    async fn stop(&mut self) {
        self.server.take().expect("it is up").stop().await;
    }

    async fn start(&mut self) {
        let (bookies, tls) = (self.bookies.clone(), self.tls.clone());
        let server = BookieServer::bind(self.address, b1(), bookies, tls).await;
        self.server = Some(server.expect("the port was ours"));
    }
}

impl Kind for Tcp {
    fn transport(&self) -> &dyn BookieTransport {
        &self.transport
    }

    async fn restart(&mut self) {
        self.stop().await;
        self.bookies.restart(&b1());
        self.start().await;
    }

    async fn wipe(&mut self) {
        self.stop().await;
        self.lives += 1;
        self.bookies.wipe(&b1(), Instance(self.lives));
        *self.place.lock() = Some(at(self.address, self.lives));
        self.start().await;
    }

    async fn keep_only(&mut self, ledger: LedgerId) {
        let mut others = self.bookies.ledgers();
        others.remove(&ledger);
        self.bookies.delete_ledgers(others);
    }
}

#[tokio::test]
async fn a_bookie_that_is_down_is_unreachable_at_once_and_is_found_again() {
    let mut limits = config(Protocol::V3).limits;
    limits.retry_first = Duration::from_millis(1);
    limits.retry_longest = Duration::from_millis(1);
    let mut one = One::new(Tcp::new(TcpConfig { limits, ..TcpConfig::default() }, None).await);
    assert!(one.ask(add(0, AddKind::Normal)).await.is_ok());
    one.kind.stop().await;
    assert_eq!(one.ask(add(1, AddKind::Normal)).await, Err(BookieError::Unreachable));
    one.kind.start().await;
    // The pause after an attempt that failed is short here, but it is there.
    while one.ask(add(1, AddKind::Normal)).await == Err(BookieError::Unreachable) {
        tokio::task::yield_now().await;
    }
    assert_eq!(one.kind.bookies.entries(&b1(), crate::bookie::conformance::LEDGER).len(), 2);
}

#[tokio::test]
async fn a_transport_that_is_dropped_answers_what_is_left() {
    let mut one = One::new(Tcp::new(config(Protocol::V3), None).await);
    assert!(one.ask(add(0, AddKind::Normal)).await.is_ok());
    let wait = RequestBody::WaitLac { beyond: None };
    one.send(1, crate::bookie::conformance::LEDGER, vec![wait]);
    let place = one.kind.place.clone();
    one.kind.transport = transport(&place, config(Protocol::V3));
    assert_eq!(one.answers(1).await, [(1, Err(BookieError::Unreachable))]);
}

#[tokio::test]
async fn a_wait_for_the_lac_is_answered_when_the_bookies_time_for_it_is_over() {
    let mut limits = config(Protocol::V3).limits;
    limits.lac_wait = Duration::from_millis(20);
    let mut one = One::new(Tcp::new(TcpConfig { limits, ..TcpConfig::default() }, None).await);
    assert!(one.ask(add(0, AddKind::Normal)).await.is_ok());
    assert!(one.ask(add(1, AddKind::Normal)).await.is_ok());
    let answer = one.ask(RequestBody::WaitLac { beyond: Some(crate::EntryId(7)) }).await;
    assert_eq!(answer, crate::bookie::conformance::lac(Some(0)));
}

#[tokio::test]
async fn many_entries_of_all_sizes_arrive_whole_and_in_order() {
    for protocol in [Protocol::V2, Protocol::V3] {
        let mut one = One::new(Tcp::new(config(protocol), None).await);
        let ledger = crate::bookie::conformance::LEDGER;
        let (key, kind) = (crate::bookie::conformance::key(""), AddKind::Normal);
        // Around the length from which payloads are shared, and up to the longest that fits.
        let longest = crate::wire::ENTRY_BYTES_MAX - 36;
        let sizes = (0..3000).chain([4095, 4096, 4097, 1 << 20, longest]).chain([0; 2000]);
        let entries: Vec<_> = sizes
            .enumerate()
            .map(|(id, bytes)| {
                let payload: Vec<u8> = (0..bytes).map(|at| (at * 31 + id) as u8).collect();
                let id = crate::EntryId(id as u64);
                crate::Entry::seal(ledger, id, None, 0, payload.into())
            })
            .collect();
        let adds = entries.iter().map(|entry| RequestBody::Add { entry: entry.clone(), key, kind });
        one.send(0, ledger, adds.collect());
        let answers = one.answers(entries.len()).await;
        assert!(answers.iter().map(|(id, _)| *id).eq(0..entries.len() as u64), "in order");
        assert!(one.kind.bookies.entries(&b1(), ledger) == entries, "{protocol:?}");
        for entry in entries.iter().rev().step_by(500).chain([&entries[3004]]) {
            let read = RequestBody::Read { entry: entry.entry(), fence: None };
            let found = one.ask(read).await;
            assert!(found == Ok(crate::ResponseBody::Entry(entry.clone())), "{protocol:?}");
        }
    }
}
