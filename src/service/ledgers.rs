//! Ledgers, below topics: their records, their entries, their copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use georepl::cursor::Position;
use georepl::storage::{
    CheckError, CheckReport, CopyState, EntryId, LedgerId, LedgerMetadata, LedgerReader,
    LedgerState, decode_metadata, ledger_key,
};

use super::Host;
use super::consume::encode_at;
use super::line::{Broken, Frame, Inbox, Outbox};
use super::topics::guard;
use super::words::{Consent, Ensemble, LedgerCheck, LedgerEnd, LedgerRecord, Quorums, Reply};
use crate::exit::{Exit, Failure};

/// The records of all ledgers, in the order of their ids.
pub(super) async fn list(host: &Arc<Host>) -> Result<Vec<LedgerRecord>, Failure> {
    let mut records = Vec::new();
    for ledger in ids(host).await? {
        match metadata(host, ledger).await {
            Ok(Some(metadata)) => records.push(told(ledger, &metadata)),
            // It was deleted meanwhile.
            Ok(None) => {}
            Err(failure) => records.push(unreadable(ledger, failure)),
        }
    }
    Ok(records)
}

/// A record that says nothing. The others are told all the same.
fn unreadable(ledger: LedgerId, failure: Failure) -> LedgerRecord {
    LedgerRecord {
        ledger: ledger.get(),
        state: "unreadable".to_owned(),
        reason: Some(failure.message),
        quorums: None,
        entries: None,
        bytes: None,
        ensembles: Vec::new(),
        custom: BTreeMap::new(),
    }
}

/// The record of one ledger.
pub(super) async fn record(host: &Arc<Host>, ledger: u64) -> Result<LedgerRecord, Failure> {
    Ok(told(LedgerId(ledger), &existing(host, LedgerId(ledger)).await?))
}

/// Sends confirmed entries of a ledger.
pub(super) async fn read(
    host: &Arc<Host>,
    ledger: u64,
    first: u64,
    last: Option<u64>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<LedgerEnd, Failure> {
    let reader = open(host, LedgerId(ledger)).await?;
    let gone = |error: Broken| Failure::new(Exit::Unreachable, error);
    let end = asked_for(&reader, first, last)?;
    let mut next = first;
    while next < end {
        let through = end.min(next + READ_ENTRIES) - 1;
        let entries = tokio::select! {
            biased;
            () = inbox.end() => break,
            entries = reader.read(EntryId(next), EntryId(through)) => entries,
        };
        for entry in entries.map_err(Failure::failed)? {
            let data = encode_at(Position::new(reader.id(), entry.id), &entry.payload);
            outbox.feed(Frame::Data(data)).await.map_err(gone)?;
        }
        next = through + 1;
    }
    Ok(LedgerEnd { ledger, entries: next.saturating_sub(first) })
}

/// Behind the last entry to read. What was named must be there; of an empty ledger, nothing was.
fn asked_for(reader: &LedgerReader, first: u64, last: Option<u64>) -> Result<u64, Failure> {
    let (ledger, end) = (reader.id(), EntryId::following(reader.last_add_confirmed()).get());
    if last.is_some_and(|last| last < first) {
        let message =
            "the last entry comes before the first; give --first and --last in their order";
        return Err(Failure::new(Exit::Usage, message));
    }
    let named = last.or_else(|| (first > 0).then_some(first));
    if let Some(named) = named.filter(|named| *named >= end) {
        let missing = if first < end { named } else { first };
        return Err(Failure::failed(match end.checked_sub(1) {
            None => {
                format!("ledger {ledger} has no entry {missing}: it has none that is confirmed")
            }
            Some(last) => {
                format!(
                    "ledger {ledger} has no entry {missing}: it has 0 to {last}, as far as they are confirmed"
                )
            }
        }));
    }
    Ok(last.map_or(end, |last| last + 1))
}

/// Looks at every copy of these ledgers, or of all, until told to stop.
pub(super) async fn check(
    host: &Arc<Host>,
    ledgers: Vec<u64>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<Vec<LedgerCheck>, Failure> {
    let all = ledgers.is_empty();
    let chosen = match all {
        true => ids(host).await?,
        false => ledgers.into_iter().map(LedgerId).collect(),
    };
    let of = chosen.len();
    let mut reports = Vec::new();
    for ledger in chosen {
        // One that was deleted since all were listed is none to check.
        if all && matches!(metadata(host, ledger).await, Ok(None)) {
            continue;
        }
        let report = tokio::select! {
            biased;
            () = inbox.end() => break,
            report = host.region.client().check(ledger, |_| {}) => report,
        };
        reports.push(report.map_or_else(|error| unchecked(ledger, &error), checked));
        let progress = serde_json::json!({ "checked": reports.len(), "of": of });
        let told = outbox.word(&Reply::Progress(progress)).await;
        told.map_err(|error| Failure::new(Exit::Unreachable, error))?;
    }
    Ok(reports)
}

fn checked(report: CheckReport) -> LedgerCheck {
    let under_replicated =
        report.fragments.iter().map(|fragment| fragment.entries_under_replicated).sum();
    let runs = report.fragments.iter().flat_map(|fragment| &fragment.copies);
    let bad = runs.filter(|run| run.state != CopyState::Present).map(|run| {
        format!("entries {} to {} on {}: {}", run.first, run.last, run.bookie, run.state)
    });
    LedgerCheck {
        ledger: report.ledger.get(),
        state: state(report.state).to_owned(),
        reason: None,
        entries: EntryId::following(report.last_add_confirmed).get(),
        under_replicated,
        findings: bad.collect(),
    }
}

/// A ledger that cannot be checked. The others are told all the same.
fn unchecked(ledger: LedgerId, error: &CheckError) -> LedgerCheck {
    LedgerCheck {
        ledger: ledger.get(),
        state: "unknown".to_owned(),
        reason: Some(error.to_string()),
        entries: 0,
        under_replicated: 0,
        findings: Vec::new(),
    }
}

/// Finds out where a ledger ends, and closes it there.
pub(super) async fn recover(
    host: &Arc<Host>,
    ledger: u64,
    consent: Consent,
) -> Result<LedgerEnd, Failure> {
    let id = LedgerId(ledger);
    if existing(host, id).await?.state() == LedgerState::Open {
        guard(consent, || {
            format!("ledger {ledger} is open, and whoever writes it would be fenced")
        })?;
    }
    let password = &host.region.ledgers().password;
    let reader = host.region.client().recover(id, password).await.map_err(Failure::failed)?;
    Ok(LedgerEnd { ledger, entries: EntryId::following(reader.last_add_confirmed()).get() })
}

async fn ids(host: &Host) -> Result<Vec<LedgerId>, Failure> {
    let names = host.region.store().children("ledgers").await.map_err(Failure::failed)?;
    let ids = names.iter().filter_map(|name| name.strip_prefix('L')?.parse().ok());
    Ok(ids.map(LedgerId).collect())
}

async fn metadata(host: &Host, ledger: LedgerId) -> Result<Option<LedgerMetadata>, Failure> {
    let stored = host.region.store().get(&ledger_key(ledger)).await.map_err(Failure::failed)?;
    let decoded = stored.map(|stored| decode_metadata(&stored.value)).transpose();
    decoded.map_err(|error| Failure::failed(format!("the record of ledger {ledger}: {error}")))
}

async fn existing(host: &Host, ledger: LedgerId) -> Result<LedgerMetadata, Failure> {
    let missing =
        || Failure::failed(format!("there is no ledger {ledger}; see georepl ledger list"));
    metadata(host, ledger).await?.ok_or_else(missing)
}

async fn open(host: &Host, ledger: LedgerId) -> Result<LedgerReader, Failure> {
    existing(host, ledger).await?;
    let password = &host.region.ledgers().password;
    host.region.client().open(ledger, password).await.map_err(Failure::failed)
}

fn told(ledger: LedgerId, metadata: &LedgerMetadata) -> LedgerRecord {
    let sizes = metadata.sizes();
    let end = match metadata.state() {
        LedgerState::Closed(end) => Some(end),
        LedgerState::Open | LedgerState::InRecovery => None,
    };
    let ensembles = metadata.ensembles().iter().map(|(first, bookies)| Ensemble {
        first_entry: first.get(),
        bookies: bookies.iter().map(ToString::to_string).collect(),
    });
    let custom = metadata.custom().iter();
    LedgerRecord {
        ledger: ledger.get(),
        state: state(metadata.state()).to_owned(),
        reason: None,
        quorums: Some(Quorums {
            ensemble: sizes.ensemble(),
            write: sizes.write(),
            ack: sizes.ack(),
        }),
        entries: end.map(|end| EntryId::following(end.last_entry).get()),
        bytes: end.map(|end| end.length),
        ensembles: ensembles.collect(),
        custom: custom
            .map(|(key, value)| (key.clone(), String::from_utf8_lossy(value).into_owned()))
            .collect(),
    }
}

fn state(state: LedgerState) -> &'static str {
    match state {
        LedgerState::Open => "open",
        LedgerState::InRecovery => "in-recovery",
        LedgerState::Closed(_) => "closed",
    }
}

/// Entries read at once. Each has up to 5 MiB, and how large they are is not known before they are read.
const READ_ENTRIES: u64 = 8;
