//! A client of the ledger: a shipped machine, and all that is under way between it and the others.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use georepl_storage::{
    BookieError, EntryId, LedgerMetadata, LedgerState, Password, RecordAnswer, RecordRequest,
    RecoveryStart, RegisteredBookie, Request, RequestBody, Response, Time, Version,
};
use georepl_storage::{recover, write};
use georepl_tests::shared::{Memo, Shared};

use super::bookie::number;
use super::{Bounds, LEDGER};

/// The place of a client.
#[derive(Clone, Debug, Hash)]
pub struct Seat {
    pub client: Client,
    /// What it has sent, in order per bookie.
    pub requests: Vec<(usize, Shared<Request>)>,
    /// What those before it in this place have sent. It still arrives, and nobody hears the answers.
    pub orphans: Vec<(usize, Shared<Request>)>,
    pub answers: Vec<Answer>,
    /// The question about the record that it has asked.
    pub question: Option<Shared<RecordRequest>>,
    pub standing: Standing,
    /// Per entry.
    pub heard: Vec<Heard>,
}

/// An answer that is late.
#[derive(Clone, Debug, Hash)]
pub struct Answer {
    pub bookie: usize,
    pub request: Shared<Request>,
    pub message: Shared<Response>,
    /// Whether the bookie has been away since it gave it.
    pub is_from_before: bool,
}

/// What bookies have answered to a recovery's fencing reads of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    /// These (bits) deny it.
    Denied(u8),
    /// Somebody has shown it.
    Shown,
    /// The ledger is to end before it.
    Cut,
}

#[derive(Clone, Debug, Hash)]
pub enum Client {
    /// A recovery that has not begun, or has failed.
    Absent,
    Running(Shared<Machine>),
    /// The writer was fenced or failed, or the recovery has ended.
    Ended,
}

/// What a writer has learnt that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    Writing,
    /// It closes the record because an add failed.
    Failing,
    /// By a bookie or by the record.
    Fenced,
}

#[derive(Clone, Debug, Hash)]
pub enum Machine {
    Writer(Box<write::Machine>),
    Recovery(Box<recover::Machine>),
}

/// What happens to a client.
#[derive(Clone, Debug, Hash)]
pub enum Input {
    Start,
    Append(u8),
    Response(Shared<Response>),
    Record(RecordAnswer),
    Bookies(Arc<[RegisteredBookie]>),
    Wake,
}

/// What a client wants or says.
#[derive(Clone, Debug)]
pub enum Wish {
    Send(usize, Shared<Request>),
    Ask(Shared<RecordRequest>),
    Confirmed(EntryId),
    Changed,
    Closed(LedgerState),
    WriterFailed(write::Error),
    RecoveryFailed(recover::Error),
}

/// What came of an input.
pub struct Step {
    pub next: Shared<Machine>,
    pub wishes: Vec<Wish>,
}

thread_local! {
    static STEPS: Memo<Step> = Memo::default();
}

impl Seat {
    pub fn new(client: Client, bounds: &Bounds) -> Self {
        Self {
            client,
            requests: Vec::new(),
            orphans: Vec::new(),
            answers: Vec::new(),
            question: None,
            standing: Standing::Writing,
            // One more than there are: the last read finds nothing.
            heard: vec![Heard::Denied(0); usize::from(bounds.entries) + 1],
        }
    }

    pub fn machine(&self) -> Option<&Shared<Machine>> {
        match &self.client {
            Client::Running(machine) => Some(machine),
            Client::Absent | Client::Ended => None,
        }
    }

    /// Nothing is under way that it waits for.
    pub fn is_quiet(&self) -> bool {
        self.question.is_none() && self.requests.is_empty() && self.answers.is_empty()
    }

    /// Notes what a bookie says to a recovery, or what a writer now knows.
    pub fn hear(&mut self, bookie: usize, request: &Request, answer: &Response) {
        if answer.result == Err(BookieError::Fenced) {
            self.standing = Standing::Fenced;
        }
        let RequestBody::Read { entry, fence: Some(_) } = request.body else { return };
        let Some(heard) = self.heard.get_mut(entry.get() as usize) else { return };
        match (answer.result.as_ref(), &mut *heard) {
            (_, Heard::Cut | Heard::Shown) => {}
            (Ok(_), _) => *heard = Heard::Shown,
            (Err(BookieError::NoSuchEntry | BookieError::NoSuchLedger), Heard::Denied(by)) => {
                *by |= 1 << bookie;
            }
            (Err(_), _) => {}
        }
    }
}

/// What may arrive next, and where: the first request to each bookie.
pub fn arriving(
    requests: &[(usize, Shared<Request>)],
) -> impl Iterator<Item = (usize, usize)> + '_ {
    let first = |(index, bookie): &(usize, usize)| {
        !requests[..*index].iter().any(|(earlier, _)| earlier == bookie)
    };
    requests.iter().enumerate().map(|(index, (bookie, _))| (index, *bookie)).filter(first)
}

pub fn payload(entry: u8) -> Bytes {
    vec![entry; usize::from(entry) + 1].into()
}

impl Machine {
    pub fn writer(record: Arc<LedgerMetadata>, version: Version) -> Self {
        let limits = write::Limits {
            request_timeout: Duration::from_secs(5),
            add_quorum_timeout: Duration::from_secs(60),
            bookie_backlog_bytes_max: u64::MAX,
            ensemble_changes_max: 20,
            explicit_lac_interval: None,
        };
        let config = write::Config { ledger: LEDGER, record, version, limits };
        Self::Writer(Box::new(write::Machine::new(config)))
    }

    pub fn recovery(bounds: &Bounds, bookies: Arc<[RegisteredBookie]>) -> Self {
        let config = recover::Config {
            ledger: LEDGER,
            password: Password::from("secret"),
            request_timeout: Duration::from_secs(5),
            entries_in_flight_max: usize::from(bounds.entries),
            start: RecoveryStart::LastAddConfirmed,
        };
        Self::Recovery(Box::new(recover::Machine::new(config, bookies)))
    }

    pub fn wake_at(&self) -> Option<Time> {
        match self {
            Self::Writer(machine) => machine.wake_at(),
            Self::Recovery(machine) => machine.wake_at(),
        }
    }

    fn take(&mut self, input: Input) {
        match self {
            Self::Writer(machine) => take_as_writer(machine, input),
            Self::Recovery(machine) => take_as_recovery(machine, input),
        }
    }

    fn wishes(&mut self) -> Vec<Wish> {
        let mut wishes = Vec::new();
        let send = |wishes: &mut Vec<_>, bookie, requests: Vec<Request>| {
            let bookie = number(&bookie);
            wishes.extend(requests.into_iter().map(|request| Wish::Send(bookie, request.into())));
        };
        match self {
            Self::Writer(machine) => {
                while let Some(output) = machine.poll_output() {
                    match output {
                        write::Output::Submit { bookie, requests } => {
                            send(&mut wishes, bookie, requests);
                        }
                        write::Output::Record(question) => wishes.push(Wish::Ask(question.into())),
                        write::Output::Confirmed { through } => {
                            wishes.push(Wish::Confirmed(through));
                        }
                        write::Output::EnsembleChanged { .. } => wishes.push(Wish::Changed),
                        write::Output::Closed(_) => {}
                        write::Output::Failed(error) => wishes.push(Wish::WriterFailed(error)),
                    }
                }
            }
            Self::Recovery(machine) => {
                while let Some(output) = machine.poll_output() {
                    match output {
                        recover::Output::Submit { bookie, requests } => {
                            send(&mut wishes, bookie, requests);
                        }
                        recover::Output::Record(question) => {
                            wishes.push(Wish::Ask(question.into()));
                        }
                        recover::Output::Closed(recovered) => {
                            wishes.push(Wish::Closed(recovered.record.state()));
                        }
                        recover::Output::Failed(error) => wishes.push(Wish::RecoveryFailed(error)),
                    }
                }
            }
        }
        wishes
    }
}

fn take_as_writer(machine: &mut write::Machine, input: Input) {
    let now = Time::ZERO;
    match input {
        Input::Start => {}
        Input::Append(entry) => {
            let (first, mut payloads) = (EntryId(entry.into()), vec![payload(entry)]);
            machine.handle(now, write::Input::Append { first, payloads: &mut payloads });
        }
        Input::Response(response) => {
            let mut responses = vec![Response::clone(&response)];
            machine.handle(now, write::Input::Responses(&mut responses));
        }
        Input::Record(answer) => machine.handle(now, write::Input::Record(answer)),
        Input::Bookies(bookies) => machine.handle(now, write::Input::Bookies(bookies)),
        Input::Wake => {
            let at = machine.wake_at().expect("only what has a timer is woken");
            machine.handle(at, write::Input::Wake);
            machine.renumber(at);
        }
    }
}

fn take_as_recovery(machine: &mut recover::Machine, input: Input) {
    let now = Time::ZERO;
    match input {
        Input::Start => {}
        Input::Append(_) => unreachable!("recoveries append nothing"),
        Input::Response(response) => {
            let mut responses = vec![Response::clone(&response)];
            machine.handle(now, recover::Input::Responses(&mut responses));
        }
        Input::Record(answer) => machine.handle(now, recover::Input::Record(answer)),
        Input::Bookies(bookies) => machine.handle(now, recover::Input::Registry(bookies)),
        Input::Wake => {
            let at = machine.wake_at().expect("only what has a timer is woken");
            machine.handle(at, recover::Input::Wake);
            machine.renumber(at);
        }
    }
}

/// Lets something happen to the machine, and takes what it wants.
pub fn step(machine: &Shared<Machine>, input: &Shared<Input>) -> Rc<Step> {
    let work_out = || {
        let mut next = Machine::clone(machine);
        next.take(Input::clone(input));
        let wishes = next.wishes();
        Step { next: next.into(), wishes }
    };
    STEPS.with(|memo| memo.recall((machine.fingerprint(), input.fingerprint()), work_out))
}
