//! The ledgers of a topic, as their records in the metadata store and their copies on the bookies
//! tell of them.

use georepl::Region;
use georepl::cursor::{ListedLedger, RecordError, TopicRecord};
use georepl::storage::{
    BookieId, CheckError, FormatError, LedgerId, LedgerMetadata, MetadataError, decode_metadata,
    ledger_key,
};
use serde::Serialize;

use super::Regions;

/// What became of a topic's ledgers in both regions.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Ledgers {
    /// By the ensembles in the ledgers' records.
    pub(crate) ensemble_changes: u64,
    /// Fragments with an entry that has fewer undamaged copies than the write quorum.
    pub(crate) under_replicated_fragments: u64,
}

/// The ledgers of a topic could not be examined.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the record of {topic} cannot be read: {error}")]
    Topic { topic: String, error: MetadataError },
    #[error("the record of {topic} is not understood: {error}")]
    TopicFormat { topic: String, error: RecordError },
    #[error("the record of ledger {ledger} of {region} cannot be read: {error}")]
    Ledger { region: String, ledger: LedgerId, error: MetadataError },
    #[error("ledger {ledger} of {region} is listed and has no record")]
    NoRecord { region: String, ledger: LedgerId },
    #[error("the record of ledger {ledger} of {region} is not understood: {error}")]
    LedgerFormat { region: String, ledger: LedgerId, error: FormatError },
    #[error("ledger {ledger} of {region} cannot be checked: {error}")]
    Check { region: String, ledger: LedgerId, error: CheckError },
}

impl Ledgers {
    /// Asks the bookies for every copy of every entry of a topic.
    pub(crate) async fn examine(regions: &Regions, topic: &str) -> Result<Self, Error> {
        let ensemble_changes = ensemble_changes(regions, topic).await?;
        let mut under_replicated_fragments = 0;
        for region in regions.both() {
            for ListedLedger { ledger, .. } in listed(region, topic).await? {
                let checked = region.client().check(ledger, |_| {}).await;
                let report = checked.map_err(|error| Error::Check {
                    region: region.name().to_string(),
                    ledger,
                    error,
                })?;
                under_replicated_fragments += report.under_replicated().count() as u64;
            }
        }
        Ok(Self { ensemble_changes, under_replicated_fragments })
    }
}

/// How often the ledgers of a topic have changed their ensembles, in both regions.
pub(crate) async fn ensemble_changes(regions: &Regions, topic: &str) -> Result<u64, Error> {
    let mut changes = 0;
    for region in regions.both() {
        for ListedLedger { ledger, .. } in listed(region, topic).await? {
            let ensembles = metadata(region, ledger).await?.ensembles().len();
            changes += ensembles as u64 - 1;
        }
    }
    Ok(changes)
}

/// The ledger that a topic is written to; none before its first ledger.
pub(crate) async fn last(region: &Region, topic: &str) -> Result<Option<LedgerId>, Error> {
    Ok(listed(region, topic).await?.last().map(|listed| listed.ledger))
}

/// The bookies that a ledger is written to, or was last.
pub(crate) async fn last_ensemble(
    region: &Region,
    ledger: LedgerId,
) -> Result<Vec<BookieId>, Error> {
    Ok(metadata(region, ledger).await?.last_ensemble().1.to_vec())
}

/// The ledgers of a topic as its record lists them, oldest first.
pub(crate) async fn listed(region: &Region, topic: &str) -> Result<Vec<ListedLedger>, Error> {
    let named = || topic.to_owned();
    let stored = region.store().get(&record_key(topic)).await;
    let stored = stored.map_err(|error| Error::Topic { topic: named(), error })?;
    // No record is the record of a topic without ledgers.
    let value = stored.map(|stored| stored.value).unwrap_or_default();
    let record = TopicRecord::decode(&value);
    let record = record.map_err(|error| Error::TopicFormat { topic: named(), error })?;
    Ok(record.ledgers)
}

async fn metadata(region: &Region, ledger: LedgerId) -> Result<LedgerMetadata, Error> {
    let named = || region.name().to_string();
    let stored = region.store().get(&ledger_key(ledger)).await;
    let stored = stored.map_err(|error| Error::Ledger { region: named(), ledger, error })?;
    let stored = stored.ok_or_else(|| Error::NoRecord { region: named(), ledger })?;
    decode_metadata(&stored.value).map_err(|error| Error::LedgerFormat {
        region: named(),
        ledger,
        error,
    })
}

/// Where Pulsar keeps a topic's record, worked out anew and not asked of what is audited. The
/// demo's names need no encoding.
fn record_key(topic: &str) -> String {
    let name = topic.strip_prefix("persistent://").unwrap_or(topic);
    let (namespace, name) = name.rsplit_once('/').unwrap_or(("", name));
    format!("managed-ledgers/{namespace}/persistent/{name}")
}
