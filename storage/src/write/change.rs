//! How a writer changes its ensemble.
//!
//! *Freeze* (nothing is confirmed, and the key is LAC + 1), *compare-and-set*, *switch* all pending entries to what the
//! record now names, *send again*, *unfreeze*. Failures that come meanwhile are dealt with before the end of the
//! freeze. Every step decides from the newest record: changes of others to earlier fragments stay, and an own write
//! whose answer was lost is there or not.

use super::adds::Progress;
use super::bookies::Standing;
use super::machine::{Machine, Repair, State, Word, Work};
use super::record::Learnt;
use super::{CloseError, ClosedElsewhere, Error, Failure};
use crate::id::EntryId;
use crate::metadata::{LedgerEnd, LedgerState, RecordAnswer};
use crate::time::Time;

impl Machine {
    /// Does the next thing that needs the record or the ensemble, if it can be done now.
    pub(super) fn advance(&mut self, now: Time) -> Progress {
        if !self.record.is_settled() {
            return self.give_up_closing();
        }
        match (self.work, &self.state) {
            (Work::Changing(key), _) => self.continue_change(now, key),
            (Work::Closing, _) => self.continue_close(),
            (Work::Rest, State::Failing(_)) => self.begin_close(),
            (Work::Rest, State::Closing) if self.adds.oldest_unconfirmed().is_none() => {
                self.begin_close()
            }
            (Work::Rest, State::Open | State::Closing) if self.repair == Repair::Due => {
                self.look_at_ensemble(now)
            }
            (Work::Rest, _) => Progress::None,
        }
    }

    pub(super) fn on_record(&mut self, now: Time, answer: RecordAnswer) {
        let reason = match self.record.on_answer(now, answer) {
            Learnt::Settled | Learnt::Unsettled => return,
            Learnt::Missing => "it was deleted".into(),
            Learnt::Unusable(reason) => reason,
        };
        let ledger = self.ledger;
        let closed = Err(CloseError::Record { ledger, reason: reason.clone() });
        match self.work {
            Work::Closing => self.finish_close(closed),
            Work::Rest | Work::Changing(_) => self.end(Error::Record { ledger, reason }, closed),
        }
    }

    /// Starts a change if a lost member can be replaced, and goes on without it, or ends, if not.
    fn look_at_ensemble(&mut self, now: Time) -> Progress {
        self.repair = Repair::NotDue;
        if self.adds.is_exhausted() {
            self.fail(Error::TooManyChanges {
                ledger: self.ledger,
                changes: self.ensemble_changes,
            });
            return Progress::Made;
        }
        let key = EntryId::following(self.adds.confirmed().last_entry);
        if self.bookies.repair(self.record.newest(), key).is_some() {
            if self.ensemble_changes >= self.limits.ensemble_changes_max {
                let changes = self.ensemble_changes;
                self.fail(Error::TooManyChanges { ledger: self.ledger, changes });
                return Progress::Made;
            }
            // Without it a reader that asks the bookies of the new ensemble's predecessor learns LAC - 1, if the writer
            // was idle, and takes the fragment for one that is still written to.
            self.tell_lac();
            self.work = Work::Changing(key);
            return Progress::Made;
        }
        let lost = self.adds.lost();
        if lost.is_empty() {
            self.probe_at = None;
            return Progress::None;
        }
        if !self.adds.sizes().survives(lost) {
            let failures = self.adds.failures();
            self.fail(Error::QuorumLost { ledger: self.ledger, entry: key, failures });
            return Progress::Made;
        }
        self.probe_at.get_or_insert(now + self.limits.request_timeout);
        Progress::None
    }

    /// The record is settled: asks for the next change to it, or ends the freeze.
    fn continue_change(&mut self, now: Time, key: EntryId) -> Progress {
        debug_assert_eq!(key, EntryId::following(self.adds.confirmed().last_entry), "invariant 7");
        let record = self.record.newest().clone();
        match record.state() {
            LedgerState::Open => {}
            LedgerState::InRecovery => {
                self.on_fenced();
                return Progress::Made;
            }
            LedgerState::Closed(found) => {
                self.on_closed_elsewhere(found);
                return Progress::Made;
            }
        }
        if let State::Closing = self.state
            && self.adds.oldest_unconfirmed().is_none()
        {
            // Nothing needs the new ensemble any more.
            self.work = Work::Rest;
            return Progress::Made;
        }
        if let Some(repair) = self.bookies.repair(&record, key) {
            match record.ensemble_changed(key, repair.members) {
                Ok(changed) => self.record.write(changed.with_instances(repair.named)),
                // Only somebody else's change can have made that impossible.
                Err(refused) => self.fail(Error::Record {
                    ledger: self.ledger,
                    reason: refused.to_string().into(),
                }),
            }
            return Progress::Made;
        }
        self.finish_change(now);
        Progress::Made
    }

    fn finish_change(&mut self, now: Time) {
        let record = self.record.newest().clone();
        let switched = self.adds.switch(now, &record, &self.limits);
        self.work = Work::Rest;
        // Whoever could not be replaced, and whoever failed since it was named.
        self.repair = Repair::Due;
        if switched.is_empty() {
            return;
        }
        self.ensemble_changes += 1;
        let (key, members) = record.last_ensemble();
        self.say(Word::EnsembleChanged { key, members: members.to_vec() });
        for slot in switched.iter() {
            let standing = self.bookies.standing(&record, &members[slot.index()]);
            if standing == Standing::OtherInstance {
                self.lose(slot, Failure::OtherInstance);
            }
        }
    }

    /// Somebody else closed the ledger: that it is not fenced says nothing.
    pub(super) fn on_closed_elsewhere(&mut self, found: LedgerEnd) {
        let (ledger, confirmed) = (self.ledger, self.adds.confirmed());
        if found == confirmed {
            return self.end(Error::Fenced { ledger }, Ok(found));
        }
        let elsewhere = ClosedElsewhere { ledger, found, confirmed };
        self.end(elsewhere.into(), Err(elsewhere.into()));
    }
}

#[cfg(test)]
#[path = "change_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "rule_tests.rs"]
mod rule_tests;
