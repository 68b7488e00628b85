//! One source, one link, one remote: the shipped machines with a model of everything between them.
//!
//! The cursor, the replicator, the remote's rules and the code that carries outputs out are the
//! ones that ship. Modelled are the log, storage, the mailbox between cursor and replicator, the
//! network and the remote's log. The network may keep sends of older sessions and let them land
//! late, and answers of older sessions too; answers arrive in any order.

mod bounds;
mod outside;
mod owner;
mod ports;
mod put_back;
mod rules;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use georepl_cursor::{Generation, Offset, Position, Progress, ReadId, ReadOutcome};
use georepl_replicator::target::{Answered, Opening, Target, Verdict};
use georepl_replicator::{
    Backoff, Content, Delivered, Incarnation, Input, Limits, OpenError, PassReason, Reason,
    Receipt, Refusal, Revision, SessionId, State, Stop, Watermark, run,
};
use georepl_storage::{EntryId, LedgerId, Time};

pub use bounds::{Action, Bounds, Fault};
use georepl_tests::explore;
pub use outside::Outside;
use outside::Topic;
pub use owner::{Order, Persistence};
use owner::{Owner, Stored};
use ports::{NetworkSide, SourceSide};
use put_back::{SourceCopy, place};
pub use rules::{Rules, mark};

type Cursor = georepl_cursor::Machine<u8>;
type Replicator = georepl_replicator::Machine<u8>;

/// Short delays belong to retries, long ones to timeouts.
const SHORT: Duration = Duration::from_nanos(1);
const LONG: Duration = Duration::from_nanos(1_000);

/// No exploration has more entries.
const ENTRIES_MAX: usize = 4;

/// The size of every entry.
const ENTRY_BYTES: u64 = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Message {
    Open(Incarnation, Revision),
    Send { previous: Option<Position>, position: Position, entry: u8 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Opened(Option<Watermark>),
    OpenFailed(OpenError),
    Receipt(Receipt),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fetch {
    id: ReadId,
    to: Offset,
    bytes: u64,
    hangs: bool,
}

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    bounds: Bounds,
    cursor: Cursor,
    storage: Vec<Fetch>,
    mailbox: VecDeque<(ReadId, ReadOutcome<u8>)>,
    open_reads: BTreeSet<ReadId>,
    replicator: Replicator,
    limits: Limits,
    now: Time,
    /// In the network, first in first out per session.
    sent: Vec<(SessionId, Message)>,
    answers: Vec<(SessionId, Answer)>,
    /// The session whose link is dead without anybody knowing.
    dead: Option<SessionId>,
    target: Target,
    /// Sessions and entries whose appends are in progress at the remote.
    in_progress: VecDeque<(SessionId, Incarnation, u8)>,
    log: Vec<u8>,
    /// Of each entry of the log.
    incarnations: Vec<Incarnation>,
    /// What is durable of the cursor, and what is under way to it.
    stored: Stored,
    orders: u8,
    /// The version of the cursor's record, which every owner raises.
    version: u64,
    copy: SourceCopy,
    /// How often the source was put back.
    put_back: u8,
    /// How often the position of each entry was used for another before.
    reused: [u8; ENTRIES_MAX],
    /// Entries that a change acknowledged, stored or not.
    acknowledged_by_order: u8,
    /// How often each entry was to be sent again on purpose.
    seeks: [u8; ENTRIES_MAX],
    /// Entries that an operator gave up, durably.
    given_up: u8,
    /// What the remote held before it lost some of it.
    backup: Vec<u8>,
    kept_incarnations: Vec<Incarnation>,
    /// Acknowledged entries that it lost.
    lost: u8,
    topic: Topic,
    /// Another owner has taken the cursor over.
    taken: bool,
    /// Entries that an operator acknowledged.
    skipped: u8,
    /// Others moved the cursor, and it was not rewound since.
    moved: bool,
    waits: u8,
    /// The first entry without a receipt, and since when.
    unanswered: Option<(Position, Duration)>,
    filter: usize,
    unreadable: u8,
    faults: u8,
    stops: u8,
    /// Entries that the decision on them passed over: the last one, or for those that a session
    /// found behind the remote's watermark, the one before it.
    passed: u8,
    /// Entries before this one are behind the watermark that the last session opened with.
    decided: u8,
    mark_delete: Offset,
    /// Failures that no rewind has answered yet: one burst, one rewind.
    failed: bool,
    /// What the replicator did in this step.
    effects: Effects,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Effects {
    reads: u8,
    sends: u8,
    rewinds: u8,
    changes: u8,
    broken: Option<String>,
}

pub fn position(entry: u8) -> Position {
    Position::new(LedgerId(7), EntryId(place(entry).into()))
}

fn watermark(entry: u8) -> Watermark {
    Watermark { position: position(entry), checksum: entry.into() }
}

impl World {
    pub fn new(bounds: Bounds) -> Self {
        let retry = Backoff { first: SHORT, longest: SHORT };
        let limits = Limits {
            window_entries: bounds.window,
            window_bytes: bounds.window_bytes,
            read_entries: bounds.read_entries,
            read_bytes: 1 << 20,
            reads_in_flight: bounds.reads_in_flight,
            read_timeout: LONG,
            receipt_timeout: LONG,
            open_timeout: LONG,
            open_backoff: retry,
            refused_backoff: retry,
            read_backoff: retry,
        };
        Self {
            bounds,
            cursor: Cursor::new(Offset::ZERO, Offset::new(bounds.present.into())),
            storage: Vec::new(),
            mailbox: VecDeque::new(),
            open_reads: BTreeSet::new(),
            replicator: Replicator::new(limits.clone(), bounds.poison, 1, &Progress::default()),
            limits,
            now: Time::ZERO,
            sent: Vec::new(),
            answers: Vec::new(),
            dead: None,
            target: Target::new(SessionId::default(), Incarnation(1), Revision(0), None),
            in_progress: VecDeque::new(),
            log: Vec::new(),
            incarnations: Vec::new(),
            stored: Stored::default(),
            orders: bounds.orders,
            version: 1,
            copy: SourceCopy::of_the_start(bounds.present),
            put_back: 0,
            reused: [0; ENTRIES_MAX],
            acknowledged_by_order: 0,
            seeks: [0; ENTRIES_MAX],
            given_up: 0,
            backup: Vec::new(),
            kept_incarnations: Vec::new(),
            lost: 0,
            topic: Topic::Open,
            taken: false,
            skipped: 0,
            moved: false,
            waits: bounds.waits,
            unanswered: None,
            filter: 0,
            unreadable: bounds.unreadable,
            faults: bounds.faults,
            stops: bounds.stops,
            passed: 0,
            decided: 0,
            mark_delete: Offset::ZERO,
            failed: false,
            effects: Effects::default(),
        }
    }

    /// What the remote stored, in its order.
    pub fn log(&self) -> &[u8] {
        &self.log
    }

    /// How many entries the source has.
    pub fn appended(&self) -> u8 {
        u8::try_from(self.cursor.end().get()).expect("few entries")
    }

    /// How many entries each read in storage asks for.
    pub fn asked(&self) -> Vec<u64> {
        self.storage.iter().map(|fetch| fetch.to.since(fetch.id.from)).collect()
    }

    /// How many entries are read and not acknowledged.
    pub fn in_window(&self) -> usize {
        self.replicator.window().map_or(0, |window| window.len())
    }

    /// How many entries are acknowledged.
    pub fn mark_delete(&self) -> u8 {
        u8::try_from(self.mark_delete.get()).expect("few entries")
    }

    fn input(&mut self, input: Input<u8>) {
        // Two ports, one record of what they were asked for.
        let mut sending = Effects::default();
        let mut cursor = SourceSide {
            cursor: &mut self.cursor,
            storage: &mut self.storage,
            mailbox: &mut self.mailbox,
            open_reads: &mut self.open_reads,
            effects: &mut self.effects,
            stored: &mut self.stored,
        };
        let given_up = self.given_up;
        let mut network = NetworkSide { sent: &mut self.sent, given_up, effects: &mut sending };
        run(&mut self.replicator, self.now, input, &mut cursor, &mut network);
        self.effects.sends += sending.sends;
        self.effects.broken = self.effects.broken.take().or(sending.broken);
        self.follow_change();
    }

    fn drain_cursor(&mut self) {
        SourceSide {
            cursor: &mut self.cursor,
            storage: &mut self.storage,
            mailbox: &mut self.mailbox,
            open_reads: &mut self.open_reads,
            effects: &mut self.effects,
            stored: &mut self.stored,
        }
        .drain();
    }

    fn decide(&mut self, entry: u8) -> Delivered<u8> {
        let at = place(entry);
        let passes = self.bounds.filtered[self.filter] >> at & 1 == 1;
        let readable = self.unreadable >> at & 1 == 0;
        // Only the decision that was made last excuses an entry from being published, unless a
        // later entry had been stored when the session opened: then it stays passed over.
        if at >= self.decided {
            self.passed = self.passed & !(1 << at) | u8::from(passes && readable) << at;
        }
        let content = if !readable {
            Content::Unreadable("damaged".into())
        } else if passes {
            Content::Pass(PassReason::NotForThisRemote)
        } else {
            Content::Send(entry)
        };
        Delivered { position: position(entry), bytes: ENTRY_BYTES, content }
    }

    fn take_completion(&mut self) -> Result<(), String> {
        let (id, outcome) = self.mailbox.pop_front().expect("enabled when there is one");
        let outcome = match outcome {
            ReadOutcome::Entries(entries) => {
                ReadOutcome::Entries(entries.into_iter().map(|entry| self.decide(entry)).collect())
            }
            ReadOutcome::Failed(failed) => ReadOutcome::Failed(failed),
            ReadOutcome::Cancelled => ReadOutcome::Cancelled,
            ReadOutcome::Superseded => ReadOutcome::Superseded,
            ReadOutcome::Terminated => ReadOutcome::Terminated,
            ReadOutcome::Closed => ReadOutcome::Closed,
        };
        let stale = !self.replicator.outstanding_reads().any(|read| read == id);
        let before = stale.then(|| self.replicator.clone());
        self.input(Input::ReadCompleted { id, outcome });
        if before.is_some_and(|before| before != self.replicator) {
            return Err("S5: a completion that no longer counts changed the replicator".into());
        }
        Ok(())
    }

    fn arrive(&mut self, index: usize, refuse: bool) {
        let (session, message) = self.sent.remove(index);
        let answer = match message {
            Message::Open(incarnation, revision) => {
                match self.target.open(session, incarnation, revision) {
                    Opening::Answered(held) => Some(Answer::Opened(held)),
                    Opening::Refused(error) => Some(Answer::OpenFailed(error)),
                    Opening::Waits => None,
                }
            }
            // A refusal is decided before the rules: it changes nothing at the remote.
            Message::Send { position, .. } if refuse => {
                let refusal = Refusal { message: "refused".into() };
                Some(Answer::Receipt(Receipt::Refused(position, refusal)))
            }
            Message::Send { previous, position, entry } => {
                match self.target.offer(session, previous, watermark(entry)) {
                    Verdict::Take => {
                        let incarnation = self.target.incarnation();
                        self.in_progress.push_back((session, incarnation, entry));
                        None
                    }
                    Verdict::Duplicate => Some(Answer::Receipt(Receipt::Duplicate(position))),
                    Verdict::Gap => Some(Answer::Receipt(Receipt::Gap(position))),
                    Verdict::InProgress | Verdict::Stale => None,
                }
            }
        };
        self.answers.extend(answer.map(|answer| (session, answer)));
        if !self.bounds.slow_appends {
            while !self.in_progress.is_empty() {
                self.durable();
            }
        }
    }

    fn durable(&mut self) {
        let (session, incarnation, entry) =
            self.in_progress.pop_front().expect("enabled when there is one");
        self.store(incarnation, entry);
        self.answers.push((session, Answer::Receipt(Receipt::Published(position(entry)))));
        let answered = self.target.durable(1);
        self.opened(answered);
    }

    fn append_fails(&mut self, stored: bool) {
        let (_, incarnation, entry) =
            self.in_progress.pop_front().expect("enabled when there is one");
        if stored {
            self.store(incarnation, entry);
        }
        // What follows a failed append in the same ledger fails with it.
        self.reload();
    }

    /// The remote opens its log anew: sessions and appends in progress are gone, and openings that
    /// waited fail.
    fn reload(&mut self) {
        self.in_progress.clear();
        let lost = self.target.open_session();
        self.target.failed();
        let held = self.last_of(self.target.incarnation()).map(watermark);
        let newest = self.target.newest();
        let (incarnation, revision) = (self.target.incarnation(), self.target.revision());
        self.target = Target::new(newest, incarnation, revision, held);
        match lost {
            Some(session) => self.break_link(session),
            None => {
                let error = OpenError::Unreachable("the log failed".into());
                self.answers.push((newest, Answer::OpenFailed(error)));
            }
        }
    }

    fn opened(&mut self, answered: Option<Answered>) {
        if let Some(answered) = answered {
            self.answers.push((answered.session, Answer::Opened(answered.watermark)));
        }
    }

    /// The last entry of the remote's log that it took in this incarnation.
    fn last_of(&self, incarnation: Incarnation) -> Option<u8> {
        let mut stored = self.log.iter().zip(&self.incarnations).rev();
        stored.find(|(_, of)| **of == incarnation).map(|(&entry, _)| entry)
    }

    fn store(&mut self, incarnation: Incarnation, entry: u8) {
        // What the source no longer has, it is not answerable for.
        if entry == self.entry_at(place(entry)) {
            self.check_stored(incarnation, entry);
        }
        self.log.push(entry);
        self.incarnations.push(incarnation);
    }

    fn check_stored(&mut self, incarnation: Incarnation, entry: u8) {
        let at = place(entry);
        let excused = self.passed | self.skipped | self.stored.kept();
        let lower_missing = (0..at).find(|&lower| !self.holds(lower) && excused >> lower & 1 == 0);
        if let Some(lower) = lower_missing {
            self.breaks(format!("S8: {entry} is stored although {lower} is not and has no reason"));
        }
        if self.last_of(incarnation).is_some_and(|last| position(last) >= position(entry)) {
            self.breaks(format!("S6: {entry} is stored after {:?}", self.log));
        }
        let copies = self.log.iter().filter(|&&stored| stored == entry).count();
        if copies > self.seeks[usize::from(at)].into() {
            self.breaks(format!("S7: {entry} is stored again: {:?}", self.log));
        }
    }

    fn breaks(&mut self, what: String) {
        self.effects.broken.get_or_insert(what);
    }

    fn answer(&mut self, index: usize, keep: bool) {
        let (session, answer) =
            if keep { self.answers[index].clone() } else { self.answers.remove(index) };
        match &answer {
            Answer::Opened(held) => {
                self.decided = held.map_or(0, |held| held.position.entry.get() as u8 + 1);
                self.input(self.heard(session, answer));
                self.note_block();
                self.went_on();
            }
            Answer::OpenFailed(OpenError::LaterOwner { newest, .. }) if !self.taken => {
                self.follow(session, *newest);
            }
            Answer::OpenFailed(_) => {
                self.input(self.heard(session, answer));
                self.note_block();
            }
            Answer::Receipt(receipt) => {
                self.failed |= matches!(receipt, Receipt::Gap(_) | Receipt::Refused(..));
                self.input(self.heard(session, answer));
            }
        }
    }

    /// What the replicator is told of an answer.
    fn heard(&self, session: SessionId, answer: Answer) -> Input<u8> {
        match answer {
            Answer::Opened(held) => Input::Opened { session, held: self.compared(held) },
            Answer::OpenFailed(error) => Input::OpenFailed { session, error },
            Answer::Receipt(receipt) => Input::Receipts { session, receipts: vec![receipt] },
        }
    }

    fn break_link(&mut self, session: SessionId) {
        self.dead = Some(session);
        if self.replicator.session() == Some(session) {
            self.failed = true;
            self.input(Input::Lost { session, message: "lost".into() });
        }
    }

    fn strike(&mut self) {
        self.now = self.replicator.wake_at().expect("enabled when there is a timer");
        self.input(Input::Tick);
    }

    /// What of `self.sent` may arrive next: the first of each session.
    fn arriving(&self) -> impl Iterator<Item = usize> + '_ {
        let first = |index: &usize| {
            let session = self.sent[*index].0;
            self.sent[..*index].iter().all(|(earlier, _)| *earlier != session)
        };
        (0..self.sent.len()).filter(first)
    }

    fn may(&self, fault: Fault) -> bool {
        self.faults > 0 && self.bounds.kinds.contains(&fault)
    }

    /// The next timer, if it is a retry.
    fn retry_is_next(&self) -> Option<bool> {
        self.replicator.wake_at().map(|at| at.saturating_since(self.now) <= SHORT)
    }

    /// Nothing is under way that would end by itself.
    fn is_quiet(&self) -> bool {
        self.storage.iter().all(|fetch| fetch.hangs)
            && self.mailbox.is_empty()
            && self.sent.is_empty()
            && !self.answers.iter().any(|(of, _)| self.is_current(*of))
            && self.in_progress.is_empty()
            && self.stored.is_settled()
            && self.retry_is_next() != Some(true)
    }

    /// Whether the replicator hears what is said in this session, and goes by it.
    fn is_current(&self, of: SessionId) -> bool {
        self.replicator.session() == Some(of) && self.dead != Some(of)
    }

    /// Forgets what can never matter again, and names sessions and generations by their rank.
    fn rename(&mut self) {
        let session = self.replicator.session();
        let (dead, late) = (self.dead, self.bounds.late_answers);
        self.answers.retain(|(of, _)| late || session == Some(*of) && dead != Some(*of));
        self.answers.sort_by_cached_key(explore::fingerprint);
        if self.dead != session {
            self.dead = None;
        }
        let mut sessions: BTreeSet<SessionId> = self.sent.iter().map(|(of, _)| *of).collect();
        sessions.extend(self.in_progress.iter().map(|(of, ..)| *of));
        sessions.extend(session);
        sessions.extend(self.target.open_session());
        sessions.insert(self.target.newest());
        // Even numbers for those that occur, odd ones for what lies between.
        let rank = |of: SessionId| {
            let below = sessions.iter().filter(|known| **known < of).count() as u64;
            let counter = 2 * below + 1 + u64::from(sessions.contains(&of));
            SessionId { owner: of.owner, counter }
        };
        let current = self.cursor.generation();
        let mut generations: BTreeSet<Generation> =
            self.replicator.outstanding_reads().map(|id| id.generation).collect();
        generations.extend(self.mailbox.iter().map(|(id, _)| id.generation));
        generations.insert(current);
        // What is not among them, only storage still works on; its answer will be dropped.
        let generation = |of: Generation| {
            let rank = generations.iter().position(|known| *known == of);
            Generation::new(rank.map_or(0, |rank| rank as u64 + 1))
        };
        self.replicator.renumber(self.now, &rank, &generation);
        self.target.renumber(&rank);
        self.sent.iter_mut().for_each(|(of, _)| *of = rank(*of));
        self.answers.iter_mut().for_each(|(of, _)| *of = rank(*of));
        self.in_progress.iter_mut().for_each(|(of, ..)| *of = rank(*of));
        self.dead = self.dead.map(rank);
        self.cursor.renumber(generation(current));
        self.storage
            .iter_mut()
            .for_each(|fetch| fetch.id.generation = generation(fetch.id.generation));
        self.storage.sort_by_key(|fetch| (fetch.id, fetch.to, fetch.bytes, fetch.hangs));
        self.mailbox.iter_mut().for_each(|(id, _)| id.generation = generation(id.generation));
        self.open_reads = std::mem::take(&mut self.open_reads)
            .into_iter()
            .map(|id| ReadId { generation: generation(id.generation), ..id })
            .collect();
        self.now = Time::ZERO;
    }

    fn awaits_operator(&self) -> bool {
        let why = self.replicator.why(self.now, self.cursor.backlog());
        self.is_quiet() && matches!(why.reason, Reason::Unreadable { .. })
    }

    fn is_rewinding(&self) -> bool {
        self.replicator.awaits_rewind()
    }
}

impl explore::World for World {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut on = |enabled: bool, action| {
            if enabled {
                actions.push(action)
            }
        };
        let stopped = self.replicator.state() == State::Stopped;
        on(stopped && !self.has_ended(), Action::Start);
        on(!stopped && self.stops > 0, Action::Stop);
        on(!stopped && self.stops > 0, Action::Settle);
        let more = self.cursor.end().get() < self.bounds.entries.into();
        on(more && self.topic == Topic::Open, Action::Append);
        on(
            self.filter == 0 && self.bounds.filtered[0] != self.bounds.filtered[1],
            Action::ChangeFilter,
        );
        on(self.awaits_operator(), Action::Mend);
        for (index, fetch) in self.storage.iter().enumerate() {
            on(true, Action::Read(index));
            let several = fetch.to.since(fetch.id.from) > 1;
            on(several && self.may(Fault::ShortRead), Action::ShortRead(index));
            on(self.may(Fault::ShortRead), Action::EmptyRead(index));
            on(self.may(Fault::ReadError), Action::ReadError(index));
            on(!fetch.hangs && self.may(Fault::HangingRead), Action::HangRead(index));
            on(fetch.hangs && self.is_quiet(), Action::StorageGivesUp(index));
        }
        on(!self.mailbox.is_empty(), Action::TakeCompletion);
        for index in self.arriving() {
            on(true, Action::Arrive(index));
            let send = matches!(self.sent[index].1, Message::Send { .. });
            on(send && self.may(Fault::Refuse), Action::Refuse(index));
        }
        on(!self.in_progress.is_empty(), Action::Durable);
        let fails = !self.in_progress.is_empty() && self.may(Fault::AppendFailed);
        on(fails, Action::AppendFails { stored: true });
        on(fails, Action::AppendFails { stored: false });
        for (index, (of, _)) in self.answers.iter().enumerate() {
            let heard = self.is_current(*of);
            on(heard, Action::Answer(index));
            on(heard && self.may(Fault::DuplicateReceipt), Action::AnswerTwice(index));
        }
        let linked = self.replicator.session().is_some() && self.dead.is_none();
        on(linked && self.may(Fault::LinkLost), Action::LinkLost);
        on(linked && self.may(Fault::HalfOpen), Action::HalfOpen);
        match self.retry_is_next() {
            Some(true) => on(true, Action::Retry),
            Some(false) => on(self.is_quiet() || self.may(Fault::EarlyTimeout), Action::Timeout),
            None => {}
        }
        actions.extend(self.outside_actions().into_iter().map(Action::Outside));
        actions.extend(self.owner_actions().into_iter().map(Action::Owner));
        actions
    }

    fn is_free(&self, action: Action) -> bool {
        match action {
            Action::Start
            | Action::Mend
            | Action::TakeCompletion
            | Action::Arrive(_)
            | Action::Durable
            | Action::Answer(_)
            | Action::Retry
            | Action::Outside(Outside::Restore)
            | Action::Owner(Owner::Persist | Owner::Fetched) => true,
            Action::Read(index) => !self.storage[index].hangs,
            Action::Timeout | Action::StorageGivesUp(_) => self.is_quiet(),
            _ => false,
        }
    }

    fn step(&mut self, action: Action) -> Result<(), String> {
        let rewinding_before = self.is_rewinding();
        match action {
            Action::Start => {
                self.failed = true;
                self.input(Input::Start);
            }
            Action::Stop => {
                self.stops -= 1;
                self.failed = false;
                self.input(Input::Stop(Stop::Now));
            }
            Action::Settle => {
                self.stops -= 1;
                self.input(Input::Stop(Stop::Settle(self.now + LONG)));
            }
            Action::Append => {
                self.cursor.appended(self.cursor.end().plus(1));
                self.drain_cursor();
            }
            Action::Read(index) => self.storage_answers(index, Some(u64::MAX)),
            Action::ShortRead(index) => self.fault().storage_answers(index, Some(1)),
            Action::EmptyRead(index) => self.fault().storage_answers(index, Some(0)),
            Action::ReadError(index) => self.fault().storage_answers(index, None),
            Action::HangRead(index) => self.fault().storage[index].hangs = true,
            Action::StorageGivesUp(index) => self.storage_answers(index, None),
            Action::TakeCompletion => self.take_completion()?,
            Action::ChangeFilter => self.filter = 1,
            Action::Mend => {
                self.unreadable = 0;
                self.input(Input::Stop(Stop::Now));
            }
            Action::Arrive(index) => self.arrive(index, false),
            Action::Refuse(index) => self.fault().arrive(index, true),
            Action::Durable => self.durable(),
            Action::AppendFails { stored } => self.fault().append_fails(stored),
            Action::Answer(index) => self.answer(index, false),
            Action::AnswerTwice(index) => self.fault().answer(index, true),
            Action::LinkLost => {
                let session = self.replicator.session().expect("enabled with a session");
                self.fault().break_link(session);
            }
            Action::HalfOpen => {
                self.dead = self.replicator.session();
                self.fault();
            }
            Action::Retry => self.strike(),
            Action::Timeout => {
                if !self.is_quiet() {
                    self.fault();
                }
                self.failed = true;
                self.strike();
            }
            Action::Outside(action) => self.outside(action)?,
            Action::Owner(action) => self.own(action),
        }
        let changed = self.effects.changes > 0;
        self.check(rewinding_before)?;
        // A flow that begins anew rewinds once, whatever the one before it did in this step.
        self.failed |= changed;
        self.rename();
        Ok(())
    }

    fn is_goal(&self) -> bool {
        let released = self.replicator.progress().kept.values().any(|kept| kept.is_released());
        let drained = self.replicator.state() == State::Started
            && !released
            && self.cursor.backlog() == 0
            && self.is_quiet()
            && self.cursor.waiting_read().is_some();
        drained || self.has_ended()
    }

    fn marks(&self) -> u32 {
        self.seen()
    }
}

impl World {
    fn fault(&mut self) -> &mut Self {
        self.faults -= 1;
        self
    }

    /// Storage answers with at most so many entries, or fails.
    fn storage_answers(&mut self, index: usize, entries_max: Option<u64>) {
        let Fetch { id, to, bytes, .. } = self.storage.remove(index);
        let answer = match entries_max {
            Some(max) => {
                let max = max.min((bytes / ENTRY_BYTES).max(1));
                let to = to.get().min(id.from.get().saturating_add(max));
                Ok((id.from.get()..to).map(|entry| self.entry_at(entry as u8)).collect())
            }
            None => Err(georepl_cursor::ReadFailed { message: "storage failed".into() }),
        };
        self.cursor.fetched(id, answer);
        self.drain_cursor();
    }
}
