//! What every kind of bookie must do, run on each of them.

use std::sync::Arc;

use bytes::Bytes;

use super::LAC_WAITS_MAX;
use crate::entry::{Entry, MasterKey, Password};
use crate::id::{BookieId, EntryId, Instance, LedgerId};
use crate::mailbox::Mailbox;
use crate::transport::{
    AddKind, BookieError, BookieTransport, CompletionSink, Request, RequestBody, RequestId,
    Response, ResponseBody,
};

pub(crate) const LEDGER: LedgerId = LedgerId(7);
pub(crate) const OTHER: LedgerId = LedgerId(8);

/// Bookies of one kind, of which b1 is there.
pub(crate) trait Kind {
    fn transport(&self) -> &dyn BookieTransport;
    /// Stops b1 and starts it again.
    async fn restart(&mut self);
    /// Starts b1 anew, without what it held.
    async fn wipe(&mut self);
    /// Deletes all ledgers but this one.
    async fn keep_only(&mut self, ledger: LedgerId);
}

/// Runs the suite on what the expression makes.
macro_rules! conformance {
    ($make:expr) => {
        $crate::bookie::conformance::conformance! { $make =>
            an_entry_is_returned_byte_for_byte
            the_first_key_binds_the_ledger
            a_fenced_ledger_takes_only_what_a_recovery_adds
            a_ledger_never_seen_is_fenced_as_well
            a_second_add_is_the_first_again_and_a_recovery_replaces
            denials_tell_ledger_and_entry_apart
            the_lac_is_the_highest_that_was_heard_of
            requests_of_a_batch_are_carried_out_in_order
            a_bookie_that_is_not_there_cannot_be_reached
            a_wait_for_the_lac_ends_when_an_entry_or_a_writer_moves_it_past
            waits_are_bounded_and_the_oldest_makes_room
            a_restart_keeps_life_entries_fences_and_lac_and_loses_waits
            a_wiped_bookie_is_another_life_without_entries_and_fences
            a_deleted_ledger_is_gone_and_the_others_stay
            waits_at_a_deleted_ledger_end
        }
    };
    ($make:expr => $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::bookie::conformance::$name($make).await;
            }
        )*
    };
}
pub(crate) use conformance;

/// One bookie and what it has answered.
pub(crate) struct One<K> {
    pub(crate) kind: K,
    answers: Arc<Mailbox<Response>>,
    /// Answers that came and were not looked at yet.
    unseen: Vec<Response>,
}

pub(crate) type Answer = Result<ResponseBody, BookieError>;

pub(crate) fn b1() -> BookieId {
    BookieId::from("b1")
}

pub(crate) fn key(password: &str) -> MasterKey {
    MasterKey::of(&Password::from(password))
}

pub(crate) fn entry(ledger: LedgerId, id: u64, payload: &'static str) -> Entry {
    let (id, payload) = (EntryId(id), Bytes::from(payload));
    Entry::seal(ledger, id, id.checked_prev(), 7 * (id.get() + 1), payload)
}

pub(crate) fn add(id: u64, kind: AddKind) -> RequestBody {
    RequestBody::Add { entry: entry(LEDGER, id, "payload"), key: key(""), kind }
}

pub(crate) const fn read(id: u64) -> RequestBody {
    RequestBody::Read { entry: EntryId(id), fence: None }
}

pub(crate) fn fence() -> RequestBody {
    RequestBody::ReadLac { fence: Some(key("")) }
}

fn write_lac(lac: u64) -> RequestBody {
    RequestBody::WriteLac { lac: EntryId(lac), key: key("") }
}

fn wait(beyond: Option<u64>) -> RequestBody {
    RequestBody::WaitLac { beyond: beyond.map(EntryId) }
}

pub(crate) fn lac(lac: Option<u64>) -> Answer {
    Ok(ResponseBody::LastAddConfirmed { lac: lac.map(EntryId) })
}

pub(crate) fn found(id: u64) -> Answer {
    Ok(ResponseBody::Entry(entry(LEDGER, id, "payload")))
}

pub(crate) const ADDED: Answer = Ok(ResponseBody::Added);

impl<K: Kind> One<K> {
    pub(crate) fn new(kind: K) -> Self {
        Self { kind, answers: Arc::default(), unseen: Vec::new() }
    }

    /// Sends requests, numbered from `first`, in one batch.
    pub(crate) fn send(&self, first: u64, ledger: LedgerId, bodies: Vec<RequestBody>) {
        let sink: Arc<dyn CompletionSink> = self.answers.clone();
        let ids = (first..).map(RequestId);
        let mut batch: Vec<_> =
            ids.zip(bodies).map(|(id, body)| Request { id, ledger, body }).collect();
        self.kind.transport().submit(&b1(), &mut batch, &sink);
    }

    /// The next answers, once there are so many.
    pub(crate) async fn responses(&mut self, count: usize) -> Vec<Response> {
        while self.unseen.len() < count {
            let mut more = Vec::new();
            self.answers.recv_into(&mut more).await.expect("the mailbox stays open");
            self.unseen.append(&mut more);
        }
        self.unseen.drain(..count).collect()
    }

    pub(crate) async fn answers(&mut self, count: usize) -> Vec<(u64, Answer)> {
        self.responses(count).await.into_iter().map(|one| (one.id.0, one.result)).collect()
    }

    /// Sends one request; the next answer is its.
    pub(crate) async fn ask(&mut self, body: RequestBody) -> Answer {
        self.ask_of(LEDGER, body).await
    }

    pub(crate) async fn ask_of(&mut self, ledger: LedgerId, body: RequestBody) -> Answer {
        self.send(1 << 32, ledger, vec![body]);
        let answers = self.answers(1).await;
        assert_eq!(answers[0].0, 1 << 32, "{answers:?}");
        answers.into_iter().next().expect("there is one").1
    }

    async fn instance(&mut self) -> Option<Instance> {
        self.send(0, LEDGER, vec![read(0)]);
        self.responses(1).await[0].instance
    }
}

pub(crate) async fn an_entry_is_returned_byte_for_byte(kind: impl Kind) {
    let mut one = One::new(kind);
    // What a damaged copy would be: the digest is the reader's to check.
    let mut bytes = entry(LEDGER, 3, "as it came").to_bytes().to_vec();
    *bytes.last_mut().expect("a payload") ^= 1;
    let entry = Entry::from_bytes(bytes.into()).expect("the header is whole");
    let add = RequestBody::Add { entry: entry.clone(), key: key(""), kind: AddKind::Normal };
    assert_eq!(one.ask(add).await, ADDED);
    assert_eq!(one.ask(read(3)).await, Ok(ResponseBody::Entry(entry)));
}

pub(crate) async fn the_first_key_binds_the_ledger(kind: impl Kind) {
    let mut one = One::new(kind);
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED);
    let other = key("another");
    let refused = Err(BookieError::Unauthorized);
    for kind in [AddKind::Normal, AddKind::Recovery] {
        let entry = entry(LEDGER, 1, "payload");
        assert_eq!(one.ask(RequestBody::Add { entry, key: other, kind }).await, refused);
    }
    let written = RequestBody::WriteLac { lac: EntryId(0), key: other };
    assert_eq!(one.ask(written).await, refused);
    assert_eq!(one.ask(RequestBody::ReadLac { fence: Some(other) }).await, refused);
    let fencing = RequestBody::Read { entry: EntryId(0), fence: Some(other) };
    assert_eq!(one.ask(fencing).await, refused);
    assert_eq!(one.ask(add(1, AddKind::Normal)).await, ADDED, "it was not fenced");
}

pub(crate) async fn a_fenced_ledger_takes_only_what_a_recovery_adds(kind: impl Kind) {
    let mut one = One::new(kind);
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED);
    let fencing = RequestBody::Read { entry: EntryId(0), fence: Some(key("")) };
    assert_eq!(one.ask(fencing).await, found(0));
    assert_eq!(one.ask(add(1, AddKind::Normal)).await, Err(BookieError::Fenced));
    assert_eq!(one.ask(read(1)).await, Err(BookieError::NoSuchEntry));
    assert_eq!(one.ask(add(1, AddKind::Recovery)).await, ADDED);
    assert_eq!(one.ask(read(1)).await, found(1));
    assert_eq!(one.ask(write_lac(1)).await, Ok(ResponseBody::LacWritten));
}

pub(crate) async fn a_ledger_never_seen_is_fenced_as_well(kind: impl Kind) {
    let mut one = One::new(kind);
    assert_eq!(one.ask(fence()).await, lac(None));
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, Err(BookieError::Fenced));
    let fencing = RequestBody::Read { entry: EntryId(0), fence: Some(key("")) };
    assert_eq!(one.ask_of(OTHER, fencing).await, Err(BookieError::NoSuchEntry));
    let entry = entry(OTHER, 0, "payload");
    let add = RequestBody::Add { entry, key: key(""), kind: AddKind::Normal };
    assert_eq!(one.ask_of(OTHER, add).await, Err(BookieError::Fenced));
}

pub(crate) async fn a_second_add_is_the_first_again_and_a_recovery_replaces(kind: impl Kind) {
    let mut one = One::new(kind);
    let stored =
        |payload, kind| RequestBody::Add { entry: entry(LEDGER, 0, payload), key: key(""), kind };
    let holds = |payload| Ok(ResponseBody::Entry(entry(LEDGER, 0, payload)));
    assert_eq!(one.ask(stored("first", AddKind::Normal)).await, ADDED);
    assert_eq!(one.ask(stored("second", AddKind::Normal)).await, ADDED);
    assert_eq!(one.ask(read(0)).await, holds("first"));
    assert_eq!(one.ask(stored("recovered", AddKind::Recovery)).await, ADDED);
    assert_eq!(one.ask(read(0)).await, holds("recovered"));
}

pub(crate) async fn denials_tell_ledger_and_entry_apart(kind: impl Kind) {
    let mut one = One::new(kind);
    assert_eq!(one.ask(read(0)).await, Err(BookieError::NoSuchLedger));
    let lac_read = RequestBody::ReadLac { fence: None };
    assert_eq!(one.ask(lac_read.clone()).await, Err(BookieError::NoSuchLedger));
    assert_eq!(one.ask(add(5, AddKind::Normal)).await, ADDED);
    assert_eq!(one.ask(read(4)).await, Err(BookieError::NoSuchEntry));
    assert_eq!(one.ask_of(OTHER, read(5)).await, Err(BookieError::NoSuchLedger));
    assert_eq!(one.ask(lac_read).await, lac(Some(4)));
}

pub(crate) async fn the_lac_is_the_highest_that_was_heard_of(kind: impl Kind) {
    let mut one = One::new(kind);
    let lac_read = || RequestBody::ReadLac { fence: None };
    for (body, heard) in [
        (add(0, AddKind::Normal), None),
        (add(5, AddKind::Normal), Some(4)),
        (add(3, AddKind::Normal), Some(4)),
        (write_lac(5), Some(5)),
        (write_lac(2), Some(5)),
        (add(9, AddKind::Normal), Some(8)),
    ] {
        assert!(one.ask(body.clone()).await.is_ok());
        assert_eq!(one.ask(lac_read()).await, lac(heard), "after {body:?}");
    }
}

pub(crate) async fn requests_of_a_batch_are_carried_out_in_order(kind: impl Kind) {
    let mut one = One::new(kind);
    let last = RequestBody::Read { entry: EntryId(1), fence: Some(key("")) };
    let recovered = add(1, AddKind::Recovery);
    one.send(
        0,
        LEDGER,
        vec![add(0, AddKind::Normal), fence(), add(1, AddKind::Normal), recovered, last],
    );
    let answers =
        vec![(0, ADDED), (1, lac(None)), (2, Err(BookieError::Fenced)), (3, ADDED), (4, found(1))];
    assert_eq!(one.answers(5).await, answers);
}

pub(crate) async fn a_bookie_that_is_not_there_cannot_be_reached(kind: impl Kind) {
    let one = One::new(kind);
    let sink: Arc<dyn CompletionSink> = one.answers.clone();
    let mut batch = vec![Request { id: RequestId(1), ledger: LEDGER, body: read(0) }];
    one.kind.transport().submit(&BookieId::from("b9"), &mut batch, &sink);
    let mut answers = Vec::new();
    one.answers.take_into(&mut answers);
    let result = Err(BookieError::Unreachable);
    let bookie = BookieId::from("b9");
    assert_eq!(answers, [Response { id: RequestId(1), bookie, instance: None, result }]);
}

pub(crate) async fn a_wait_for_the_lac_ends_when_an_entry_or_a_writer_moves_it_past(
    kind: impl Kind,
) {
    let mut one = One::new(kind);
    one.send(1, LEDGER, vec![wait(None), wait(Some(1))]);
    one.send(3, LEDGER, vec![add(0, AddKind::Normal)]);
    assert_eq!(one.answers(1).await, [(3, ADDED)], "entry 0 confirms nothing");
    one.send(4, LEDGER, vec![add(1, AddKind::Normal)]);
    assert_eq!(one.answers(2).await, [(4, ADDED), (1, lac(Some(0)))]);
    one.send(5, LEDGER, vec![write_lac(2)]);
    let written = Ok(ResponseBody::LacWritten);
    assert_eq!(one.answers(2).await, [(5, written), (2, lac(Some(2)))]);
    one.send(6, LEDGER, vec![wait(Some(1))]);
    assert_eq!(one.answers(1).await, [(6, lac(Some(2)))], "it is past already");
}

pub(crate) async fn waits_are_bounded_and_the_oldest_makes_room(kind: impl Kind) {
    let mut one = One::new(kind);
    for id in 0..LAC_WAITS_MAX as u64 {
        one.send(id, LEDGER, vec![wait(None)]);
    }
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED, "nobody was answered before");
    one.send(1000, LEDGER, vec![wait(None)]);
    assert_eq!(one.answers(1).await, [(0, lac(None))]);
}

pub(crate) async fn a_restart_keeps_life_entries_fences_and_lac_and_loses_waits(kind: impl Kind) {
    let mut one = One::new(kind);
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED);
    assert_eq!(one.ask(write_lac(4)).await, Ok(ResponseBody::LacWritten));
    assert_eq!(one.ask(fence()).await, lac(Some(4)));
    let life = one.instance().await;
    assert!(life.is_some());
    one.responses(0).await;
    one.send(2, LEDGER, vec![wait(Some(9))]);
    one.kind.restart().await;
    assert_eq!(one.answers(1).await, [(2, Err(BookieError::Unreachable))]);
    assert_eq!(one.instance().await, life);
    assert_eq!(one.ask(read(0)).await, found(0));
    assert_eq!(one.ask(RequestBody::ReadLac { fence: None }).await, lac(Some(4)));
    assert_eq!(one.ask(add(1, AddKind::Normal)).await, Err(BookieError::Fenced));
}

pub(crate) async fn a_wiped_bookie_is_another_life_without_entries_and_fences(kind: impl Kind) {
    let mut one = One::new(kind);
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED);
    assert_eq!(one.ask(fence()).await, lac(None));
    let life = one.instance().await;
    one.kind.wipe().await;
    let next = one.instance().await;
    assert!(next.is_some() && next != life, "{next:?} after {life:?}");
    assert_eq!(one.ask(read(0)).await, Err(BookieError::NoSuchLedger));
    assert_eq!(one.ask(add(1, AddKind::Normal)).await, ADDED, "the fence is forgotten");
}

pub(crate) async fn a_deleted_ledger_is_gone_and_the_others_stay(kind: impl Kind) {
    let mut one = One::new(kind);
    let in_other = entry(OTHER, 0, "other");
    let add_other =
        RequestBody::Add { entry: in_other.clone(), key: key(""), kind: AddKind::Normal };
    assert_eq!(one.ask_of(OTHER, add_other).await, ADDED);
    for id in 0..10 {
        assert_eq!(one.ask(add(id, AddKind::Normal)).await, ADDED);
    }
    one.kind.keep_only(OTHER).await;
    assert_eq!(one.ask(read(0)).await, Err(BookieError::NoSuchLedger));
    let lac_read = RequestBody::ReadLac { fence: None };
    assert_eq!(one.ask(lac_read).await, Err(BookieError::NoSuchLedger));
    assert_eq!(one.ask_of(OTHER, read(0)).await, Ok(ResponseBody::Entry(in_other)));
}

pub(crate) async fn waits_at_a_deleted_ledger_end(kind: impl Kind) {
    let mut one = One::new(kind);
    one.send(1, LEDGER, vec![add(0, AddKind::Normal), wait(None)]);
    one.send(3, OTHER, vec![wait(None)]);
    assert_eq!(one.answers(1).await, [(1, ADDED)]);
    one.kind.keep_only(OTHER).await;
    assert_eq!(one.answers(1).await, [(2, Err(BookieError::NoSuchLedger))]);
    one.send(4, OTHER, vec![RequestBody::WriteLac { lac: EntryId(0), key: key("") }]);
    assert_eq!(one.answers(2).await, [(4, Ok(ResponseBody::LacWritten)), (3, lac(Some(0)))]);
}
