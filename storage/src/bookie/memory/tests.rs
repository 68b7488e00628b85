use bytes::Bytes;

use super::*;
use crate::entry::Password;
use crate::mailbox::Mailbox;

const LEDGER: LedgerId = LedgerId(7);

struct One {
    bookies: MemoryBookies,
    answers: Arc<Mailbox<Response>>,
}

fn b1() -> BookieId {
    BookieId::from("b1")
}

fn key() -> MasterKey {
    MasterKey::of(&Password::default())
}

fn add(id: u64, kind: AddKind) -> RequestBody {
    let (id, payload) = (EntryId(id), Bytes::from_static(b"payload"));
    let entry = Entry::seal(LEDGER, id, id.checked_prev(), 7 * (id.get() + 1), payload);
    RequestBody::Add { entry, key: key(), kind }
}

const fn lac(lac: Option<u64>) -> Result<ResponseBody, BookieError> {
    let lac = match lac {
        Some(lac) => Some(EntryId(lac)),
        None => None,
    };
    Ok(ResponseBody::LastAddConfirmed { lac })
}

impl One {
    fn new() -> Self {
        Self { bookies: MemoryBookies::new([b1()]), answers: Arc::default() }
    }

    /// Sends a request; what it and earlier ones are answered.
    fn send(&self, id: u64, body: RequestBody) -> Vec<Response> {
        let sink: Arc<dyn CompletionSink> = self.answers.clone();
        let mut batch = vec![Request { id: RequestId(id), ledger: LEDGER, body }];
        self.bookies.submit(&b1(), &mut batch, &sink);
        self.taken()
    }

    fn ask(&self, body: RequestBody) -> Result<ResponseBody, BookieError> {
        let mut answers = self.send(99, body);
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.remove(0).result
    }

    fn taken(&self) -> Vec<Response> {
        let mut answers = Vec::new();
        self.answers.take_into(&mut answers);
        answers
    }
}

fn ids(answers: &[Response]) -> Vec<(u64, Result<ResponseBody, BookieError>)> {
    answers.iter().map(|answer| (answer.id.0, answer.result.clone())).collect()
}

#[test]
fn a_wait_for_the_lac_ends_when_an_entry_or_a_writer_moves_it_past() {
    let one = One::new();
    assert_eq!(one.send(1, RequestBody::WaitLac { beyond: None }), [], "a ledger never seen");
    assert_eq!(one.send(2, RequestBody::WaitLac { beyond: Some(EntryId(1)) }), []);
    let answered = one.send(3, add(0, AddKind::Normal));
    assert_eq!(ids(&answered), [(3, Ok(ResponseBody::Added))], "entry 0 confirms nothing");
    let answered = one.send(4, add(1, AddKind::Normal));
    assert_eq!(ids(&answered), [(4, Ok(ResponseBody::Added)), (1, lac(Some(0)))]);
    let answered = one.send(5, RequestBody::WriteLac { lac: EntryId(2), key: key() });
    assert_eq!(ids(&answered), [(5, Ok(ResponseBody::LacWritten)), (2, lac(Some(2)))]);
    let answered = one.send(6, RequestBody::WaitLac { beyond: Some(EntryId(1)) });
    assert_eq!(ids(&answered), [(6, lac(Some(2)))], "it is past already");
}

#[test]
fn waits_are_bounded_and_the_oldest_makes_room() {
    let one = One::new();
    for id in 0..LAC_WAITS_MAX as u64 {
        assert_eq!(one.send(id, RequestBody::WaitLac { beyond: None }), []);
    }
    let answered = one.send(1000, RequestBody::WaitLac { beyond: None });
    assert_eq!(ids(&answered), [(0, lac(None))]);
}

#[test]
fn a_restart_keeps_life_and_entries_and_loses_waits() {
    let one = One::new();
    one.send(1, add(0, AddKind::Normal));
    one.send(2, RequestBody::WaitLac { beyond: None });
    one.bookies.restart(&b1());
    assert_eq!(ids(&one.taken()), [(2, Err(BookieError::Unreachable))]);
    let read = one.send(3, RequestBody::Read { entry: EntryId(0), fence: None });
    assert!(read[0].result.is_ok());
    assert_eq!(read[0].instance, Some(Instance(1)));
}

#[test]
fn a_bookie_that_is_down_takes_nothing_and_names_no_life() {
    let one = One::new();
    one.bookies.down(&b1());
    let answered = one.send(1, add(0, AddKind::Normal));
    assert_eq!(ids(&answered), [(1, Err(BookieError::Unreachable))]);
    assert_eq!(answered[0].instance, None);
    one.bookies.up(&b1());
    assert_eq!(one.bookies.entries(&b1(), LEDGER), []);
}

#[test]
fn a_wiped_bookie_is_another_life_without_entries_and_fences() {
    let one = One::new();
    one.send(1, add(0, AddKind::Normal));
    one.send(2, RequestBody::ReadLac { fence: Some(key()) });
    assert_eq!(one.ask(add(1, AddKind::Normal)), Err(BookieError::Fenced));
    one.bookies.wipe(&b1(), Instance(2));
    let read = one.send(3, RequestBody::Read { entry: EntryId(0), fence: None });
    assert_eq!(read[0].result, Err(BookieError::NoSuchLedger));
    assert_eq!(read[0].instance, Some(Instance(2)));
    assert_eq!(one.ask(add(1, AddKind::Normal)), Ok(ResponseBody::Added), "the fence is forgotten");
}

#[test]
fn a_ledger_in_limbo_is_told_of_but_never_denied() {
    let one = One::new();
    one.send(1, add(0, AddKind::Normal));
    one.bookies.enter_limbo(&b1(), LEDGER);
    let unknown = || Err(BookieError::UnknownLedgerState);
    let read = |entry| RequestBody::Read { entry, fence: Some(key()) };
    assert!(one.ask(read(EntryId(0))).is_ok(), "what it has it returns");
    assert_eq!(one.ask(read(EntryId(1))), unknown());
    assert_eq!(one.ask(RequestBody::ReadLac { fence: None }), unknown());
    assert_eq!(one.ask(RequestBody::WaitLac { beyond: None }), unknown());
    assert_eq!(one.ask(add(1, AddKind::Normal)), unknown(), "the fence may be lost");
    assert_eq!(one.ask(add(1, AddKind::Recovery)), Ok(ResponseBody::Added));
}
