//! A writer by hand: bookies and store that answer when a test says so, in virtual time, and an oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{CloseError, Config, Error, Input, Limits, Machine, Output};
use crate::bookie::rules::Mode;
use crate::entry::{Entry, Password};
use crate::id::{BookieId, EntryId, Instance, LedgerId};
use crate::metadata::{LedgerEnd, LedgerMetadata, RecordAnswer, RecordRequest, Version};
use crate::quorum::QuorumSizes;
use crate::registry::RegisteredBookie;
use crate::time::Time;
use crate::transport::{BookieError, Request, RequestBody, Response, ResponseBody};

pub(super) const LEDGER: LedgerId = LedgerId(7);
pub(super) const LIMITS: Limits = Limits {
    request_timeout: Duration::from_secs(5),
    add_quorum_timeout: Duration::from_secs(20),
    bookie_backlog_bytes_max: 1 << 20,
    ensemble_changes_max: 100,
    explicit_lac_interval: None,
};

/// What a writer said besides requests and questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Confirmed(u64),
    /// Key and members.
    Changed(u64, &'static str),
    Failed(Error),
    Closed(Result<LedgerEnd, CloseError>),
}

/// A writer, what it has sent that nobody has answered, and the world's true state.
pub(super) struct Bench {
    pub(super) machine: Machine,
    pub(super) now: Time,
    /// Requests under way, oldest first.
    pub(super) sent: Vec<(String, Request)>,
    pub(super) question: Option<RecordRequest>,
    said: Vec<Said>,
    /// Copies on the disks of bookies.
    copies: BTreeMap<(String, EntryId), Entry>,
    record: (Arc<LedgerMetadata>, Version),
    /// A write of the record that was answered by silence and may land later.
    limbo: Option<RecordRequest>,
    next: EntryId,
}

pub(super) fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

pub(super) fn members(names: &str) -> Vec<BookieId> {
    names.split_whitespace().map(BookieId::from).collect()
}

/// Bookies by name, `b1` or in another life `b1:2` or read-only `b1!`.
pub(super) fn registered(names: &str) -> Arc<[RegisteredBookie]> {
    let bookie = |name: &str| {
        let mode = if name.ends_with('!') { Mode::ReadOnly } else { Mode::Writable };
        let name = name.trim_end_matches('!');
        let (id, instance) = name.split_once(':').unwrap_or((name, "1"));
        RegisteredBookie { id: id.into(), instance: Instance(instance.parse().unwrap()), mode }
    };
    names.split_whitespace().map(bookie).collect()
}

pub(super) fn end(last: u64) -> LedgerEnd {
    LedgerEnd { last_entry: Some(EntryId(last)), length: (last + 1) * 10 }
}

impl Bench {
    /// A ledger of these sizes on the first of the bookies, all of which are registered.
    pub(super) fn new(sizes: (usize, usize, usize), bookies: &str) -> Self {
        Self::with(sizes, bookies, LIMITS)
    }

    pub(super) fn with(sizes: (usize, usize, usize), bookies: &str, limits: Limits) -> Self {
        let sizes = QuorumSizes::new(sizes.0, sizes.1, sizes.2).unwrap();
        let ensemble = members(bookies)[..sizes.ensemble()].to_vec();
        let instances: Vec<_> = ensemble.iter().map(|id| (id.clone(), Instance(1))).collect();
        let password = Password::default();
        let record = LedgerMetadata::created(sizes, password, ensemble, 1, BTreeMap::new());
        let record = Arc::new(record.unwrap().with_instances(instances));
        let version = Version(1);
        let config = Config { ledger: LEDGER, record: record.clone(), version, limits };
        let mut bench = Self {
            machine: Machine::new(config),
            now: Time::ZERO,
            sent: Vec::new(),
            question: None,
            said: Vec::new(),
            copies: BTreeMap::new(),
            record: (record, version),
            limbo: None,
            next: EntryId::FIRST,
        };
        bench.news(bookies);
        bench
    }

    pub(super) fn feed(&mut self, input: Input<'_>) {
        self.machine.handle(self.now, input);
        self.drain();
    }

    pub(super) fn drain(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Submit { bookie, requests } => {
                    let name = bookie.as_str();
                    self.sent.extend(requests.into_iter().map(|r| (name.to_owned(), r)));
                }
                Output::Record(question) => {
                    assert_eq!(self.question, None, "one question at a time");
                    self.question = Some(question);
                }
                Output::Confirmed { through } => {
                    self.said.push(Said::Confirmed(through.get()));
                }
                Output::EnsembleChanged { key, members } => {
                    let names: Vec<_> = members.iter().map(BookieId::as_str).collect();
                    self.said.push(Said::Changed(key.get(), names.join(" ").leak()));
                }
                Output::Failed(error) => self.said.push(Said::Failed(error)),
                Output::Closed(result) => self.said.push(Said::Closed(result)),
            }
        }
        self.check();
    }

    /// What was said since the last time.
    pub(super) fn said(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.said)
    }

    pub(super) fn said_nothing(&self) -> bool {
        self.said.is_empty()
    }

    /// Appends entries of ten bytes each.
    pub(super) fn append(&mut self, count: usize) {
        let first = self.next;
        self.next = EntryId(first.get() + count as u64);
        let mut payloads = vec![Bytes::from_static(b"0123456789"); count];
        self.feed(Input::Append { first, payloads: &mut payloads });
    }

    /// The bookies that an entry is under way to, in the order it was sent in.
    pub(super) fn under_way(&self, entry: u64) -> Vec<&str> {
        let is_it = |request: &Request| matches!(&request.body, RequestBody::Add { entry: e, .. } if e.entry() == EntryId(entry));
        let to_it = self.sent.iter().filter(|(_, request)| is_it(request));
        to_it.map(|(bookie, _)| &**bookie).collect()
    }

    /// The bookie stores an entry that is under way to it; the answer stays under way.
    pub(super) fn deliver(&mut self, bookie: &str, entry: u64) -> Request {
        let is_it = |(to, request): &(String, Request)| {
            to == bookie
                && matches!(&request.body, RequestBody::Add { entry: e, .. } if e.entry() == EntryId(entry))
        };
        let index = self.sent.iter().position(is_it);
        let (_, request) = self.sent.remove(index.unwrap_or_else(|| {
            panic!("entry {entry} is not under way to {bookie}: {:?}", self.under_way(entry))
        }));
        if let RequestBody::Add { entry: copy, .. } = &request.body {
            self.copies.insert((bookie.into(), copy.entry()), copy.clone());
        }
        request
    }

    pub(super) fn answer(
        &mut self,
        bookie: &str,
        request: &Request,
        result: Result<ResponseBody, BookieError>,
    ) {
        let (id, bookie) = (request.id, bookie.into());
        self.respond(vec![Response { id, bookie, instance: None, result }]);
    }

    pub(super) fn respond(&mut self, mut responses: Vec<Response>) {
        self.feed(Input::Responses(&mut responses));
    }

    /// The bookie stores and acknowledges an entry that is under way to it.
    pub(super) fn ack(&mut self, bookie: &str, entry: u64) {
        let request = self.deliver(bookie, entry);
        self.answer(bookie, &request, Ok(ResponseBody::Added));
    }

    /// Every one of the bookies acknowledges every one of the entries.
    pub(super) fn ack_all(&mut self, bookies: &str, entries: impl IntoIterator<Item = u64>) {
        for entry in entries {
            bookies.split_whitespace().for_each(|bookie| self.ack(bookie, entry));
        }
    }

    /// The bookie refuses an entry that is under way to it, and does not store it.
    pub(super) fn refuse(&mut self, bookie: &str, entry: u64, error: BookieError) {
        let had = self.copies.get(&(bookie.into(), EntryId(entry))).cloned();
        let request = self.deliver(bookie, entry);
        if had.is_none() {
            self.copies.remove(&(bookie.into(), EntryId(entry)));
        }
        self.answer(bookie, &request, Err(error));
    }

    /// The requests besides adds that are under way, taken.
    pub(super) fn asides(&mut self) -> Vec<(String, Request)> {
        let is_aside =
            |(_, request): &mut (String, Request)| !matches!(request.body, RequestBody::Add { .. });
        self.sent.extract_if(.., is_aside).collect()
    }

    pub(super) fn news(&mut self, names: &str) {
        self.feed(Input::Bookies(registered(names)));
    }

    /// Lets time pass, with every wake-up on the way.
    pub(super) fn pass_to(&mut self, time: Time) {
        while let Some(wake_at) = self.machine.wake_at().filter(|at| *at <= time) {
            self.now = self.now.max(wake_at);
            self.feed(Input::Wake);
        }
        self.now = time;
    }

    /// The store answers the question, truly.
    pub(super) fn store(&mut self) {
        let question = self.question.take().expect("the writer asks the store");
        let answer = self.carry_out(&question);
        self.feed(Input::Record(answer));
    }

    /// The store answers every question, until there is none.
    pub(super) fn store_all(&mut self) {
        while self.question.is_some() {
            self.store();
        }
    }

    /// The store carries out the write, and the answer is lost.
    pub(super) fn store_unheard(&mut self) {
        let question = self.question.take().expect("the writer asks the store");
        self.carry_out(&question);
        self.feed(Input::Record(RecordAnswer::Unknown("lost".into())));
    }

    /// The store does not answer.
    pub(super) fn feed_unknown(&mut self) {
        self.question.take().expect("the writer asks the store");
        self.feed(Input::Record(RecordAnswer::Unknown("silence".into())));
    }

    /// The write is on its way when its time is over.
    pub(super) fn store_late(&mut self) {
        self.limbo = self.question.take();
        self.feed(Input::Record(RecordAnswer::Unknown("late".into())));
    }

    /// The write that was on its way arrives.
    pub(super) fn land(&mut self) -> RecordAnswer {
        let write = self.limbo.take().expect("a write is on its way");
        let answer = self.carry_out(&write);
        self.check();
        answer
    }

    fn carry_out(&mut self, question: &RecordRequest) -> RecordAnswer {
        let (record, version) = &mut self.record;
        match question {
            RecordRequest::Read => RecordAnswer::Found(record.clone(), *version),
            RecordRequest::Write { record: new, expected } if expected == version => {
                *record = new.clone();
                version.0 += 1;
                RecordAnswer::Written(*version)
            }
            RecordRequest::Write { .. } => RecordAnswer::Conflict,
        }
    }

    /// Somebody else changes the record.
    pub(super) fn change(&mut self, change: impl FnOnce(&LedgerMetadata) -> LedgerMetadata) {
        let (record, version) = &mut self.record;
        *record = Arc::new(change(record));
        version.0 += 1;
    }

    pub(super) fn stored_record(&self) -> &LedgerMetadata {
        &self.record.0
    }

    pub(super) fn stored_version(&self) -> Version {
        self.record.1
    }

    /// The ensembles in the store, as `0:b1 b2 b3, 5:b1 b4 b3`.
    pub(super) fn ensembles(&self) -> String {
        let names = |members: &[BookieId]| {
            members.iter().map(BookieId::as_str).collect::<Vec<_>>().join(" ")
        };
        let fragments = self.record.0.ensembles().iter();
        fragments.map(|(key, m)| format!("{key}:{}", names(m))).collect::<Vec<_>>().join(", ")
    }

    /// The bookies that have a copy of an entry.
    pub(super) fn holders(&self, entry: u64) -> String {
        let of_entry = self.copies.keys().filter(|(_, id)| *id == EntryId(entry));
        of_entry.map(|(bookie, _)| &**bookie).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn copy(&self, bookie: &str, entry: u64) -> &Entry {
        &self.copies[&(bookie.to_owned(), EntryId(entry))]
    }

    /// Somebody else gives a bookie a copy.
    pub(super) fn store_copy(&mut self, bookie: &str, copy: Entry) {
        self.copies.insert((bookie.into(), copy.entry()), copy);
    }

    /// The disk of a bookie is empty again.
    pub(super) fn wipe(&mut self, bookie: &str) {
        self.copies.retain(|(of, _), _| of != bookie);
    }

    /// At every moment AQ members of the ensemble that the store names for an acknowledged entry hold it; a key is
    /// never beyond LAC + 1; and neighbours among the ensembles differ.
    fn check(&self) {
        let record = &self.record.0;
        let lac = self.machine.last_add_confirmed();
        for id in (0..EntryId::following(lac).get()).map(EntryId) {
            let members = record.ensemble_of(id);
            let holding = record.sizes().write_set(id).filter(|slot| {
                let member = members[slot.index()].as_str().to_owned();
                self.copies.contains_key(&(member, id))
            });
            assert!(holding.count() >= record.sizes().ack(), "entry {id}: {}", self.ensembles());
        }
        assert!(record.last_ensemble().0 <= EntryId::following(lac), "{}", self.ensembles());
        let ensembles: Vec<_> = record.ensembles().values().collect();
        assert!(ensembles.windows(2).all(|pair| pair[0] != pair[1]), "{}", self.ensembles());
        for members in ensembles {
            let distinct: BTreeSet<_> = members.iter().collect();
            assert_eq!(distinct.len(), members.len(), "{}", self.ensembles());
        }
    }
}
