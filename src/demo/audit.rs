//! What the bookies of both regions hold, compared entry by entry.
//!
//! The audit trusts no counter of what ran before. The topic's record in the metadata store names
//! its ledgers, new read handles open them, every entry is read, and the sequences of message number
//! and content are compared. What divides them into acknowledged and not is given: mark-delete.

use std::collections::HashMap;
use std::fmt;

use georepl::Region;
use georepl::cursor::{ListedLedger, Position};
use georepl::replicator::message::{Frame, FrameError};
use georepl::storage::{EntryId, LedgerEntry, LedgerId, LedgerReader, OpenError};
use hdrhistogram::Histogram;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::ledgers;

/// What was found in one topic.
#[derive(Debug, Serialize)]
pub(crate) struct Audit {
    /// Entries at the source.
    pub(crate) entries: u64,
    /// Their payload.
    pub(crate) bytes: u64,
    /// Over the number and the payload's digest of each message at the source, in order.
    pub(crate) source_sha256: String,
    /// The same at the target.
    pub(crate) target_sha256: String,
    /// Between the two brokers' timestamps.
    pub(crate) lag_p50_ms: u64,
    pub(crate) lag_p99_ms: u64,
    /// Entries after mark-delete, by the entries read.
    pub(crate) backlog: u64,
    /// Entries up to mark-delete that are missing at the target.
    pub(crate) ack_holes: u64,
    pub(crate) missing: u64,
    pub(crate) repeated: u64,
    pub(crate) out_of_order: u64,
    pub(crate) unreadable: u64,
    /// At the target and not at the source.
    pub(crate) foreign: u64,
    /// The first of them, in words.
    pub(crate) findings: Vec<String>,
}

/// The audit could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuditError {
    #[error("the audit does not find the ledgers: {0}")]
    Ledgers(#[from] ledgers::Error),
    #[error("the audit cannot open ledger {ledger} of {region}: {error}")]
    Open { region: String, ledger: LedgerId, error: OpenError },
}

impl Audit {
    /// Audits a topic that is closed in both regions. `published` messages, numbered from 0, must
    /// be at the source; `mark_delete` is its cursor's.
    pub(crate) async fn run(
        source: &Region,
        target: &Region,
        topic: &str,
        published: u64,
        mark_delete: Option<Position>,
    ) -> Result<Self, AuditError> {
        let from = Copy::read(source, topic).await?;
        let to = Copy::read(target, topic).await?;
        let acknowledged = from.messages.partition_point(|at| Some(at.position) <= mark_delete);
        let mut audit = Self {
            entries: from.messages.len() as u64,
            bytes: from.bytes,
            source_sha256: from.sha256(),
            target_sha256: to.sha256(),
            lag_p50_ms: 0,
            lag_p99_ms: 0,
            backlog: (from.messages.len() - acknowledged) as u64,
            ack_holes: 0,
            missing: 0,
            repeated: 0,
            out_of_order: 0,
            unreadable: 0,
            foreign: 0,
            findings: Vec::new(),
        };
        for (region, copy) in [(source, &from), (target, &to)] {
            for (position, why) in &copy.unreadable {
                audit.unreadable += 1;
                audit.note(format_args!("{position} of {} is unreadable: {why}", region.name()));
            }
        }
        audit.check_source(source, &from, published);
        audit.compare(target, &from, &to, acknowledged);
        if audit.backlog > 0 {
            let last = from.messages.last().map(|message| message.position);
            let (mark_delete, last) = (Shown(mark_delete), Shown(last));
            audit.note(format_args!(
                "unacknowledged: mark-delete is {mark_delete}, the last entry {last}"
            ));
        }
        Ok(audit)
    }

    /// Nothing missing, repeated, out of order or unacknowledged.
    pub(crate) fn passed(&self) -> bool {
        let Self {
            missing, repeated, out_of_order, unreadable, foreign, backlog, ack_holes, ..
        } = *self;
        [missing, repeated, out_of_order, unreadable, foreign, backlog, ack_holes]
            .iter()
            .all(|n| *n == 0)
            && self.source_sha256 == self.target_sha256
    }

    fn check_source(&mut self, region: &Region, copy: &Copy, published: u64) {
        let mut expected = 0;
        for message in &copy.messages {
            let (number, position) = (message.id.number, message.position);
            if number < expected {
                self.repeated += 1;
                let region = region.name();
                self.note(format_args!("message {number} is again in {region}, at {position}"));
                continue;
            }
            self.lost_at_source(region, expected..number);
            expected = number + 1;
        }
        self.lost_at_source(region, expected..published);
    }

    fn lost_at_source(&mut self, region: &Region, lost: std::ops::Range<u64>) {
        if !lost.is_empty() {
            self.missing += lost.end - lost.start;
            let (first, last, region) = (lost.start, lost.end - 1, region.name());
            self.note(format_args!("messages {first} to {last} are missing in {region}"));
        }
    }

    fn compare(&mut self, target: &Region, from: &Copy, to: &Copy, acknowledged: usize) {
        let target = target.name();
        let places: HashMap<_, _> =
            from.messages.iter().enumerate().map(|(place, message)| (message.id, place)).collect();
        let mut seen: Vec<Option<Position>> = vec![None; from.messages.len()];
        let mut lags = Histogram::<u64>::new_with_bounds(1, LAG_MS_MAX, 3)
            .expect("the bounds are valid for three digits");
        let mut furthest = None;
        for message in &to.messages {
            let position = message.position;
            let Some(&place) = places.get(&message.id) else {
                self.foreign += 1;
                self.note(format_args!("{position} of {target} is nowhere at the source"));
                continue;
            };
            let original = &from.messages[place];
            let source = original.position;
            if let Some(first) = seen[place] {
                self.repeated += 1;
                self.note(format_args!("{source} is twice in {target}, at {first} and {position}"));
                continue;
            }
            seen[place] = Some(position);
            if let (Some(there), Some(here)) = (message.at_ms, original.at_ms) {
                lags.saturating_record(there.saturating_sub(here));
            }
            if Some(place) < furthest {
                self.out_of_order += 1;
                self.note(format_args!("{source} is out of order in {target}, at {position}"));
            }
            furthest = furthest.max(Some(place));
        }
        for (place, (message, seen)) in from.messages.iter().zip(&seen).enumerate() {
            if seen.is_none() {
                self.missing += 1;
                self.ack_holes += u64::from(place < acknowledged);
                self.note(format_args!("{} is missing in {target}", message.position));
            }
        }
        self.lag_p50_ms = lags.value_at_quantile(0.5);
        self.lag_p99_ms = lags.value_at_quantile(0.99);
    }

    fn note(&mut self, finding: fmt::Arguments<'_>) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding.to_string());
        }
    }
}

/// What tells messages apart: equal payloads are published under different numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct MessageId {
    number: u64,
    payload: [u8; 32],
}

struct Message {
    position: Position,
    id: MessageId,
    /// When the broker stored it, since 1970.
    at_ms: Option<u64>,
}

/// One region's copy of a topic.
#[derive(Default)]
struct Copy {
    messages: Vec<Message>,
    unreadable: Vec<(Position, String)>,
    bytes: u64,
}

impl Copy {
    async fn read(region: &Region, topic: &str) -> Result<Self, AuditError> {
        let mut copy = Self::default();
        for ListedLedger { ledger, .. } in ledgers::listed(region, topic).await? {
            let opened = region.client().open(ledger, &region.ledgers().password).await;
            let reader = opened.map_err(|error| AuditError::Open {
                region: region.name().to_string(),
                ledger,
                error,
            })?;
            copy.read_ledger(&reader).await;
        }
        Ok(copy)
    }

    async fn read_ledger(&mut self, reader: &LedgerReader) {
        let entries = reader.last_add_confirmed().map_or(0, |last| last.get() + 1);
        let mut first = 0;
        while first < entries {
            let last = (first + READ_ENTRIES).min(entries) - 1;
            match reader.read(EntryId(first), EntryId(last)).await {
                Ok(read) => read.into_iter().for_each(|entry| self.take(reader.id(), entry)),
                // One entry fails the whole range: find out which.
                Err(_) => self.read_one_by_one(reader, first..=last).await,
            }
            first = last + 1;
        }
    }

    async fn read_one_by_one(
        &mut self,
        reader: &LedgerReader,
        entries: std::ops::RangeInclusive<u64>,
    ) {
        for entry in entries.map(EntryId) {
            match reader.read(entry, entry).await {
                Ok(read) => read.into_iter().for_each(|entry| self.take(reader.id(), entry)),
                Err(error) => {
                    let position = Position::new(reader.id(), entry);
                    self.unreadable.push((position, error.to_string()));
                }
            }
        }
    }

    fn take(&mut self, ledger: LedgerId, entry: LedgerEntry) {
        let position = Position::new(ledger, entry.id);
        match message(position, entry) {
            Ok((message, bytes)) => {
                self.bytes += bytes;
                self.messages.push(message);
            }
            Err(error) => self.unreadable.push((position, error.to_string())),
        }
    }

    fn sha256(&self) -> String {
        let mut sequence = Sha256::new();
        for MessageId { number, payload } in self.messages.iter().map(|message| message.id) {
            sequence.update(number.to_be_bytes());
            sequence.update(payload);
        }
        sequence.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn message(position: Position, entry: LedgerEntry) -> Result<(Message, u64), FrameError> {
    let frame = Frame::parse(entry.payload)?;
    frame.verify()?;
    let number = frame.metadata()?.sequence_id;
    let at_ms = frame.broker_entry_metadata()?.and_then(|broker| broker.broker_timestamp);
    let payload = frame.payload();
    let id = MessageId { number, payload: Sha256::digest(&payload).into() };
    Ok((Message { position, id, at_ms }, payload.len() as u64))
}

struct Shown(Option<Position>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(position) => position.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// Entries read at once. Large enough to spread the cost of a call; in memory they are shared.
const READ_ENTRIES: u64 = 256;
/// Findings kept in words. All are counted.
const FINDINGS_MAX: usize = 20;
/// Longer lags count as this one, an hour.
const LAG_MS_MAX: u64 = 3_600_000;

#[cfg(test)]
mod tests;
