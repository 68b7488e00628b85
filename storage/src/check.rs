//! Where the copies of a ledger's entries are.
//!
//! A check asks every bookie that should have a copy of an entry for it, and only reads. What bookies are silent about
//! is unknown, which is neither present nor absent. Of a ledger that is gone it removes the mark, if that was left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::error::Advice;
use crate::fragments::{FragmentEnd, fragments, is_closed};
use crate::id::{BookieId, EntryId, LedgerId};
use crate::mailbox::Mailbox;
use crate::marks::{self, Mark};
use crate::metadata::{LedgerMetadata, LedgerState, LengthIs, MetadataError};
use crate::quorum::Slot;
use crate::read::{Core, LacUnknown, LedgerReader, RecordError};
use crate::replica::{ReplicaError, verified};
use crate::transport::{
    BookieError, CompletionSink, Evidence, Request, RequestBody, RequestId, Response,
};

/// Entries whose copies are asked for at once, which bounds the memory of a check and what it asks of a bookie.
const ENTRIES_IN_FLIGHT_MAX: u64 = 64;

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The ledger.
    pub ledger: LedgerId,
    /// Where it stood.
    pub state: LedgerState,
    /// What the bookies have stored as its LAC; none also when they were not asked, because it is closed.
    pub stored_lac: Option<EntryId>,
    /// What is confirmed; later entries were not looked at.
    pub last_add_confirmed: Option<EntryId>,
    /// Whether the length in its record is exact.
    pub length: LengthIs,
    /// What its writer had marked it for when the check began.
    pub marked: Mark,
    /// Its fragments, in order.
    pub fragments: Vec<FragmentReport>,
}

/// What a check found in one fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentReport {
    /// The entry it starts at.
    pub first: EntryId,
    /// The last entry of it that was looked at; none if there is none.
    pub last: Option<EntryId>,
    /// Its bookies, by slot.
    pub members: Vec<BookieId>,
    /// Whether it gets no more entries, so that what it lacks may be copied.
    pub closed: bool,
    /// The copies, by bookie and in the order of entries. Neighbours in the same state are one run.
    pub copies: Vec<CopyRun>,
    /// How many of its entries have fewer undamaged copies than the write quorum. Why, the runs say.
    pub entries_under_replicated: u64,
    /// The fewest undamaged copies that an entry has; none without entries.
    pub copies_fewest: Option<usize>,
}

/// The copies of neighbouring entries on one bookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRun {
    /// The bookie.
    pub bookie: BookieId,
    /// The first entry.
    pub first: EntryId,
    /// The last entry. Of those between, the bookie's are meant, which are not all if an ensemble is larger than the
    /// write quorum.
    pub last: EntryId,
    /// How many entries that are.
    pub entries: u64,
    /// What became of the copies.
    pub state: CopyState,
}

/// What became of the copy of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyState {
    /// It is there and undamaged.
    Present,
    /// The bookie says that it has none.
    Absent,
    /// What the bookie has is damaged or another entry.
    Corrupt,
    /// The bookie did not say.
    Unknown(ReplicaError),
}

impl fmt::Display for CopyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => f.write_str("present"),
            Self::Absent => f.write_str("absent"),
            Self::Corrupt => f.write_str("corrupt"),
            Self::Unknown(error) => write!(f, "unknown: the bookie {error}"),
        }
    }
}

impl CheckReport {
    /// The fragments with entries that have fewer undamaged copies than the write quorum.
    pub fn under_replicated(&self) -> impl Iterator<Item = &FragmentReport> {
        self.fragments.iter().filter(|fragment| fragment.entries_under_replicated > 0)
    }
}

/// Why a ledger could not be checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The record could not be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// What is confirmed is not known, and with it which entries there are.
    #[error(transparent)]
    Unknown(#[from] LacUnknown),
    /// The metadata store did not tell what the ledger is marked for, or did not let the mark of one that is gone be
    /// removed.
    #[error(transparent)]
    Mark(#[from] MetadataError),
}

impl CheckError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Record(error) => error.advice(),
            // A check may be repeated whatever became of it.
            Self::Unknown(_) | Self::Mark(_) => Advice::Retry,
        }
    }
}

/// Checks all confirmed entries of a ledger; `checked` is told the last entry that has been, from time to time.
pub(crate) async fn check(
    core: &Arc<Core>,
    ledger: LedgerId,
    mut checked: impl FnMut(EntryId) + Send,
) -> Result<CheckReport, CheckError> {
    // Before the record: a mark that was there before its ledger was looked for, and not found, is left over. One that is
    // newer is of a ledger that a lagging store did not show.
    let (marked, version) = marks::read(core, ledger).await?;
    let record = match core.known_record(ledger).await {
        Err(gone @ RecordError::NoSuchLedger { .. }) => {
            if let Some(version) = version {
                marks::remove_version(core, ledger, version).await?;
            }
            return Err(gone.into());
        }
        other => other?,
    };
    let reader = LedgerReader::open(core.clone(), ledger, record).await?;
    let (metadata, last_add_confirmed) = (reader.metadata(), reader.last_add_confirmed());
    let state = metadata.state();
    let (last_key, _) = metadata.last_ensemble();
    let mut silent = BTreeSet::new();
    let mut reports = Vec::new();
    for fragment in fragments(&metadata) {
        let through = match fragment.end {
            FragmentEnd::Through(last) => Some(last).min(last_add_confirmed),
            FragmentEnd::Empty => None,
            FragmentEnd::Unknown => last_add_confirmed,
        };
        let last = through.filter(|last| *last >= fragment.first);
        let mut tally = Tally::new(metadata.sizes().write(), fragment.members);
        let mut next = Some(fragment.first);
        while let (Some(first), Some(last)) = (next, last) {
            let until = EntryId(last.get().min(first.get() + ENTRIES_IN_FLIGHT_MAX - 1));
            let copies = read_copies(core, ledger, &metadata, (first, until), &mut silent).await;
            copies.into_iter().for_each(|(entry, found)| tally.add(entry, found));
            checked(until);
            next = (until < last).then(|| until.next());
        }
        let closed = is_closed(state, fragment.first, last_key, last_add_confirmed);
        reports.push(tally.report(fragment.first, last, closed));
    }
    Ok(CheckReport {
        ledger,
        state,
        stored_lac: reader.stored_lac(),
        last_add_confirmed,
        length: metadata.length_is(),
        marked,
        fragments: reports,
    })
}

/// Asks all members of their write sets for a few entries. A bookie that answered nothing within its time is silent:
/// it is not asked again, or a long ledger would take a request timeout for every few entries.
async fn read_copies(
    core: &Core,
    ledger: LedgerId,
    metadata: &LedgerMetadata,
    (first, last): (EntryId, EntryId),
    silent: &mut BTreeSet<BookieId>,
) -> BTreeMap<EntryId, BTreeMap<Slot, CopyState>> {
    let mailbox = Arc::new(Mailbox::<Response>::new());
    let sink: Arc<dyn CompletionSink> = mailbox.clone();
    let (mut copies, mut waiting) = (BTreeMap::new(), BTreeMap::new());
    let mut batches = BTreeMap::<BookieId, Vec<Request>>::new();
    for entry in (first.get()..=last.get()).map(EntryId) {
        for slot in metadata.sizes().write_set(entry) {
            let bookie = &metadata.ensemble_of(entry)[slot.index()];
            let found: &mut BTreeMap<_, _> = copies.entry(entry).or_default();
            found.insert(slot, CopyState::Unknown(BookieError::Timeout.into()));
            if !silent.contains(bookie) {
                let id = RequestId(waiting.len() as u64);
                let body = RequestBody::Read { entry, fence: None };
                batches.entry(bookie.clone()).or_default().push(Request { id, ledger, body });
                waiting.insert(id, (entry, slot));
            }
        }
    }
    let mut unheard: BTreeSet<_> = batches.keys().cloned().collect();
    let deadline = core.clock.instant(core.clock.now() + core.config.request_timeout);
    for (bookie, mut batch) in batches {
        core.transport.submit(&bookie, &mut batch, &sink);
    }
    let mut responses = Vec::new();
    while !waiting.is_empty() {
        if tokio::time::timeout_at(deadline, mailbox.recv_into(&mut responses)).await.is_err() {
            silent.append(&mut unheard);
            break;
        }
        for response in responses.drain(..) {
            unheard.remove(&response.bookie);
            if let Some((entry, slot)) = waiting.remove(&response.id) {
                let state = copy_state(ledger, entry, response);
                copies.entry(entry).or_default().insert(slot, state);
            }
        }
    }
    copies
}

fn copy_state(ledger: LedgerId, entry: EntryId, response: Response) -> CopyState {
    match verified(ledger, entry, response.result) {
        Ok(_) => CopyState::Present,
        Err(ReplicaError::Copy(_)) => CopyState::Corrupt,
        Err(ReplicaError::Bookie(error)) if error.evidence() == Evidence::Absent => {
            CopyState::Absent
        }
        Err(error) => CopyState::Unknown(error),
    }
}

/// Adds up the copies of a fragment.
struct Tally<'a> {
    write_quorum: usize,
    members: &'a [BookieId],
    runs: Vec<Vec<CopyRun>>,
    entries_under_replicated: u64,
    copies_fewest: Option<usize>,
}

impl<'a> Tally<'a> {
    fn new(write_quorum: usize, members: &'a [BookieId]) -> Self {
        Self {
            write_quorum,
            members,
            runs: vec![Vec::new(); members.len()],
            entries_under_replicated: 0,
            copies_fewest: None,
        }
    }

    /// Counts the next entry.
    fn add(&mut self, entry: EntryId, copies: BTreeMap<Slot, CopyState>) {
        let mut present = BTreeSet::new();
        for (slot, state) in copies {
            let bookie = &self.members[slot.index()];
            if state == CopyState::Present {
                // A bookie that stands twice in an old record has one copy.
                present.insert(bookie);
            }
            let runs = &mut self.runs[slot.index()];
            match runs.last_mut() {
                Some(run) if run.state == state => {
                    run.last = entry;
                    run.entries += 1;
                }
                _ => {
                    let bookie = bookie.clone();
                    runs.push(CopyRun { bookie, first: entry, last: entry, entries: 1, state });
                }
            }
        }
        let fewest = self.copies_fewest.unwrap_or(present.len());
        self.copies_fewest = Some(fewest.min(present.len()));
        self.entries_under_replicated += u64::from(present.len() < self.write_quorum);
    }

    fn report(self, first: EntryId, last: Option<EntryId>, closed: bool) -> FragmentReport {
        FragmentReport {
            first,
            last,
            members: self.members.to_vec(),
            closed,
            copies: self.runs.into_iter().flatten().collect(),
            entries_under_replicated: self.entries_under_replicated,
            copies_fewest: self.copies_fewest,
        }
    }
}
