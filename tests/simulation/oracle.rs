//! The truth, kept outside: what was appended, what was acknowledged, what was written into the record, what was read.
//!
//! One ledger per run. An append whose outcome is unknown stays "perhaps": it may turn up behind what was
//! acknowledged, in its place and with its bytes, and nothing else may.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use georepl_storage::{
    BookieId, Entry, EntryId, LedgerEnd, LedgerEntry, LedgerId, LedgerMetadata, LedgerState,
    MemoryBookies, decode_metadata,
};
use parking_lot::Mutex;

use crate::weather::Weather;

pub struct Oracle {
    bookies: Arc<MemoryBookies>,
    weather: Arc<Weather>,
    truth: Mutex<Truth>,
}

#[derive(Default)]
struct Truth {
    ledger: Option<LedgerId>,
    appended: Vec<Bytes>,
    acknowledged: Option<EntryId>,
    /// The writer has said that it takes no more.
    failed: bool,
    record: Option<LedgerMetadata>,
    /// The copies that were good until their bookie lost or damaged them.
    lost: BTreeSet<(BookieId, EntryId)>,
    violation: Option<String>,
    pub counts: Counts,
}

/// What a run amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub appended: u64,
    pub acknowledged: u64,
    pub ensemble_changes: u64,
    pub entries_read: u64,
    pub recoveries: u64,
    pub closed_by_writer: u64,
    pub lengths_too_low: u64,
    pub copies_damaged: u64,
    pub requests_refused: u64,
    pub sessions_lost: u64,
}

impl Oracle {
    pub fn new(bookies: Arc<MemoryBookies>, weather: Arc<Weather>) -> Self {
        Self { bookies, weather, truth: Mutex::default() }
    }

    /// The first rule that was broken, if any was.
    pub fn violation(&self) -> Option<String> {
        self.truth.lock().violation.clone()
    }

    pub fn counts(&self) -> Counts {
        let truth = self.truth.lock();
        let mut counts = truth.counts;
        counts.appended = truth.appended.len() as u64;
        counts.acknowledged = EntryId::following(truth.acknowledged).0;
        (counts.requests_refused, counts.sessions_lost) = self.weather.refused_and_lost();
        counts.ensemble_changes =
            truth.record.as_ref().map_or(0, |record| record.ensembles().len() as u64 - 1);
        counts
    }

    pub fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.truth.lock().counts);
    }

    pub fn created(&self, ledger: LedgerId) {
        self.truth.lock().ledger = Some(ledger);
    }

    /// The ids of the entries of which a bookie has a copy, good or bad.
    pub fn held(&self, bookie: &BookieId) -> Vec<EntryId> {
        let ledger = self.truth.lock().ledger;
        let copies = ledger.map(|ledger| self.bookies.entries(bookie, ledger)).unwrap_or_default();
        copies.iter().map(Entry::entry).collect()
    }

    /// A bookie is about to lose its copies of these entries. Only the good ones are a loss.
    pub fn losing(&self, bookie: &BookieId, entries: &[EntryId]) {
        let mut truth = self.truth.lock();
        let good = entries.iter().filter(|entry| self.holds(&truth, bookie, **entry));
        let good: Vec<_> = good.map(|entry| (bookie.clone(), *entry)).collect();
        truth.lost.extend(good);
    }

    /// The writer took an append.
    pub fn appended(&self, first: EntryId, payloads: &[Bytes]) {
        let mut truth = self.truth.lock();
        let next = truth.appended.len() as u64;
        self.check(&mut truth, first.0 == next, format_args!("S7: append {first} follows {next}"));
        truth.appended.extend_from_slice(payloads);
    }

    /// The writer said that it takes no more.
    pub fn failed(&self) {
        self.truth.lock().failed = true;
    }

    /// The writer acknowledged everything up to an entry.
    pub fn acknowledged(&self, through: EntryId) {
        self.weather.note(format_args!("acknowledged through {through}"));
        let mut truth = self.truth.lock();
        let before = truth.acknowledged;
        let ok = !truth.failed;
        self.check(
            &mut truth,
            ok,
            format_args!("S16: {through} acknowledged after the writer failed"),
        );
        let ok = Some(through) > before && through.0 < truth.appended.len() as u64;
        self.check(&mut truth, ok, format_args!("S7: {through} acknowledged after {before:?}"));
        truth.acknowledged = Some(through);
        let Some(record) = truth.record.clone() else {
            return self.check(&mut truth, false, format_args!("acknowledged without a record"));
        };
        if let LedgerState::Closed(end) = record.state() {
            let ok = Some(through) <= end.last_entry;
            self.check(
                &mut truth,
                ok,
                format_args!("S4: {through} acknowledged, closed at {end:?}"),
            );
        }
        let first = EntryId::following(before);
        for entry in (first.0..=through.0).map(EntryId) {
            self.check_ack_quorum(&mut truth, &record, entry);
        }
    }

    fn holds(&self, truth: &Truth, bookie: &BookieId, entry: EntryId) -> bool {
        let Some(ledger) = truth.ledger else { return false };
        let appended = truth.appended.get(entry.0 as usize);
        let copies = self.bookies.entries(bookie, ledger);
        copies.iter().any(|copy| copy.entry() == entry && Some(copy.payload()) == appended)
    }

    /// S6: AQ members of the write set that the record names hold the entry, or did until they lost their copy.
    fn check_ack_quorum(&self, truth: &mut Truth, record: &LedgerMetadata, entry: EntryId) {
        let (ensemble, sizes) = (record.ensemble_of(entry), record.sizes());
        let members: Vec<_> = sizes.write_set(entry).map(|slot| &ensemble[slot.index()]).collect();
        let held = |member: &BookieId| {
            truth.lost.contains(&(member.clone(), entry)) || self.holds(truth, member, entry)
        };
        let holders = members.iter().filter(|member| held(member)).count();
        let (ok, needed) = (holders >= sizes.ack(), sizes.ack());
        self.check(
            truth,
            ok,
            format_args!("S6: {entry} has {holders} copies of {needed} in {members:?}"),
        );
    }

    /// A record was written into the store.
    pub fn stored(&self, value: &[u8]) {
        let mut truth = self.truth.lock();
        let record = match decode_metadata(value) {
            Ok(record) => record,
            Err(error) => return self.check(&mut truth, false, format_args!("S1: {error}")),
        };
        self.weather.note(format_args!("record: {:?} {:?}", record.state(), record.ensembles()));
        let before = truth.record.take();
        if let Some(before) = &before {
            self.check_transition(&mut truth, before, &record);
        }
        if let LedgerState::Closed(end) = record.state() {
            let ok = end.last_entry >= truth.acknowledged;
            let acknowledged = truth.acknowledged;
            self.check(
                &mut truth,
                ok,
                format_args!("S4: closed at {end:?}, acknowledged {acknowledged:?}"),
            );
            let entries = EntryId::following(end.last_entry).0 as usize;
            let ok = entries <= truth.appended.len();
            self.check(
                &mut truth,
                ok,
                format_args!("S19: closed at {end:?}, beyond what was appended"),
            );
            let before = before.as_ref().map(LedgerMetadata::state);
            self.check_length(&mut truth, before, end);
            for entry in (0..entries as u64).map(EntryId) {
                self.check_ack_quorum(&mut truth, &record, entry);
            }
        }
        truth.record = Some(record);
    }

    /// S2 and S15: states and ensembles only go forward, and a new key is the LAC + 1 of whoever writes it.
    fn check_transition(
        &self,
        truth: &mut Truth,
        before: &LedgerMetadata,
        record: &LedgerMetadata,
    ) {
        let rank = |record: &LedgerMetadata| match record.state() {
            LedgerState::Open => 0,
            LedgerState::InRecovery => 1,
            LedgerState::Closed(_) => 2,
        };
        let ok = rank(before) <= rank(record);
        self.check(truth, ok, format_args!("S2: {:?} after {:?}", record.state(), before.state()));
        if let LedgerState::Closed(_) = before.state() {
            let ok = before.state() == record.state() && before.ensembles() == record.ensembles();
            return self.check(truth, ok, format_args!("S3: the end was changed to {record:?}"));
        }
        let (last_key, _) = before.last_ensemble();
        let ok = before
            .ensembles()
            .range(..last_key)
            .all(|(key, members)| record.ensembles().get(key) == Some(members));
        self.check(
            truth,
            ok,
            format_args!("S2: earlier fragments changed: {:?}", record.ensembles()),
        );
        let bound = match record.state() {
            LedgerState::Closed(end) => EntryId::following(end.last_entry),
            LedgerState::Open | LedgerState::InRecovery => EntryId::following(truth.acknowledged),
        };
        let (key, _) = record.last_ensemble();
        let ok = key <= bound && key >= last_key;
        self.check(truth, ok, format_args!("S15: key {key} above {bound} or below {last_key}"));
        for members in record.ensembles().values() {
            let distinct: BTreeSet<_> = members.iter().collect();
            let ok = distinct.len() == members.len();
            self.check(truth, ok, format_args!("S1: a member twice in {members:?}"));
        }
    }

    /// S20. Only a recovery may close with less, when it could not read the last entry.
    fn check_length(&self, truth: &mut Truth, before: Option<LedgerState>, end: LedgerEnd) {
        let entries = EntryId::following(end.last_entry).0 as usize;
        let length: u64 = truth.appended.iter().take(entries).map(|p| p.len() as u64).sum();
        let exact = end.length == length;
        let is_recovered = before == Some(LedgerState::InRecovery);
        let ok = exact || (is_recovered && end.length < length && !self.weather.is_calm());
        self.check(truth, ok, format_args!("S20: length {length} recorded as {end:?}"));
        truth.counts.lengths_too_low += u64::from(!exact);
    }

    /// S3: somebody was told where the ledger ends.
    pub fn told_end(&self, who: &str, end: LedgerEnd) {
        self.weather.note(format_args!("{who} knows the end: {end:?}"));
        let mut truth = self.truth.lock();
        let state = truth.record.as_ref().map(LedgerMetadata::state);
        let ok = state == Some(LedgerState::Closed(end));
        self.check(
            &mut truth,
            ok,
            format_args!("S3: {who} was told {end:?}, the record has {state:?}"),
        );
    }

    /// S8: a handle showed a LAC.
    pub fn shown_lac(&self, who: &str, lac: Option<EntryId>) {
        let mut truth = self.truth.lock();
        let state = truth.record.as_ref().map(LedgerMetadata::state);
        let ok = lac <= truth.acknowledged
            || matches!(state, Some(LedgerState::Closed(end)) if lac <= end.last_entry);
        let acknowledged = truth.acknowledged;
        let what =
            format_args!("S8: {who} shows LAC {lac:?}, acknowledged {acknowledged:?}, {state:?}");
        self.check(&mut truth, ok, what);
    }

    /// S7 and S9: what was read as confirmed is what was appended.
    pub fn read(&self, who: &str, entries: &[LedgerEntry]) {
        let mut truth = self.truth.lock();
        truth.counts.entries_read += entries.len() as u64;
        for entry in entries {
            let ok = truth.appended.get(entry.id.0 as usize) == Some(&entry.payload);
            let id = entry.id;
            self.check(&mut truth, ok, format_args!("S9: {who} read other bytes in entry {id}"));
        }
    }

    /// Something was not as it must be.
    pub fn broken(&self, what: fmt::Arguments<'_>) {
        self.check(&mut self.truth.lock(), false, what);
    }

    fn check(&self, truth: &mut Truth, holds: bool, what: fmt::Arguments<'_>) {
        if !holds {
            self.weather.note(format_args!("VIOLATION {what}"));
            truth.violation.get_or_insert_with(|| what.to_string());
        }
    }
}
