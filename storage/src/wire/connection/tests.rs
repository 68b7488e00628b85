use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::entry::{Entry, MasterKey, Password};
use crate::id::{EntryId, LedgerId};
use crate::time::Time;
use crate::transport::{AddKind, BookieError, RequestBody, ResponseBody};
use crate::wire::message::{
    AuthMessage, Operation, Request, RequestFrame, ResponseBody as Body, ResponseFrame,
};
use crate::wire::{AUTH_DISABLED, DecodeError};

const LEDGER: LedgerId = LedgerId(7);

type Answer = Result<ResponseBody, BookieError>;

/// A machine with a clock, and what it has put out, by kind.
struct Bench {
    machine: Machine<u64>,
    now: Time,
    sent: Vec<RequestFrame>,
    answers: Vec<(u64, Answer)>,
    /// Everything else, as text.
    done: Vec<String>,
}

fn limits(protocol: Protocol) -> Limits {
    Limits { protocol, ..Limits::default() }
}

impl Bench {
    fn new(limits: Limits) -> Self {
        let (sent, answers, done) = Default::default();
        Self { machine: Machine::new(limits), now: Time::ZERO, sent, answers, done }
    }

    /// With a connection over which requests can be sent.
    fn ready(limits: Limits) -> Self {
        let mut bench = Self::new(limits);
        bench.ask(1000, read(1000));
        bench.handle(Input::Connected);
        assert_eq!(bench.done, ["Connect"]);
        bench.reply(0);
        (bench.sent, bench.answers, bench.done) = Default::default();
        bench
    }

    fn handle(&mut self, input: Input<u64>) {
        self.machine.handle(self.now, input);
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(_, frame) => self.sent.push(frame),
                Output::Answer { token, result } => self.answers.push((token, result)),
                other => self.done.push(format!("{other:?}")),
            }
        }
    }

    fn ask(&mut self, token: u64, body: RequestBody) {
        self.handle(Input::Submit { token, ledger: LEDGER, body });
    }

    /// Answers the request that was sent at this place.
    fn reply(&mut self, at: usize) {
        let frame = answer_to(&self.sent[at]);
        self.handle(Input::Received(frame));
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.handle(Input::Wake);
    }

    /// The tokens that were answered, and forgets them.
    fn answered(&mut self) -> Vec<(u64, Answer)> {
        std::mem::take(&mut self.answers)
    }
}

fn entry(id: u64, bytes: usize) -> Entry {
    Entry::seal(LEDGER, EntryId(id), None, 0, Bytes::from(vec![0; bytes]))
}

fn key() -> MasterKey {
    MasterKey::of(&Password::default())
}

fn add(id: u64) -> RequestBody {
    RequestBody::Add { entry: entry(id, 10), key: key(), kind: AddKind::Normal }
}

fn add_of(bytes: usize) -> RequestBody {
    RequestBody::Add { entry: entry(0, bytes), key: key(), kind: AddKind::Normal }
}

const fn read(id: u64) -> RequestBody {
    RequestBody::Read { entry: EntryId(id), fence: None }
}

fn fencing_read(id: u64) -> RequestBody {
    RequestBody::Read { entry: EntryId(id), fence: Some(key()) }
}

/// A good answer, or for reads that there is no such entry.
fn answer_to(frame: &RequestFrame) -> ResponseFrame {
    let (status, body) = match &frame.request {
        Request::Add { entry, .. } => {
            (Ok(()), Body::Add { ledger: entry.ledger(), entry: entry.entry() })
        }
        Request::Read { ledger, entry, .. } => (
            Err(BookieError::NoSuchEntry),
            Body::Read {
                ledger: *ledger,
                entry: Some(*entry),
                bytes: None,
                lac: None,
                lac_since_ms: None,
            },
        ),
        Request::ReadLast { ledger, .. } | Request::WaitLac { ledger, .. } => (
            Err(BookieError::NoSuchEntry),
            Body::Read { ledger: *ledger, entry: None, bytes: None, lac: None, lac_since_ms: None },
        ),
        Request::WriteLac { ledger, .. } => (Ok(()), Body::WriteLac { ledger: *ledger }),
        Request::StartTls => (Ok(()), Body::StartTls),
        Request::Auth(message) => (Ok(()), Body::Auth(message.clone())),
        other => panic!("{other:?} is not asked here"),
    };
    let operation = frame.request.operation();
    ResponseFrame { transaction: frame.transaction, operation, status, body }
}

fn auth(plugin: &str, payload: &'static str) -> Input<u64> {
    let message =
        AuthMessage { plugin: plugin.into(), payload: Bytes::from_static(payload.as_bytes()) };
    let (operation, status) = (Operation::Auth, Ok(()));
    Input::Received(ResponseFrame { transaction: 0, operation, status, body: Body::Auth(message) })
}

const ADDED: Answer = Ok(ResponseBody::Added);
const NONE: Answer = Err(BookieError::NoSuchEntry);
const UNREACHABLE: Answer = Err(BookieError::Unreachable);
const TIMEOUT: Answer = Err(BookieError::Timeout);

#[test]
fn the_first_request_makes_the_connection_and_leaves_once_it_is_there() {
    let mut bench = Bench::new(limits(Protocol::V3));
    assert_eq!(bench.machine.wake_at(), None, "an unused one does nothing");
    bench.ask(1, add(0));
    bench.ask(2, add(1));
    assert_eq!((bench.done.len(), bench.sent.len()), (1, 0));
    bench.handle(Input::Connected);
    assert_eq!(bench.done, ["Connect"]);
    let entries: Vec<_> = bench
        .sent
        .iter()
        .map(|frame| match &frame.request {
            Request::Add { entry, .. } => entry.entry().get(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(entries, [0, 1], "in order");
}

#[test]
fn answers_find_their_requests_in_any_order_and_count_once() {
    for protocol in [Protocol::V2, Protocol::V3] {
        let mut bench = Bench::ready(limits(protocol));
        for id in 0..3 {
            bench.ask(id, add(id));
        }
        for at in [2, 0, 0, 1, 2] {
            bench.reply(at);
        }
        assert_eq!(bench.answered(), [(2, ADDED), (0, ADDED), (1, ADDED)], "{protocol:?}");
        assert_eq!(bench.machine.wake_at(), None, "nothing is waited for");
    }
}

#[test]
fn a_lost_connection_answers_everything_once_and_the_next_request_makes_a_new_one() {
    let mut bench = Bench::ready(limits(Protocol::V3));
    for id in 0..3 {
        bench.ask(id, add(id));
    }
    bench.reply(1);
    bench.handle(Input::Lost(Lost::Closed));
    assert_eq!(bench.answered(), [(1, ADDED), (0, UNREACHABLE), (2, UNREACHABLE)]);
    bench.handle(Input::Lost(Lost::Closed));
    bench.reply(0);
    assert_eq!(bench.answered(), []);
    assert_eq!(bench.done, ["Disconnect(Closed)"]);
    bench.ask(3, read(5));
    assert_eq!(bench.done[1..], ["Connect"], "at once: the last one had brought answers");
    bench.handle(Input::Connected);
    bench.reply(3);
    assert_eq!(bench.answered(), [(3, NONE)]);
}

#[test]
fn an_answer_of_the_old_connection_is_none_for_a_request_on_the_new_one() {
    let mut bench = Bench::ready(limits(Protocol::V3));
    bench.ask(1, add(0));
    bench.handle(Input::Lost(Lost::Closed));
    bench.answered();
    bench.ask(2, add(0));
    bench.handle(Input::Connected);
    bench.reply(0);
    assert_eq!(bench.answered(), [], "numbers are not used again");
    bench.reply(1);
    assert_eq!(bench.answered(), [(2, ADDED)]);
}

#[test]
fn attempts_that_bring_nothing_are_followed_by_longer_and_longer_pauses() {
    let mut bench = Bench::new(Limits {
        retry_first: Duration::from_millis(100),
        retry_longest: Duration::from_millis(300),
        ..limits(Protocol::V3)
    });
    // Whether there was no stream at all or the bookie hung up before it answered.
    for (attempt, pause) in [100, 200, 300, 300].into_iter().enumerate() {
        bench.ask(1, read(0));
        if attempt % 2 == 1 {
            bench.handle(Input::Connected);
        }
        bench.handle(Input::Lost(Lost::Closed));
        assert_eq!(bench.answered(), [(1, UNREACHABLE)]);
        bench.done.clear();
        bench.pass(Duration::from_millis(pause - 1));
        bench.ask(2, read(0));
        assert_eq!(bench.answered(), [(2, UNREACHABLE)], "in the pause");
        assert!(bench.done.is_empty() && bench.machine.wake_at().is_none());
        bench.pass(Duration::from_millis(1));
    }
    bench.sent.clear();
    bench.ask(3, read(0));
    bench.handle(Input::Connected);
    bench.reply(0);
    bench.handle(Input::Lost(Lost::Closed));
    bench.ask(4, read(0));
    assert_eq!(bench.done, ["Connect", "Disconnect(Closed)", "Connect"], "no pause any more");
}

#[test]
fn a_connection_that_is_not_made_in_time_is_given_up() {
    let greeting = Limits { security: Security::StartTls, ..limits(Protocol::V3) };
    for (connects, limits) in [(false, limits(Protocol::V3)), (true, greeting)] {
        let mut bench = Bench::new(limits.clone());
        bench.ask(1, read(0));
        if connects {
            bench.handle(Input::Connected);
        }
        assert_eq!(bench.machine.wake_at(), Some(Time::ZERO + limits.connect_timeout));
        bench.pass(limits.connect_timeout);
        assert_eq!(bench.answered(), [(1, UNREACHABLE)]);
        assert_eq!(bench.done, ["Connect", "Disconnect(TooSlow)"]);
        assert_eq!(bench.machine.wake_at(), None);
    }
}

#[test]
fn tls_comes_before_the_proof_and_the_proof_before_requests() {
    for protocol in [Protocol::V2, Protocol::V3] {
        let (security, auth_plugin) = (Security::StartTls, Some("p".into()));
        let mut bench = Bench::new(Limits { security, auth_plugin, ..limits(protocol) });
        bench.ask(1, add(0));
        bench.handle(Input::Connected);
        assert_eq!(bench.sent[0].request, Request::StartTls);
        assert_eq!(bench.machine.answers_in(), Protocol::V3, "START_TLS is v3 always");
        bench.reply(0);
        assert_eq!(bench.machine.answers_in(), protocol);
        bench.handle(Input::Secured);
        bench.handle(Input::Proof(AuthStep::Send(Bytes::from_static(b"I am"))));
        bench.handle(auth("p", "prove it"));
        bench.handle(Input::Proof(AuthStep::SendLast(Bytes::from_static(b"proof"))));
        let said: Vec<_> = bench.sent.iter().map(|frame| frame.request.operation()).collect();
        let all = [Operation::StartTls, Operation::Auth, Operation::Auth, Operation::Add];
        assert_eq!(said, all);
        assert_eq!(
            bench.done,
            ["Connect", "Secure", "Challenge(None)", "Challenge(Some(b\"prove it\"))"]
        );
        // As Java bookies answer the last step of a proof that has succeeded.
        bench.handle(auth(AUTH_DISABLED, ""));
        bench.reply(3);
        assert_eq!(bench.answered(), [(1, ADDED)]);
    }
}

#[test]
fn a_bookie_that_wants_no_proof_gets_none_and_one_that_wants_another_is_given_up() {
    let bench = || {
        let mut bench = Bench::new(Limits { auth_plugin: Some("p".into()), ..Limits::default() });
        bench.ask(1, add(0));
        bench.handle(Input::Connected);
        bench.handle(Input::Proof(AuthStep::Send(Bytes::new())));
        bench
    };
    let mut open = bench();
    open.handle(auth(AUTH_DISABLED, ""));
    assert_eq!(open.sent.len(), 2, "the request has left");
    let mut other = bench();
    other.handle(auth("q", ""));
    assert_eq!(other.answered(), [(1, UNREACHABLE)]);
    assert!(other.done[2].contains("OtherPlugin"), "{:?}", other.done);
    let mut refusing = bench();
    let refusal = ResponseFrame {
        transaction: 1,
        operation: Operation::Auth,
        status: Err(BookieError::Unauthorized),
        body: Body::None,
    };
    refusing.handle(Input::Received(refusal));
    assert_eq!(refusing.answered(), [(1, UNREACHABLE)]);
    assert!(refusing.done[2].contains("Authentication"), "{:?}", refusing.done);
}

#[test]
fn a_bookie_without_tls_is_given_up_and_nothing_is_sent_in_the_clear() {
    let mut bench = Bench::new(Limits { security: Security::StartTls, ..Limits::default() });
    bench.ask(1, add(0));
    bench.handle(Input::Connected);
    let refusal = ResponseFrame {
        transaction: bench.sent[0].transaction,
        operation: Operation::StartTls,
        status: Err(BookieError::BadRequest),
        body: Body::None,
    };
    bench.handle(Input::Received(refusal));
    assert_eq!(bench.answered(), [(1, UNREACHABLE)]);
    assert_eq!(bench.done, ["Connect", "Disconnect(TlsRefused)"]);
    assert_eq!(bench.sent.len(), 1, "only START_TLS was");
}

#[test]
fn an_answer_that_names_something_else_ends_the_connection_and_acknowledges_nothing() {
    let mut bench = Bench::ready(limits(Protocol::V3));
    bench.ask(1, add(0));
    bench.ask(2, add(1));
    let mut swapped = answer_to(&bench.sent[0]);
    swapped.transaction = bench.sent[1].transaction;
    bench.handle(Input::Received(swapped));
    assert_eq!(bench.answered(), [(1, UNREACHABLE), (2, UNREACHABLE)]);
    assert_eq!(bench.done, ["Disconnect(OtherQuestion)"]);
}

#[test]
fn in_v2_two_requests_that_one_answer_could_be_for_are_not_out_together() {
    let mut bench = Bench::ready(limits(Protocol::V2));
    bench.ask(1, read(4));
    bench.ask(2, fencing_read(4));
    bench.ask(3, read(5));
    assert_eq!(bench.sent.len(), 1, "and what comes behind keeps its place");
    bench.reply(0);
    assert_eq!(bench.sent.len(), 3);
    assert_eq!(bench.answered(), [(1, NONE)]);
    bench.reply(1);
    bench.reply(2);
    assert_eq!(bench.answered(), [(2, NONE), (3, NONE)]);
    // An add of the same entry is told apart.
    bench.ask(4, read(6));
    bench.ask(5, add(6));
    assert_eq!(bench.sent.len(), 5);
}

#[test]
fn in_v2_an_overdue_request_ends_the_connection() {
    let limits = limits(Protocol::V2);
    let mut bench = Bench::ready(limits.clone());
    bench.ask(1, add(0));
    bench.now = bench.now + Duration::from_secs(1);
    bench.ask(2, add(1));
    bench.pass(limits.request_timeout - Duration::from_secs(1));
    assert_eq!(bench.answered(), [(1, TIMEOUT), (2, UNREACHABLE)]);
    assert_eq!(bench.done, ["Disconnect(Overdue)"]);
}

#[test]
fn in_v2_what_has_no_words_is_refused_without_a_connection() {
    let mut bench = Bench::new(limits(Protocol::V2));
    bench.ask(1, RequestBody::WaitLac { beyond: None });
    bench.ask(2, RequestBody::WriteLac { lac: EntryId(0), key: key() });
    let refused = Err(BookieError::BadVersion);
    assert_eq!(bench.answered(), [(1, refused.clone()), (2, refused)]);
    assert!(bench.done.is_empty());
}

#[test]
fn in_v3_an_overdue_request_is_answered_alone_while_others_are() {
    let limits = limits(Protocol::V3);
    let mut bench = Bench::ready(limits.clone());
    bench.ask(1, add(0));
    bench.now = bench.now + Duration::from_secs(1);
    bench.ask(2, add(1));
    bench.ask(3, add(2));
    bench.reply(2);
    assert_eq!(bench.machine.wake_at(), Some(Time::ZERO + limits.request_timeout));
    bench.pass(limits.request_timeout - Duration::from_secs(1));
    assert_eq!(bench.answered(), [(3, ADDED), (1, TIMEOUT)]);
    bench.reply(0);
    bench.reply(1);
    assert_eq!(bench.answered(), [(2, ADDED)], "the late answer is nobody's");
    assert!(bench.done.is_empty());
}

#[test]
fn in_v3_a_connection_on_which_nothing_comes_is_given_up() {
    let limits = limits(Protocol::V3);
    let mut bench = Bench::ready(limits.clone());
    bench.now = bench.now + Duration::from_secs(1);
    bench.ask(1, add(0));
    bench.now = bench.now + Duration::from_secs(1);
    bench.ask(2, add(1));
    bench.pass(limits.request_timeout - Duration::from_secs(1));
    assert_eq!(bench.answered(), [(1, TIMEOUT), (2, UNREACHABLE)]);
    assert_eq!(bench.done, ["Disconnect(Silent)"]);
}

#[test]
fn a_wait_for_the_lac_may_take_as_long_as_the_bookie_was_allowed_to() {
    let limits = limits(Protocol::V3);
    let mut bench = Bench::ready(limits.clone());
    bench.ask(1, RequestBody::WaitLac { beyond: None });
    let due = Time::ZERO + limits.request_timeout + limits.lac_wait;
    assert_eq!(bench.machine.wake_at(), Some(due));
    bench.pass(limits.request_timeout);
    assert_eq!(bench.answered(), []);
    bench.pass(limits.lac_wait);
    assert_eq!(bench.answered(), [(1, TIMEOUT)]);
}

#[test]
fn beyond_its_bytes_requests_are_told_to_slow_down_and_answers_make_room() {
    let weight = 2 * (10 + 36 + REQUEST_BYTES);
    let mut bench = Bench::ready(Limits { pending_bytes_max: weight, ..limits(Protocol::V3) });
    for id in 0..3 {
        bench.ask(id, add(id));
    }
    assert_eq!(bench.answered(), [(2, Err(BookieError::TooManyRequests))]);
    bench.reply(0);
    bench.ask(3, add(3));
    assert_eq!(bench.answered(), [(0, ADDED)]);
    // A single one larger than the limit is let through.
    let mut alone = Bench::ready(Limits { pending_bytes_max: 1, ..limits(Protocol::V3) });
    alone.ask(1, add(0));
    assert_eq!(alone.sent.len(), 1);
}

#[test]
fn what_the_socket_does_not_take_waits_and_leaves_in_order() {
    let mut bench = Bench::ready(Limits { unflushed_bytes_max: 300, ..limits(Protocol::V3) });
    bench.handle(Input::Flushed);
    for id in 0..5 {
        bench.ask(id, add(id));
    }
    assert_eq!(bench.sent.len(), 2);
    bench.handle(Input::Flushed);
    assert_eq!(bench.sent.len(), 4);
    bench.handle(Input::Flushed);
    let numbers: Vec<_> = bench.sent.iter().map(|frame| frame.transaction).collect();
    assert!(numbers.is_sorted() && numbers.len() == 5, "{numbers:?}");
}

#[test]
fn an_entry_that_fits_into_no_frame_is_refused_and_the_connection_stays() {
    let mut bench = Bench::ready(limits(Protocol::V3));
    bench.ask(1, add_of(ENTRY_BYTES_MAX - 36));
    bench.ask(2, add_of(ENTRY_BYTES_MAX - 35));
    assert_eq!(bench.answered(), [(2, Err(BookieError::BadRequest))]);
    let mut out = crate::wire::Outgoing::default();
    Protocol::V3.encode_request(&bench.sent[0], &mut out);
    let bytes = bytes::Buf::remaining(&out) - 4;
    assert!(bytes <= FRAME_BYTES_MAX, "{bytes}");
}

/// What can happen to a connection.
#[derive(Clone, Debug)]
enum Event {
    Ask(u8, u8),
    Connected,
    Secured,
    /// A step of the proof: more, the last one, or none.
    Proof(u8),
    /// An answer to one of the requests that were sent, however often.
    Reply(prop::sample::Index),
    /// One that names another entry.
    WrongReply(prop::sample::Index),
    Unknown,
    Flushed,
    Lost,
    Garbage,
    Pass(u16),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0..5_u8, 0..3_u8).prop_map(|(kind, entry)| Event::Ask(kind, entry)),
        3 => Just(Event::Connected),
        2 => Just(Event::Secured),
        3 => (0..3_u8).prop_map(Event::Proof),
        6 => any::<prop::sample::Index>().prop_map(Event::Reply),
        1 => any::<prop::sample::Index>().prop_map(Event::WrongReply),
        1 => Just(Event::Unknown),
        2 => Just(Event::Flushed),
        1 => Just(Event::Lost),
        1 => Just(Event::Garbage),
        3 => (0..12_000_u16).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 0..80)
}

proptest! {
    #[test]
    fn whatever_happens_each_request_is_answered_once_and_an_add_only_by_its_own_answer(
        v2: bool,
        tls: bool,
        proves: bool,
        events in events(),
    ) {
        let protocol = if v2 { Protocol::V2 } else { Protocol::V3 };
        let limits = Limits {
            security: if tls { Security::StartTls } else { Security::Plain },
            auth_plugin: proves.then(|| "p".into()),
            pending_bytes_max: 1500,
            unflushed_bytes_max: 400,
            ..limits(protocol)
        };
        let mut bench = Bench::new(limits);
        let mut asked = 0;
        // Which entries were answered by the bookie as added, ever.
        let mut added = Vec::new();
        for event in events {
            match event {
                Event::Ask(kind, entry) => {
                    let entry = u64::from(entry);
                    bench.ask(asked, match kind {
                        0 => add(entry),
                        1 => read(entry),
                        2 => fencing_read(entry),
                        3 => RequestBody::WaitLac { beyond: None },
                        _ => RequestBody::ReadLac { fence: Some(key()) },
                    });
                    asked += 1;
                }
                Event::Connected => bench.handle(Input::Connected),
                Event::Secured => bench.handle(Input::Secured),
                Event::Proof(step) => bench.handle(Input::Proof(match step {
                    0 => AuthStep::Send(Bytes::new()),
                    1 => AuthStep::SendLast(Bytes::new()),
                    _ => AuthStep::Done,
                })),
                Event::Reply(at) if !bench.sent.is_empty() => {
                    let at = at.index(bench.sent.len());
                    if let Request::Add { entry, .. } = &bench.sent[at].request {
                        added.push(entry.entry());
                    }
                    bench.reply(at);
                }
                Event::WrongReply(at) if !bench.sent.is_empty() => {
                    let mut frame = answer_to(&bench.sent[at.index(bench.sent.len())]);
                    if let Body::Add { entry, .. } = &mut frame.body {
                        *entry = EntryId(99);
                    }
                    bench.handle(Input::Received(frame));
                }
                Event::Reply(_) | Event::WrongReply(_) => {}
                Event::Unknown => {
                    let body = Body::Add { ledger: LEDGER, entry: EntryId(77) };
                    let (operation, status) = (Operation::Add, Ok(()));
                    let transaction = u64::MAX;
                    let frame = ResponseFrame { transaction, operation, status, body };
                    bench.handle(Input::Received(frame));
                }
                Event::Flushed => bench.handle(Input::Flushed),
                Event::Lost => bench.handle(Input::Lost(Lost::Closed)),
                Event::Garbage => {
                    bench.handle(Input::Lost(Lost::Message(DecodeError::Missing("header"))));
                }
                Event::Pass(millis) => bench.pass(Duration::from_millis(millis.into())),
            }
        }
        // In the end time answers what is left.
        bench.pass(Duration::from_secs(60));
        bench.pass(Duration::from_secs(60));
        prop_assert_eq!(bench.machine.wake_at(), None);
        // Nothing is sent in the clear when TLS was asked for.
        if tls && let Some(first) = bench.sent.first() {
            prop_assert_eq!(&first.request, &Request::StartTls);
            let later = bench.sent.iter().any(|frame| frame.request != Request::StartTls);
            prop_assert!(!later || bench.done.iter().any(|done| done == "Secure"));
        }
        let mut tokens: Vec<_> = bench.answers.iter().map(|(token, _)| *token).collect();
        tokens.sort_unstable();
        prop_assert_eq!(tokens, (0..asked).collect::<Vec<_>>());
        let acks = bench.answers.iter().filter(|(_, answer)| *answer == ADDED).count();
        prop_assert!(acks <= added.len());
    }
}
