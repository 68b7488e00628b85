//! What a bookie must do, apart from where it keeps things.
//!
//! A bookie knows nothing of quorums. It promises:
//!
//! 1. An entry whose add it answered with OK is durable.
//! 2. Once it has answered a fencing read, it never again takes a normal add for that ledger; adds of a recovery stay
//!    allowed. That holds for a ledger it has never seen as well: fencing creates it, empty.
//! 3. An add with another key than the ledger's first one is refused, and so is a normal add while it is read-only.
//! 4. "No such entry" and "no such ledger" mean that it never acknowledged one. A bookie that may have lost something of
//!    a ledger, and knows, has that ledger in *limbo*: it says what it has and denies nothing.
//!
//! The functions decide and change nothing. A [`RecordChange::Write`] must be durable before the answer leaves, in the
//! same sync as the entry it came with.

use crate::entry::{Entry, MasterKey};
use crate::id::EntryId;
use crate::transport::{AddKind, BookieError, Evidence, RequestBody};

/// What a bookie keeps of a ledger besides its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LedgerRecord {
    /// The key of the first request that carried one.
    pub key: MasterKey,
    /// Whether the writer is still let in.
    pub fence: Fence,
    /// The highest LAC that was written by itself, apart from entries.
    pub explicit_lac: Option<EntryId>,
}

/// Whether a ledger's writer is still let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fence {
    /// Normal adds are taken.
    Open,
    /// Normal adds are refused, for ever.
    Fenced,
}

/// Whether a bookie takes new entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// It does.
    #[default]
    Writable,
    /// It serves reads, fences and recovery only.
    ReadOnly,
}

/// What has to be stored of a ledger besides an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordChange {
    /// Nothing.
    Unchanged,
    /// This record, instead of the one there is, if any.
    Write(LedgerRecord),
}

/// Whether an add is taken, and what has to be stored with the entry. Adding an entry again is taken again: the
/// answer to the first time may have been lost.
///
/// # Errors
/// [`BookieError::Unauthorized`], [`BookieError::Fenced`] and [`BookieError::ReadOnly`]; nothing is stored.
pub fn add(
    record: Option<&LedgerRecord>,
    mode: Mode,
    key: MasterKey,
    kind: AddKind,
) -> Result<RecordChange, BookieError> {
    if record.is_some_and(|record| record.key != key) {
        return Err(BookieError::Unauthorized);
    }
    if kind == AddKind::Normal {
        // Fenced before read-only: the first ends the writer, the second only sends it to another bookie.
        if record.is_some_and(|record| record.fence == Fence::Fenced) {
            return Err(BookieError::Fenced);
        }
        if mode == Mode::ReadOnly {
            return Err(BookieError::ReadOnly);
        }
    }
    Ok(match record {
        Some(_) => RecordChange::Unchanged,
        None => RecordChange::Write(LedgerRecord { key, fence: Fence::Open, explicit_lac: None }),
    })
}

/// What a fencing read has to store before it is answered.
///
/// # Errors
/// [`BookieError::Unauthorized`]; the ledger is not fenced.
pub fn fence(record: Option<&LedgerRecord>, key: MasterKey) -> Result<RecordChange, BookieError> {
    match record {
        Some(record) if record.key != key => Err(BookieError::Unauthorized),
        Some(LedgerRecord { fence: Fence::Fenced, .. }) => Ok(RecordChange::Unchanged),
        Some(record) => Ok(RecordChange::Write(LedgerRecord { fence: Fence::Fenced, ..*record })),
        None => {
            Ok(RecordChange::Write(LedgerRecord { key, fence: Fence::Fenced, explicit_lac: None }))
        }
    }
}

/// What has to be stored for a LAC that a writer tells by itself. A fence does not matter: what was confirmed stays so.
///
/// # Errors
/// [`BookieError::Unauthorized`]; nothing is stored.
pub fn write_lac(
    record: Option<&LedgerRecord>,
    lac: EntryId,
    key: MasterKey,
) -> Result<RecordChange, BookieError> {
    let fresh = LedgerRecord { key, fence: Fence::Open, explicit_lac: None };
    let known = record.copied().unwrap_or(fresh);
    if known.key != key {
        return Err(BookieError::Unauthorized);
    }
    let explicit_lac = known.explicit_lac.max(Some(lac));
    let next = LedgerRecord { explicit_lac, ..known };
    Ok(if record == Some(&next) { RecordChange::Unchanged } else { RecordChange::Write(next) })
}

/// The answer to a read, given what is stored.
///
/// # Errors
/// [`BookieError::NoSuchLedger`] and [`BookieError::NoSuchEntry`].
pub fn read(record: Option<&LedgerRecord>, stored: Option<&Entry>) -> Result<Entry, BookieError> {
    record.ok_or(BookieError::NoSuchLedger)?;
    stored.cloned().ok_or(BookieError::NoSuchEntry)
}

/// The answer to a LAC read: what the header of the highest stored entry says or the writer told by itself, whichever
/// is higher. It trails the writer's LAC.
///
/// # Errors
/// [`BookieError::NoSuchLedger`].
pub fn last_add_confirmed(
    record: Option<&LedgerRecord>,
    highest: Option<&Entry>,
) -> Result<Option<EntryId>, BookieError> {
    let record = record.ok_or(BookieError::NoSuchLedger)?;
    Ok(known_lac(Some(record), highest))
}

/// The LAC that answers a wait for one beyond `beyond`, or none while the wait goes on. A ledger that the bookie has
/// never seen is waited for as well: its first entry may be on the way.
pub fn awaited_lac(
    record: Option<&LedgerRecord>,
    highest: Option<&Entry>,
    beyond: Option<EntryId>,
) -> Option<EntryId> {
    known_lac(record, highest).filter(|lac| Some(*lac) > beyond)
}

fn known_lac(record: Option<&LedgerRecord>, highest: Option<&Entry>) -> Option<EntryId> {
    highest.and_then(Entry::lac).max(record.and_then(|record| record.explicit_lac))
}

/// Whether a request for a ledger in limbo is carried out. A normal add is not, because the fence may be lost; nor is
/// the LAC told, because a higher one may be.
///
/// # Errors
/// [`BookieError::UnknownLedgerState`]; nothing is changed.
pub const fn admit_in_limbo(request: &RequestBody) -> Result<(), BookieError> {
    match request {
        RequestBody::Add { kind: AddKind::Normal, .. }
        | RequestBody::ReadLac { .. }
        | RequestBody::WaitLac { .. } => Err(BookieError::UnknownLedgerState),
        RequestBody::Add { kind: AddKind::Recovery, .. }
        | RequestBody::Read { .. }
        | RequestBody::WriteLac { .. } => Ok(()),
    }
}

/// What becomes of a refusal when the ledger is in limbo: a denial is none any more.
#[must_use]
pub const fn refusal_in_limbo(error: BookieError) -> BookieError {
    match error.evidence() {
        Evidence::Absent => BookieError::UnknownLedgerState,
        Evidence::Unknown => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Password;

    fn key(password: &str) -> MasterKey {
        MasterKey::of(&Password::from(password))
    }

    fn record(fence: Fence) -> LedgerRecord {
        LedgerRecord { key: key("right"), fence, explicit_lac: None }
    }

    #[test]
    fn adds_are_decided_by_key_then_fence_then_mode() {
        use AddKind::{Normal, Recovery};
        use BookieError::{Fenced, ReadOnly, Unauthorized};
        let (none, open, fenced) = (None, Some(record(Fence::Open)), Some(record(Fence::Fenced)));
        let create = Ok(RecordChange::Write(record(Fence::Open)));
        let take = Ok(RecordChange::Unchanged);
        let table = [
            (none, Mode::Writable, "right", Normal, create),
            (none, Mode::ReadOnly, "right", Normal, Err(ReadOnly)),
            (none, Mode::ReadOnly, "right", Recovery, create),
            (open, Mode::Writable, "right", Normal, take),
            (open, Mode::Writable, "wrong", Normal, Err(Unauthorized)),
            (open, Mode::Writable, "wrong", Recovery, Err(Unauthorized)),
            (open, Mode::ReadOnly, "right", Normal, Err(ReadOnly)),
            (open, Mode::ReadOnly, "right", Recovery, take),
            (fenced, Mode::Writable, "right", Normal, Err(Fenced)),
            (fenced, Mode::ReadOnly, "right", Normal, Err(Fenced)),
            (fenced, Mode::Writable, "right", Recovery, take),
            (fenced, Mode::Writable, "wrong", Normal, Err(Unauthorized)),
        ];
        for (record, mode, password, kind, expected) in table {
            let decided = add(record.as_ref(), mode, key(password), kind);
            assert_eq!(decided, expected, "{record:?} {mode:?} {password} {kind:?}");
        }
    }

    #[test]
    fn fencing_works_on_a_ledger_never_seen_and_only_with_its_key() {
        let fenced = Ok(RecordChange::Write(record(Fence::Fenced)));
        assert_eq!(fence(None, key("right")), fenced);
        assert_eq!(fence(Some(&record(Fence::Open)), key("right")), fenced);
        assert_eq!(fence(Some(&record(Fence::Fenced)), key("right")), Ok(RecordChange::Unchanged));
        assert_eq!(fence(Some(&record(Fence::Open)), key("wrong")), Err(BookieError::Unauthorized));
    }
}
