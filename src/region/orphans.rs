//! Ledgers that an earlier opening created and that nobody came to name, because its process ended first.
//!
//! A ledger is named after it is created, so one that is being created just now looks the same. Those have ids that were
//! given out in this opening, and are left alone.

use std::collections::BTreeSet;

use georepl_cursor::{Claim, claim};
use georepl_storage::{LedgerClient, LedgerId, MetadataStore, decode_metadata, ledger_key};

use super::garbage::{Error, LEDGERS, Watched, ledgers_in};

/// Deletes them, one after the other, and says how many there were. `held` are the ledgers of which bookies have entries,
/// as of the opening or later.
pub(super) async fn delete(
    store: &Watched,
    held: &BTreeSet<LedgerId>,
    client: &LedgerClient,
) -> Result<usize, Error> {
    let first_given = store.first_given().await?;
    let mut deleted = 0;
    for ledger in ledgers_in(store, LEDGERS).await? {
        if ledger < first_given && is_orphan(store, held, ledger).await? {
            client.delete(ledger).await?;
            deleted += 1;
        }
    }
    Ok(deleted)
}

async fn is_orphan(
    store: &Watched,
    held: &BTreeSet<LedgerId>,
    ledger: LedgerId,
) -> Result<bool, Error> {
    let Some(stored) = store.get(&ledger_key(ledger)).await? else { return Ok(false) };
    let Ok(record) = decode_metadata(&stored.value) else { return Ok(false) };
    Ok(match claim(store, ledger, &record).await? {
        Claim::Kept => false,
        Claim::Abandoned => true,
        // Should it have entries, it is not what it seems to be.
        Claim::AbandonedEmpty if held.contains(&ledger) => {
            tracing::warn!(%ledger, "no topic lists it, and it has entries; it is left as it is");
            false
        }
        Claim::AbandonedEmpty => true,
    })
}
