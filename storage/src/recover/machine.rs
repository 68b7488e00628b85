//! The recovery of one ledger, without clock, bookies or store.
//!
//! ```text
//!   Marking ──────► Fencing ───────────► Scanning ────────────────► Measuring ────► Closing ──► closed
//!   record is in    LAC reads that       reads that fence, decided  the length, if  record is
//!   recovery        fence, to coverage   in order; write-backs to   nothing was     closed
//!      │                │                AQ, privately              found              │
//!      │                └── too few ──┐      └── doubt, AQ lost ──┐                    │
//!      └── closed already: adopted    └──────► failed, the record stays in recovery    └── closed by another: adopted
//! ```
//!
//! Invariants:
//! 1. The frozen record, as it was when it was in recovery, names the bookies of every read that decides.
//! 2. Entries are decided in order, each once. Nothing behind the first absent one is written back.
//! 3. An entry is absent only by WQ - AQ + 1 distinct bookies that said so after their fence; never by doubt.
//! 4. What is written back are the bytes that were found. It is confirmed in order, at AQ copies in the ensembles that
//!    the closing record will name, and those are seen by nobody before.
//! 5. The record is closed once, from in recovery, behind the last confirmed entry. Whoever closed it first is right.
//! 6. At most one question to the store is outstanding.
//!
//! Any number of recoveries may run at once, and none owes the next anything when it stops half-way.
//!
//! Obligations of the driver: answer every `Record` once; submit every `Submit`; feed all responses, however late; call
//! `handle` with `Wake` at `wake_at`; on `Closed` and `Failed` stop.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::existence::{EntryRead, Existence, Fenced};
use super::fencing::Fencing;
use super::request::{Outbox, Question, Turn, question_and_slot};
use super::write_back::WriteBack;
use super::{ClosedBy, Error, Progress, Recovered};
use crate::config::RecoveryStart;
use crate::entry::{MasterKey, Password};
use crate::id::{BookieId, EntryId, Instance, LedgerId};
use crate::metadata::{
    LedgerEnd, LedgerMetadata, LedgerState, LengthIs, RecordAnswer, RecordRequest, Version,
};
use crate::quorum::{Coverage, LacQuorum, Slot};
use crate::registry::RegisteredBookie;
use crate::time::Time;
use crate::transport::{Request, Response};

/// How often the store may be asked again, after no answer or a conflict, before the caller is.
const RECORD_ATTEMPTS_MAX: u8 = 16;

/// How long the second attempt after a failure waits. Each further one waits twice as long, up to the other.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long after the store had no record it is asked again: long enough for one that lags a little.
const PAUSE_ABSENT: Duration = Duration::from_millis(250);

/// How often the last confirmed entry is looked for, each time by the newest record, before its length is given up.
const LENGTH_ATTEMPTS_MAX: u8 = 3;

/// What a recovery is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The ledger.
    pub ledger: LedgerId,
    /// Its password.
    pub password: Password,
    /// How long a bookie may take to answer one request before it has failed for it.
    pub request_timeout: Duration,
    /// Where it begins to look for entries.
    pub start: RecoveryStart,
    /// How many entries may be looked for or written back at once, at least 1. More: a long tail is recovered faster.
    /// Fewer: less memory, and fewer reads behind the end for nothing.
    pub entries_in_flight_max: usize,
}

/// All that can happen to a recovery.
#[derive(Debug)]
pub enum Input<'a> {
    /// The answer to the last [`Output::Record`].
    Record(RecordAnswer),
    /// Responses of bookies: late, repeated and foreign ones too. The buffer is emptied and keeps its capacity.
    Responses(&'a mut Vec<Response>),
    /// The registered bookies now, those first that should first replace a failed one.
    Registry(Arc<[RegisteredBookie]>),
    /// `wake_at` has come.
    Wake,
}

/// All that a recovery can ask for.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Ask the store this about the ledger's record.
    Record(RecordRequest),
    /// Send these requests.
    Submit {
        /// To this bookie.
        bookie: BookieId,
        /// In this order.
        requests: Vec<Request>,
    },
    /// The ledger is closed, and the recovery has ended.
    Closed(Recovered),
    /// The recovery has ended without.
    Failed(Error),
}

/// The recovery of one ledger: one input, then outputs until there is none, then the next input. It begins with
/// outputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    config: Config,
    key: MasterKey,
    registry: Arc<[RegisteredBookie]>,
    phase: Phase,
    progress: Progress,
    attempts_left: u8,
    absence: Absence,
    question: Option<RecordRequest>,
    /// When to read the record again; none while that is not put off.
    read_at: Option<Time>,
    outbox: Outbox,
    last_word: Option<Result<Recovered, Error>>,
}

/// Whether the store has said that there is no record, since it last had one. It may answer with what was there earlier,
/// also with nothing, and whoever believes it gives up what the ledger holds: it has to say so twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Absence {
    NotSaid,
    SaidOnce,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// With the record that is being written, if the record is not only being read.
    Marking(Option<Arc<LedgerMetadata>>),
    Fencing(Frozen, Fencing),
    Scanning(Scanning),
    Measuring(Measuring),
    Closing(Closing),
    Ended,
}

/// The record in recovery, by which bookies are asked until the end is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Frozen {
    record: Arc<LedgerMetadata>,
    version: Version,
}

/// Finding the end and writing back what is found on the way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scanning {
    frozen: Frozen,
    fencing: Fencing,
    /// The entries that are looked for, from the first undecided one on, without gaps.
    reads: VecDeque<EntryRead>,
    /// The entry to look for next; none once the end is known.
    next: Option<EntryId>,
    writing: WriteBack,
}

/// What the closing record will say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ending {
    last_entry: Option<EntryId>,
    ensembles: BTreeMap<EntryId, Vec<BookieId>>,
    joined: BTreeMap<BookieId, Instance>,
}

/// Looking for the length at the last confirmed entry, by the newest record: it may have been moved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Measuring {
    ending: Ending,
    entry: EntryId,
    attempts_left: u8,
    /// The record and the reads by it; none while the record is asked for.
    reading: Option<(Frozen, EntryRead)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Closing {
    ending: Ending,
    length: u64,
    length_is: LengthIs,
    /// The record that is being written; none while the record is asked for.
    written: Option<Arc<LedgerMetadata>>,
}

impl Machine {
    /// A recovery that first asks for the record. `registry` as in [`Input::Registry`].
    ///
    /// # Panics
    /// If no entry may be in flight.
    #[must_use]
    pub fn new(config: Config, registry: Arc<[RegisteredBookie]>) -> Self {
        assert!(config.entries_in_flight_max > 0, "a recovery looks for one entry at least");
        Self {
            key: MasterKey::of(&config.password),
            config,
            registry,
            phase: Phase::Marking(None),
            progress: Progress::default(),
            attempts_left: RECORD_ATTEMPTS_MAX,
            absence: Absence::NotSaid,
            question: Some(RecordRequest::Read),
            read_at: None,
            outbox: Outbox::new(),
            last_word: None,
        }
    }

    /// Takes one input. Drain [`poll_output`](Self::poll_output) before the next one.
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Record(answer) => self.on_record(now, answer),
            Input::Responses(responses) => {
                for response in responses.drain(..) {
                    self.on_response(now, response);
                }
            }
            Input::Registry(registry) => {
                self.registry = registry;
                self.with_turn(now, |phase, turn| {
                    if let Phase::Scanning(Scanning { frozen, writing, .. }) = phase {
                        writing.repair(turn, &frozen.record);
                    }
                    Ok(())
                });
            }
            Input::Wake => self.on_wake(now),
        }
        self.advance(now);
    }

    /// The next thing to do, none when everything has been said.
    pub fn poll_output(&mut self) -> Option<Output> {
        if let Some((bookie, requests)) = self.outbox.pop_first() {
            return Some(Output::Submit { bookie, requests });
        }
        if let Some(question) = self.question.take() {
            return Some(Output::Record(question));
        }
        self.last_word.take().map(|outcome| match outcome {
            Ok(recovered) => Output::Closed(recovered),
            Err(error) => Output::Failed(error),
        })
    }

    /// When to call `handle` with [`Input::Wake`]; none while neither a bookie nor the next attempt is waited for.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let of_bookies = match &self.phase {
            Phase::Fencing(_, fencing) => Some(fencing.wake_at()),
            Phase::Scanning(scanning) => {
                let reads = scanning.reads.iter().filter_map(EntryRead::wake_at).min();
                reads.into_iter().chain(scanning.writing.wake_at()).min()
            }
            Phase::Measuring(Measuring { reading: Some((_, read)), .. }) => read.wake_at(),
            Phase::Marking(_) | Phase::Measuring(_) | Phase::Closing(_) | Phase::Ended => None,
        };
        of_bookies.into_iter().chain(self.read_at).min()
    }

    /// How far it has come.
    #[must_use]
    pub const fn progress(&self) -> Progress {
        self.progress
    }

    /// Shifts all times so that `now` becomes zero: situations that differ by the time of day alone become equal.
    pub fn renumber(&mut self, now: Time) {
        self.read_at = self.read_at.map(|at| Time::ZERO + at.saturating_since(now));
        match &mut self.phase {
            Phase::Fencing(_, fencing) => fencing.renumber(now),
            Phase::Scanning(Scanning { fencing, reads, writing, .. }) => {
                fencing.renumber(now);
                reads.iter_mut().for_each(|read| read.renumber(now));
                writing.renumber(now);
            }
            Phase::Measuring(Measuring { reading: Some((_, read)), .. }) => read.renumber(now),
            Phase::Marking(_) | Phase::Measuring(_) | Phase::Closing(_) | Phase::Ended => {}
        }
    }

    fn on_record(&mut self, now: Time, answer: RecordAnswer) {
        let ledger = self.config.ledger;
        match answer {
            RecordAnswer::Found(record, version) => {
                self.absence = Absence::NotSaid;
                self.on_found(now, Frozen { record, version });
            }
            RecordAnswer::Written(version) => self.on_written(now, version),
            RecordAnswer::Missing => match self.absence {
                Absence::NotSaid => {
                    self.absence = Absence::SaidOnce;
                    self.ask_again(
                        now,
                        PAUSE_ABSENT,
                        "it is there at one time and not at another".into(),
                    );
                }
                Absence::SaidOnce => self.fail(Error::NoSuchLedger { ledger }),
            },
            RecordAnswer::Unusable(reason) => self.fail(Error::Unusable { ledger, reason }),
            RecordAnswer::Conflict => {
                self.ask_again(now, Duration::ZERO, "others change it all the time".into());
            }
            // A write may have been carried out or not; the next decision starts from what is there.
            RecordAnswer::Unknown(reason) => self.ask_again(now, Duration::ZERO, reason),
        }
    }

    /// Reads the record again: the first time at once, because it was only news that was missed, and then after pauses,
    /// because the store or those who compete for the record need time. Never before `pause_min`.
    fn ask_again(&mut self, now: Time, pause_min: Duration, reason: Arc<str>) {
        if let Phase::Ended = self.phase {
            return;
        }
        match self.attempts_left.checked_sub(1) {
            Some(left) => {
                self.attempts_left = left;
                let pause = match RECORD_ATTEMPTS_MAX - left {
                    1 => Duration::ZERO,
                    attempt => PAUSE_FIRST * 2u32.saturating_pow(u32::from(attempt) - 2),
                };
                match pause.min(PAUSE_MAX).max(pause_min) {
                    Duration::ZERO => self.question = Some(RecordRequest::Read),
                    pause => self.read_at = Some(now + pause),
                }
            }
            None => self.fail(Error::Metadata { ledger: self.config.ledger, reason }),
        }
    }

    fn on_found(&mut self, now: Time, found: Frozen) {
        let ledger = self.config.ledger;
        if let Phase::Marking(_) = self.phase
            && *found.record.password() != self.config.password
        {
            return self.fail(Error::WrongPassword { ledger });
        }
        if let LedgerState::Closed(_) = found.record.state() {
            return self.close(found, ClosedBy::Another);
        }
        let is_open = found.record.state() == LedgerState::Open;
        match &self.phase {
            Phase::Marking(_) if is_open => {
                let marked = found.record.in_recovery().expect("an open ledger can be recovered");
                let record = Arc::new(marked);
                self.phase = Phase::Marking(Some(record.clone()));
                self.question = Some(RecordRequest::Write { record, expected: found.version });
            }
            Phase::Marking(_) => self.begin_fencing(now, found),
            Phase::Measuring(_) | Phase::Closing(_) if is_open => {
                let reason = "it is open again".into();
                self.fail(Error::Tampered { ledger, reason });
            }
            Phase::Measuring(_) => self.with_turn(now, |phase, turn| {
                if let Phase::Measuring(Measuring { entry, reading, .. }) = phase {
                    let question = Question::Length(*entry);
                    let read = EntryRead::send(turn, &found.record, question, *entry, None);
                    *reading = Some((found, read));
                }
                Ok(())
            }),
            Phase::Closing(_) => self.write_end(found),
            // Nothing was asked.
            Phase::Fencing(..) | Phase::Scanning(_) | Phase::Ended => {}
        }
    }

    fn on_written(&mut self, now: Time, version: Version) {
        match &mut self.phase {
            Phase::Marking(written) => {
                if let Some(record) = written.take() {
                    self.begin_fencing(now, Frozen { record, version });
                }
            }
            Phase::Closing(Closing { written, length_is, .. }) => {
                let length = *length_is;
                if let Some(record) = written.take() {
                    self.close(Frozen { record, version }, ClosedBy::ThisRecovery { length });
                }
            }
            Phase::Fencing(..) | Phase::Scanning(_) | Phase::Measuring(_) | Phase::Ended => {}
        }
    }

    fn begin_fencing(&mut self, now: Time, frozen: Frozen) {
        self.with_turn(now, |phase, turn| {
            let fencing = Fencing::send(turn, &frozen.record);
            *phase = Phase::Fencing(frozen, fencing);
            Ok(())
        });
    }

    fn on_response(&mut self, now: Time, response: Response) {
        let (question, slot) = question_and_slot(response.id);
        self.with_turn(now, |phase, turn| match phase {
            Phase::Fencing(frozen, fencing) => match question {
                Question::Fence => fencing.on_response(turn, &frozen.record, slot, response),
                _ => Ok(()),
            },
            Phase::Scanning(scanning) => {
                scanning.on_response(turn, (question, slot), response);
                Ok(())
            }
            Phase::Measuring(Measuring { reading: Some((found, read)), .. }) => {
                if question == Question::Length(read.entry()) {
                    read.on_response(turn, &found.record, slot, response);
                }
                Ok(())
            }
            Phase::Marking(_) | Phase::Measuring(_) | Phase::Closing(_) | Phase::Ended => Ok(()),
        });
    }

    fn on_wake(&mut self, now: Time) {
        if self.read_at.take_if(|at| *at <= now).is_some() {
            self.question = Some(RecordRequest::Read);
        }
        self.with_turn(now, |phase, turn| {
            match phase {
                Phase::Fencing(frozen, fencing) => fencing.on_time(&frozen.record, now),
                Phase::Scanning(Scanning { frozen, reads, writing, .. }) => {
                    reads.iter_mut().for_each(|read| read.on_time(now));
                    writing.on_time(turn, &frozen.record);
                }
                Phase::Measuring(Measuring { reading: Some((_, read)), .. }) => read.on_time(now),
                Phase::Marking(_) | Phase::Measuring(_) | Phase::Closing(_) | Phase::Ended => {}
            }
            Ok(())
        });
    }

    /// Goes from phase to phase as far as what is known allows.
    fn advance(&mut self, now: Time) {
        let ledger = self.config.ledger;
        if let Phase::Fencing(Frozen { record, .. }, fencing) = &self.phase {
            match fencing.coverage(record) {
                Coverage::Reached(proof) => self.begin_scanning(proof),
                Coverage::Possible => {}
                Coverage::Impossible => {
                    let answers = fencing.failures(record);
                    self.fail(Error::Fencing { ledger, answers });
                }
            }
        }
        let entries_max = self.config.entries_in_flight_max;
        self.with_turn(now, |phase, turn| match phase {
            Phase::Scanning(scanning) => scanning.advance(turn, entries_max),
            _ => Ok(()),
        });
        if let Phase::Scanning(scanning) = &self.phase {
            self.progress = scanning.progress();
            if scanning.has_ended() {
                self.end_scanning(now);
            }
        }
        if let Phase::Measuring(_) = self.phase {
            self.measure();
        }
    }

    fn begin_scanning(&mut self, proof: LacQuorum) {
        let phase = mem::replace(&mut self.phase, Phase::Ended);
        let Phase::Fencing(frozen, fencing) = phase else {
            unreachable!("only fencing is covered");
        };
        let lac = match self.config.start {
            RecoveryStart::LastAddConfirmed => fencing.last_add_confirmed(proof, &frozen.record),
            RecoveryStart::LastKey => frozen.record.lac_floor(),
        };
        let writing = WriteBack::new(&frozen.record, lac);
        let (reads, next) = (VecDeque::new(), Some(EntryId::following(lac)));
        self.phase = Phase::Scanning(Scanning { frozen, fencing, reads, next, writing });
    }

    /// The end is known and everything before it is written back.
    fn end_scanning(&mut self, now: Time) {
        self.with_turn(now, |phase, turn| {
            if let Phase::Scanning(Scanning { frozen, fencing, .. }) = phase {
                fencing.fence_the_others(turn, &frozen.record);
            }
            Ok(())
        });
        let phase = mem::replace(&mut self.phase, Phase::Ended);
        let Phase::Scanning(Scanning { frozen, writing, .. }) = phase else {
            unreachable!("only a scan ends so");
        };
        let (last_entry, written) = (writing.confirmed(), writing.written());
        let (ensembles, joined) = writing.into_ensembles();
        let ending = Ending { last_entry, ensembles, joined };
        match (last_entry, written) {
            (_, Some(LedgerEnd { length, .. })) => {
                self.begin_closing(ending, length, LengthIs::Exact, frozen)
            }
            (None, None) => self.begin_closing(ending, 0, LengthIs::Exact, frozen),
            (Some(entry), None) => {
                let attempts_left = LENGTH_ATTEMPTS_MAX - 1;
                self.question = Some(RecordRequest::Read);
                self.phase =
                    Phase::Measuring(Measuring { ending, entry, attempts_left, reading: None });
            }
        }
    }

    /// Takes the length from the header of the last entry, never from a later one: that may not be part of the ledger.
    fn measure(&mut self) {
        let phase = mem::replace(&mut self.phase, Phase::Ended);
        let Phase::Measuring(mut measuring) = phase else {
            unreachable!("only what is measured is");
        };
        let existence =
            measuring.reading.as_ref().map(|(found, read)| read.existence(&found.record));
        match (existence, measuring.reading.take()) {
            (Some(Existence::Found(entry)), Some((found, _))) => {
                self.begin_closing(measuring.ending, entry.length(), LengthIs::Exact, found);
            }
            (Some(Existence::Absent | Existence::Doubtful(_)), Some((found, _))) => {
                match measuring.attempts_left.checked_sub(1) {
                    Some(attempts_left) => {
                        measuring.attempts_left = attempts_left;
                        self.question = Some(RecordRequest::Read);
                        self.phase = Phase::Measuring(measuring);
                    }
                    None => self.begin_closing(measuring.ending, 0, LengthIs::LowerBound, found),
                }
            }
            (_, reading) => self.phase = Phase::Measuring(Measuring { reading, ..measuring }),
        }
    }

    fn begin_closing(&mut self, ending: Ending, length: u64, length_is: LengthIs, found: Frozen) {
        self.phase = Phase::Closing(Closing { ending, length, length_is, written: None });
        self.write_end(found);
    }

    /// Merges the end into the record that was found: others may have moved fragments before the last.
    fn write_end(&mut self, found: Frozen) {
        let Phase::Closing(Closing { ending, length, length_is, written }) = &mut self.phase else {
            unreachable!("only a closing record is written");
        };
        let end = LedgerEnd { last_entry: ending.last_entry, length: *length };
        match found.record.recovered(end, &ending.ensembles) {
            Ok(closed) => {
                let closed = closed.with_instances(ending.joined.clone());
                let record = Arc::new(closed.with_length_is(*length_is));
                *written = Some(record.clone());
                self.question = Some(RecordRequest::Write { record, expected: found.version });
            }
            Err(refused) => {
                let reason = refused.to_string().into();
                self.fail(Error::Tampered { ledger: self.config.ledger, reason });
            }
        }
    }

    fn close(&mut self, Frozen { record, version }: Frozen, closed_by: ClosedBy) {
        self.end(Ok(Recovered { record, version, closed_by }));
    }

    fn fail(&mut self, error: Error) {
        self.end(Err(error));
    }

    /// The first outcome stays.
    fn end(&mut self, outcome: Result<Recovered, Error>) {
        if !matches!(self.phase, Phase::Ended) {
            self.phase = Phase::Ended;
            (self.question, self.read_at) = (None, None);
            self.last_word = Some(outcome);
        }
    }

    /// Runs a step of the present phase with all that steps need.
    fn with_turn(
        &mut self,
        now: Time,
        step: impl FnOnce(&mut Phase, &mut Turn<'_>) -> Result<(), Error>,
    ) {
        let mut turn = Turn {
            now,
            ledger: self.config.ledger,
            key: self.key,
            request_timeout: self.config.request_timeout,
            registry: &self.registry,
            outbox: &mut self.outbox,
        };
        if let Err(error) = step(&mut self.phase, &mut turn) {
            self.fail(error);
        }
    }
}

impl Scanning {
    fn on_response(
        &mut self,
        turn: &mut Turn<'_>,
        (question, slot): (Question, Slot),
        response: Response,
    ) {
        let record = &self.frozen.record;
        match question {
            Question::Fence => {
                // Coverage was reached without it. It only shows who is fenced; a refused key is that bookie's error.
                let _ = self.fencing.on_response(turn, record, slot, response);
            }
            Question::Exists(entry) => {
                if let Some(read) = self.reads.iter_mut().find(|read| read.entry() == entry)
                    && read.on_response(turn, record, slot, response) == Fenced::Yes
                {
                    self.fencing.insert_fenced(slot);
                }
            }
            Question::WriteBack(entry) => {
                self.writing.on_response(turn, record, (entry, slot), &response);
            }
            Question::Length(_) => {}
        }
    }

    /// Decides in order what can be decided, and looks for more entries while there is room.
    fn advance(&mut self, turn: &mut Turn<'_>, entries_max: usize) -> Result<(), Error> {
        let (ledger, record) = (turn.ledger, &self.frozen.record);
        loop {
            self.writing.settle(turn)?;
            while let Some(entry) = self.next
                && self.reads.len() + self.writing.pending() < entries_max
            {
                let (question, fence) = (Question::Exists(entry), Some(turn.key));
                self.reads.push_back(EntryRead::send(turn, record, question, entry, fence));
                self.next = Some(entry.next());
            }
            let Some(oldest) = self.reads.front() else {
                return Ok(());
            };
            match oldest.existence(record) {
                Existence::Found(entry) => {
                    self.reads.pop_front();
                    self.writing.write(turn, entry);
                }
                Existence::Absent => {
                    self.reads.clear();
                    self.next = None;
                }
                Existence::Doubtful(answers) => {
                    return Err(Error::Doubt { ledger, entry: oldest.entry(), answers });
                }
                Existence::Undecided => return Ok(()),
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.next.is_none() && self.writing.pending() == 0
    }

    fn progress(&self) -> Progress {
        Progress {
            last_entry: self.writing.confirmed(),
            entries_written_back: self.writing.entries(),
        }
    }
}

#[cfg(test)]
mod tests;
