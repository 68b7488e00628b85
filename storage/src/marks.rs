//! The ledgers that are marked for a full check of some of their bookies, kept in the metadata store until somebody
//! repairs them.
//!
//! A mark is only ever added to, so that the order of those who add does not matter; it goes with its ledger. Who adds
//! one removes none, whatever a store that lags shows of the record: a mark that is lost hides missing copies. One that
//! was added while its ledger was deleted is harmless, and a check of the ledger that is gone removes it.

use crate::id::LedgerId;
use crate::metadata::{Expected, MetadataError, Version};
use crate::read::Core;
use crate::shortfall::Shortfall;

/// How often a mark is tried for when others change it meanwhile, which is rare: a ledger has one writer.
const ATTEMPTS_MAX: usize = 4;

/// What a ledger is marked for in the metadata store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing: its writer knows of no copy that is missing.
    None,
    /// Where copies were known to be missing. A repair since does not show here.
    Shortfalls(Vec<Shortfall>),
    /// There is a mark, so copies were known to be missing, but it is damaged or of an unknown kind: any may be.
    Unreadable,
}

/// The key of a ledger's mark.
pub(crate) fn mark_key(ledger: LedgerId) -> String {
    format!("underreplicated/L{:010}", ledger.get())
}

/// What a ledger is marked for, and the version of the mark if there is one.
pub(crate) async fn read(
    core: &Core,
    ledger: LedgerId,
) -> Result<(Mark, Option<Version>), MetadataError> {
    let key = mark_key(ledger);
    let Some(found) = core.metadata(&key, core.store.get(&key)).await? else {
        return Ok((Mark::None, None));
    };
    let mark = Shortfall::decode(&found.value).map_or(Mark::Unreadable, Mark::Shortfalls);
    Ok((mark, Some(found.version)))
}

/// Adds to what a ledger is marked for, within the time of one operation of the store however many it takes.
/// Cancel-safe: it was added or not, and may be again.
pub(crate) async fn add(
    core: &Core,
    ledger: LedgerId,
    shortfalls: &[Shortfall],
) -> Result<(), MetadataError> {
    let key = mark_key(ledger);
    core.metadata(&key, add_all(core, &key, shortfalls)).await
}

/// Takes the mark off a ledger that was deleted, within the time of one operation of the store. That there is none is a
/// success. Cancel-safe: it was removed or not, and may be again.
pub(crate) async fn remove(core: &Core, ledger: LedgerId) -> Result<(), MetadataError> {
    let key = mark_key(ledger);
    core.metadata(&key, remove_all(core, &key)).await
}

/// Takes the mark of this version off a ledger of which there is no record. One that was changed since is for whoever
/// changed it. That there is none is a success. Cancel-safe: it was removed or not, and may be again.
pub(crate) async fn remove_version(
    core: &Core,
    ledger: LedgerId,
    version: Version,
) -> Result<(), MetadataError> {
    let key = mark_key(ledger);
    match core.metadata(&key, core.store.delete(&key, version)).await {
        Ok(()) | Err(MetadataError::NotFound { .. } | MetadataError::VersionConflict { .. }) => {
            Ok(())
        }
        Err(error @ MetadataError::Unavailable { .. }) => Err(error),
    }
}

async fn add_all(core: &Core, key: &str, shortfalls: &[Shortfall]) -> Result<(), MetadataError> {
    let mut attempts = 1..ATTEMPTS_MAX;
    loop {
        let found = core.store.get(key).await?;
        // What cannot be understood is replaced: the new list is what is known.
        let known = found.as_ref().and_then(|found| Shortfall::decode(&found.value));
        let mut list = known.clone().unwrap_or_default();
        for Shortfall { bookie, first, last } in shortfalls {
            Shortfall::note(&mut list, bookie, *first, *last);
        }
        if known.as_ref() == Some(&list) {
            return Ok(());
        }
        let expected = found.map_or(Expected::Absent, |found| Expected::Version(found.version));
        match core.store.put(key, Shortfall::encode(&list), expected).await {
            Ok(_) => return Ok(()),
            // Also after a lost answer: if that write came through there is nothing left to add.
            Err(error) => attempts.next().map(|_| ()).ok_or(error)?,
        }
    }
}

async fn remove_all(core: &Core, key: &str) -> Result<(), MetadataError> {
    let mut attempts = 1..ATTEMPTS_MAX;
    loop {
        let Some(found) = core.store.get(key).await? else { return Ok(()) };
        match core.store.delete(key, found.version).await {
            Ok(()) | Err(MetadataError::NotFound { .. }) => return Ok(()),
            Err(error) => attempts.next().map(|_| ()).ok_or(error)?,
        }
    }
}
