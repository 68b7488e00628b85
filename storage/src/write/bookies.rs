//! What the writer of a ledger knows of bookies, and whom it lets take a lost one's place.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::bookie::rules::Mode;
use crate::id::{BookieId, EntryId, Instance};
use crate::metadata::LedgerMetadata;
use crate::registry::RegisteredBookie;

/// The registry's list and this ledger's experience.
///
/// Registration says little: dead bookies stay registered for a while. So one that failed is asked nothing and named
/// in no ensemble until it has answered a probe; a quarantine that ended by time would alternate between two dead ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Bookies {
    /// In the order of preference; none before the first news.
    registered: Option<Arc<[RegisteredBookie]>>,
    /// Failed for this ledger, and has not answered since.
    failed: BTreeSet<BookieId>,
}

/// How a bookie stands in the registry, from the ledger's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Takes new entries, in the life that the ledger knows if it knows one.
    Writable,
    /// Not there, or read-only.
    Away,
    /// There, but in another life: it has forgotten entries and fences.
    OtherInstance,
}

/// A better last ensemble.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Repair {
    pub(super) members: Vec<BookieId>,
    /// The life of each new member.
    pub(super) named: Vec<(BookieId, Instance)>,
}

impl Bookies {
    pub(super) fn on_news(&mut self, registered: Arc<[RegisteredBookie]>) {
        self.registered = Some(registered);
    }

    pub(super) fn on_failure(&mut self, bookie: &BookieId) {
        self.failed.insert(bookie.clone());
    }

    pub(super) fn on_answer(&mut self, bookie: &BookieId) {
        self.failed.remove(bookie);
    }

    pub(super) fn standing(&self, record: &LedgerMetadata, bookie: &BookieId) -> Standing {
        let Some(registered) = &self.registered else { return Standing::Writable };
        match registered.iter().find(|found| found.id == *bookie) {
            Some(found) if is_other_instance(record, found) => Standing::OtherInstance,
            Some(found) if found.mode == Mode::Writable => Standing::Writable,
            Some(_) | None => Standing::Away,
        }
    }

    /// Whether a bookie should hold the entries to come.
    pub(super) fn is_fit(&self, record: &LedgerMetadata, bookie: &BookieId) -> bool {
        !self.failed.contains(bookie) && self.standing(record, bookie) == Standing::Writable
    }

    /// Those that failed and might be better by now.
    pub(super) fn doubted(&self, record: &LedgerMetadata) -> impl Iterator<Item = &BookieId> {
        let writable = |bookie: &&BookieId| self.standing(record, bookie) == Standing::Writable;
        self.failed.iter().filter(writable)
    }

    /// An ensemble from `key` on with fewer unfit members than the record's last one; none if nobody can take over.
    pub(super) fn repair(&self, record: &LedgerMetadata, key: EntryId) -> Option<Repair> {
        let (last_key, current) = record.last_ensemble();
        let mut members = current.to_vec();
        let mut named = Vec::new();
        let mut replaced = 0;
        for slot in 0..members.len() {
            if self.is_fit(record, &members[slot]) {
                continue;
            }
            // Who is named already fails `contains`, and so does who stays.
            let spare = self.registered.iter().flat_map(|registered| registered.iter()).find(|b| {
                !members.contains(&b.id) && !current.contains(&b.id) && self.is_fit(record, &b.id)
            });
            if let Some(spare) = spare {
                members[slot] = spare.id.clone();
                named.push((spare.id.clone(), spare.instance));
                replaced = slot;
            }
        }
        if named.is_empty() {
            return None;
        }
        // Two neighbours must differ, or a reader cannot tell a change that was undone from none. When an ensemble is
        // replaced before anything was confirmed in it, the best one may be that of the fragment before.
        let before = record.ensembles().range(..last_key).next_back();
        if last_key == key && before.is_some_and(|(_, before)| *before == members) {
            if members.len() == 1 {
                return None;
            }
            members.swap(replaced, (replaced + 1) % current.len());
        }
        Some(Repair { members, named })
    }
}

fn is_other_instance(record: &LedgerMetadata, found: &RegisteredBookie) -> bool {
    record.instance_of(&found.id).is_some_and(|recorded| recorded != found.instance)
}
