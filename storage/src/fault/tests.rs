use std::sync::Arc;

use super::*;
use crate::bookie::MemoryBookies;
use crate::entry::{MasterKey, Password};
use crate::id::{BookieId, EntryId, LedgerId};
use crate::mailbox::Mailbox;
use crate::metadata::{Expected, MemoryMetadataStore, MetadataError, MetadataStore};
use crate::transport::{
    BookieError, BookieTransport, CompletionSink, Request, RequestBody, RequestId, Response,
    ResponseBody,
};

fn b1() -> BookieId {
    BookieId::from("b1")
}

struct Way {
    transport: FaultTransport,
    answers: Arc<Mailbox<Response>>,
}

impl Way {
    fn new() -> Self {
        let bookies = Arc::new(MemoryBookies::new([b1()]));
        Self { transport: FaultTransport::new(bookies), answers: Arc::default() }
    }

    fn send(&self, id: u64, body: RequestBody) {
        let sink: Arc<dyn CompletionSink> = self.answers.clone();
        let mut batch = vec![Request { id: RequestId(id), ledger: LedgerId(1), body }];
        self.transport.submit(&b1(), &mut batch, &sink);
        assert!(batch.is_empty());
    }

    fn answered(&self) -> Vec<(u64, Result<ResponseBody, BookieError>)> {
        let mut answers = Vec::new();
        self.answers.take_into(&mut answers);
        answers.into_iter().map(|answer| (answer.id.0, answer.result)).collect()
    }
}

const fn read() -> RequestBody {
    RequestBody::Read { entry: EntryId(0), fence: None }
}

const NO_LEDGER: Result<ResponseBody, BookieError> = Err(BookieError::NoSuchLedger);

#[test]
fn held_requests_arrive_in_any_order_twice_or_never() {
    let way = Way::new();
    way.transport.inject(&b1(), Fault::HoldRequests);
    way.send(0, read());
    way.send(
        1,
        RequestBody::WriteLac { lac: EntryId(4), key: MasterKey::of(&Password::default()) },
    );
    way.send(2, read());
    way.transport.heal(&b1());
    way.send(3, read());
    assert_eq!(way.answered(), [(3, NO_LEDGER)], "nothing that is held has arrived");
    way.transport.settle(&b1(), 2, Delivery::Once);
    assert_eq!(way.answered(), [(2, NO_LEDGER)], "the last one overtakes the others");
    way.transport.settle(&b1(), 0, Delivery::Never);
    assert_eq!(way.answered(), []);
    way.transport.settle(&b1(), 0, Delivery::Twice);
    let written = || Ok(ResponseBody::LacWritten);
    assert_eq!(way.answered(), [(1, written()), (1, written())]);
    assert_eq!(way.transport.held(&b1()), 0);
    way.transport.settle(&b1(), 0, Delivery::Once);
    assert_eq!(way.answered(), [], "there is nothing left to deliver");
}

#[test]
fn a_slow_bookie_has_done_what_it_has_not_answered() {
    let way = Way::new();
    way.transport.inject(&b1(), Fault::HoldResponses);
    way.send(
        0,
        RequestBody::WriteLac { lac: EntryId(4), key: MasterKey::of(&Password::default()) },
    );
    way.transport.heal(&b1());
    way.send(1, RequestBody::ReadLac { fence: None });
    let lac = Ok(ResponseBody::LastAddConfirmed { lac: Some(EntryId(4)) });
    assert_eq!(way.answered(), [(1, lac)]);
    way.transport.release(&b1(), ReleaseOrder::Oldest);
    assert_eq!(way.answered(), [(0, Ok(ResponseBody::LacWritten))]);
}

fn store() -> (Arc<MemoryMetadataStore>, FaultStore) {
    let inner = Arc::new(MemoryMetadataStore::new());
    (inner.clone(), FaultStore::new(inner))
}

fn is_unknown<T>(result: &Result<T, MetadataError>) -> bool {
    matches!(result, Err(MetadataError::Unavailable { .. }))
}

#[tokio::test]
async fn a_lost_reply_hides_a_change_that_was_made() {
    let (inner, store) = store();
    store.inject(StoreFault::LoseReply, 1);
    assert_eq!(store.get("a").await, Ok(None), "reads are not struck");
    assert!(is_unknown(&store.put("a", "1".into(), Expected::Absent).await));
    let there = inner.get("a").await.expect("a store in memory").expect("it was carried out");
    store.put("a", "2".into(), Expected::Version(there.version)).await.expect("one was to fail");
}

#[tokio::test]
async fn a_late_change_lands_when_it_is_told_and_only_on_its_version() {
    let (inner, store) = store();
    let first = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
    store.inject(StoreFault::LandLate, 2);
    for value in ["2", "3"] {
        assert!(is_unknown(&store.put("a", value.into(), Expected::Version(first)).await));
    }
    assert_eq!(store.late(), 2);
    let value = async || inner.get("a").await.expect("in memory").expect("it is there").value;
    assert_eq!(value().await, "1");
    assert_eq!(store.land().await, Some(Ok(())));
    assert_eq!(value().await, "2");
    let conflict = MetadataError::VersionConflict { key: "a".into() };
    assert_eq!(store.land().await, Some(Err(conflict)), "the version has moved on");
    assert_eq!(store.land().await, None);
    assert_eq!(value().await, "2");
}

#[tokio::test]
async fn a_stale_read_sees_the_value_before_the_last_change() {
    let (_, store) = store();
    let first = store.put("a", "1".into(), Expected::Absent).await.expect("absent");
    store.put("a", "2".into(), Expected::Version(first)).await.expect("the version just written");
    store.inject(StoreFault::StaleRead, 1);
    let stale = store.get("a").await.expect("an answer").expect("a value");
    assert_eq!((&stale.value[..], stale.version), (&b"1"[..], first));
    let newest = store.get("a").await.expect("an answer").expect("a value");
    assert_eq!(newest.value, "2");
}

#[tokio::test]
async fn a_lost_session_changes_nothing_until_it_is_healed() {
    let (inner, store) = store();
    store.inject(StoreFault::Unavailable, 100);
    assert!(is_unknown(&store.put("a", "1".into(), Expected::Absent).await));
    assert!(is_unknown(&store.get("a").await));
    assert!(is_unknown(&store.allocate_ledger_id().await));
    assert_eq!(inner.get("a").await, Ok(None));
    store.heal();
    assert_eq!(store.get("a").await, Ok(None));
}

#[tokio::test]
async fn a_held_change_goes_on_when_it_is_released_and_not_when_its_caller_has_left() {
    let (inner, store) = store();
    let store = Arc::new(store);
    store.inject(StoreFault::Hold, 2);
    let put = |key: &'static str| {
        let store = store.clone();
        tokio::spawn(async move { store.put(key, "1".into(), Expected::Absent).await })
    };
    let (stays, leaves) = (put("a"), put("b"));
    while store.held() < 2 {
        tokio::task::yield_now().await;
    }
    leaves.abort();
    while store.held() > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(inner.get("a").await, Ok(None));
    store.release();
    assert!(stays.await.expect("no panic").is_ok());
    assert!(inner.get("a").await.expect("in memory").is_some());
    assert_eq!(inner.get("b").await, Ok(None));
    assert_eq!(store.held(), 0);
}
