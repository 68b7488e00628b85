//! One recovery in virtual time, judged by its outputs.

mod closing;
mod fencing;
mod random;
mod scanning;
mod write_back;

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::request::request_id;
use super::*;
use crate::bookie::rules::Mode;
use crate::entry::Entry;
use crate::quorum::QuorumSizes;
use crate::transport::{AddKind, BookieError, RequestBody, ResponseBody};

const LEDGER: LedgerId = LedgerId(7);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const VERSION: Version = Version(3);

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn password() -> Password {
    Password::from("secret")
}

fn key() -> MasterKey {
    MasterKey::of(&password())
}

fn members(names: &str) -> Vec<BookieId> {
    names.split(' ').map(BookieId::from).collect()
}

fn registered(name: &str, instance: u64) -> RegisteredBookie {
    RegisteredBookie { id: name.into(), instance: Instance(instance), mode: Mode::Writable }
}

/// An open ledger with ensembles from these entries on; sizes by the members of the first, WQ and AQ.
fn open(write: usize, ack: usize, ensembles: &[(u64, &str)]) -> LedgerMetadata {
    let first = members(ensembles[0].1);
    let sizes = QuorumSizes::new(first.len(), write, ack).expect("valid sizes");
    let record = LedgerMetadata::created(sizes, password(), first, 7, BTreeMap::new());
    ensembles[1..].iter().fold(record.expect("valid"), |record, (key, names)| {
        record.ensemble_changed(EntryId(*key), members(names)).expect("keys grow")
    })
}

/// Three bookies, WQ 3, AQ 2, one ensemble.
fn three() -> LedgerMetadata {
    open(3, 2, &[(0, "b1 b2 b3")])
}

/// An entry of ten bytes as the writer sealed it.
fn entry(id: u64) -> Entry {
    let payload = Bytes::from(format!("payload {id:02}"));
    Entry::seal(LEDGER, EntryId(id), EntryId(id).checked_prev(), (id + 1) * 10, payload)
}

type Answer = Result<ResponseBody, BookieError>;

fn found(id: u64) -> Answer {
    Ok(ResponseBody::Entry(entry(id)))
}

fn lac(lac: Option<u64>) -> Answer {
    Ok(ResponseBody::LastAddConfirmed { lac: lac.map(EntryId) })
}

const NO_ENTRY: Answer = Err(BookieError::NoSuchEntry);
const NO_LEDGER: Answer = Err(BookieError::NoSuchLedger);
const ADDED: Answer = Ok(ResponseBody::Added);

fn exists(id: u64) -> Question {
    Question::Exists(EntryId(id))
}

fn write_back(id: u64) -> Question {
    Question::WriteBack(EntryId(id))
}

fn length_of(id: u64) -> Question {
    Question::Length(EntryId(id))
}

/// A machine, what it sent that was not answered, and what else it said.
struct Recovery {
    machine: Machine,
    now: Time,
    sent: Vec<(BookieId, Request)>,
    asked: Option<RecordRequest>,
    outcome: Option<Result<Recovered, Error>>,
}

fn config() -> Config {
    Config {
        ledger: LEDGER,
        password: password(),
        request_timeout: REQUEST_TIMEOUT,
        entries_in_flight_max: 1,
        start: RecoveryStart::LastAddConfirmed,
    }
}

impl Recovery {
    fn new(entries_in_flight_max: usize, registry: &[RegisteredBookie]) -> Self {
        Self::with(Config { entries_in_flight_max, ..config() }, registry)
    }

    fn starting(start: RecoveryStart) -> Self {
        Self::with(Config { start, ..config() }, &[])
    }

    fn with(config: Config, registry: &[RegisteredBookie]) -> Self {
        let mut recovery = Self {
            machine: Machine::new(config, registry.into()),
            now: at(0),
            sent: Vec::new(),
            asked: None,
            outcome: None,
        };
        recovery.drain();
        recovery
    }

    /// Of a ledger that is in recovery, which the fences have just been sent for.
    fn of(record: &LedgerMetadata, registry: &[RegisteredBookie]) -> Self {
        Self::ahead(1, record, registry)
    }

    fn ahead(
        entries_in_flight_max: usize,
        record: &LedgerMetadata,
        registry: &[RegisteredBookie],
    ) -> Self {
        let mut recovery = Self::new(entries_in_flight_max, registry);
        recovery.find(&record.in_recovery().expect("not closed"), VERSION);
        recovery
    }

    /// Of a ledger whose fences have all been answered with this LAC.
    fn fenced(
        record: &LedgerMetadata,
        registry: &[RegisteredBookie],
        answered: Option<u64>,
    ) -> Self {
        let mut recovery = Self::of(record, registry);
        recovery.answer_all(Question::Fence, &lac(answered));
        recovery
    }

    fn handle(&mut self, input: Input<'_>) {
        self.machine.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            assert_eq!(self.outcome, None, "the outcome is the last word, not {output:?}");
            match output {
                Output::Submit { bookie, requests } => {
                    self.sent.extend(requests.into_iter().map(|request| (bookie.clone(), request)));
                }
                Output::Record(question) => {
                    assert_eq!(self.asked, None, "one question at a time");
                    self.asked = Some(question);
                }
                Output::Closed(recovered) => self.outcome = Some(Ok(recovered)),
                Output::Failed(error) => self.outcome = Some(Err(error)),
            }
        }
    }

    fn record(&mut self, answer: RecordAnswer) {
        assert!(self.asked.take().is_some(), "nothing was asked");
        self.handle(Input::Record(answer));
    }

    /// Answers a read of the record.
    fn find(&mut self, record: &LedgerMetadata, version: Version) {
        assert_eq!(self.asked, Some(RecordRequest::Read));
        self.record(RecordAnswer::Found(Arc::new(record.clone()), version));
    }

    /// The record that is to be written.
    fn written(&self) -> LedgerMetadata {
        match &self.asked {
            Some(RecordRequest::Write { record, .. }) => (**record).clone(),
            other => panic!("a record should be written, not {other:?}"),
        }
    }

    /// Lets the closing record be written, and returns where it ends.
    fn closed(&mut self) -> LedgerEnd {
        let record = self.written();
        self.record(RecordAnswer::Written(Version(9)));
        let Some(Ok(recovered)) = &self.outcome else {
            panic!("the ledger is closed, not {:?}", self.outcome);
        };
        assert_eq!(*recovered.record, record);
        assert_eq!(recovered.version, Version(9));
        match record.state() {
            LedgerState::Closed(end) => end,
            other => panic!("the record says {other:?}"),
        }
    }

    fn is_sent(&self, bookie: &str, question: Question) -> bool {
        self.position(bookie, question).is_some()
    }

    /// The names of the bookies that were asked and have not answered, sorted.
    fn asked_for(&self, question: Question) -> Vec<&str> {
        let slots = || (0..8).map(|slot| request_id(question, Slot::new(slot)));
        let mut names: Vec<_> = self
            .sent
            .iter()
            .filter(|(_, request)| slots().any(|id| id == request.id))
            .map(|(bookie, _)| bookie.as_str())
            .collect();
        names.sort_unstable();
        names
    }

    fn position(&self, bookie: &str, question: Question) -> Option<usize> {
        self.sent.iter().position(|(to, request)| {
            to.as_str() == bookie && question_and_slot(request.id).0 == question
        })
    }

    fn request(&self, bookie: &str, question: Question) -> &RequestBody {
        let at = self.position(bookie, question);
        &self.sent[at.unwrap_or_else(|| panic!("{bookie} was not asked {question:?}"))].1.body
    }

    fn answer(&mut self, bookie: &str, question: Question, result: Answer) {
        self.answer_as(None, bookie, question, result);
    }

    fn answer_as(
        &mut self,
        instance: Option<u64>,
        bookie: &str,
        question: Question,
        result: Answer,
    ) {
        let position = self.position(bookie, question);
        let at = position.unwrap_or_else(|| panic!("{bookie} was not asked {question:?}"));
        let (bookie, request) = self.sent.remove(at);
        let instance = instance.map(Instance);
        let mut responses = vec![Response { id: request.id, bookie, instance, result }];
        self.handle(Input::Responses(&mut responses));
    }

    fn answer_all(&mut self, question: Question, result: &Answer) {
        for bookie in self.asked_for(question).into_iter().map(str::to_owned).collect::<Vec<_>>() {
            if self.is_sent(&bookie, question) {
                self.answer(&bookie, question, result.clone());
            }
        }
    }

    /// The time at which the machine wants to be woken comes.
    fn wake(&mut self) {
        self.now = self.machine.wake_at().expect("somebody is waited for");
        self.handle(Input::Wake);
    }

    /// Lets the pause before the next question pass, if there is one.
    fn wait_to_ask(&mut self) {
        if self.asked.is_none() {
            self.wake();
        }
    }

    fn error(&self) -> &Error {
        match &self.outcome {
            Some(Err(error)) => error,
            other => panic!("the recovery fails, not {other:?}"),
        }
    }
}

/// Who is named in an error, sorted.
fn named(answers: &crate::replica::Answers) -> Vec<&str> {
    let mut names: Vec<_> = answers.0.iter().map(|(bookie, _)| bookie.as_str()).collect();
    names.sort_unstable();
    names
}
