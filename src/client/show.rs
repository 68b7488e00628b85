//! Reports for people. JSON needs none of this.

use std::collections::BTreeMap;
use std::io::{self, Write};

use comfy_table::Table;
use comfy_table::presets::ASCII_BORDERS_ONLY_CONDENSED;
use serde_json::Value;

use super::Found;
use super::words::{
    Changed, Internal, InternalOrError, KeptEntry, LedgerCheck, LedgerEnd, LedgerRecord, Link,
    Moved, Published, Quorums, Renewed, Replicated, Retained, Settle, Settled, Status,
};

type Shown = io::Result<Found>;

/// One line on how far a command has come.
pub(super) fn progress(how_far: &Value) -> String {
    if let Some(messages) = how_far["messages"].as_u64() {
        return format!("{messages} messages published");
    }
    if let Some(checked) = how_far["checked"].as_u64() {
        return format!("{checked} of {} ledgers checked", how_far["of"]);
    }
    let lanes = how_far["topics"].as_array().into_iter().flatten();
    let lanes = lanes.map(|lane| {
        let topic = lane["topic"].as_str().unwrap_or_default();
        format!("{topic}: {}", lane["why"].as_str().unwrap_or_default())
    });
    lanes.collect::<Vec<_>>().join("; ")
}

pub(super) fn published(out: &mut dyn Write, report: &Published) -> Shown {
    let Published { topic, messages, bytes, first, last, .. } = report;
    match (first, last) {
        (Some(first), Some(last)) => writeln!(
            out,
            "published {messages} messages with {bytes} bytes to {topic}, from {first} to {last}"
        )?,
        _ => writeln!(out, "published nothing to {topic}: there was no line")?,
    }
    Ok(Found::Healthy)
}

pub(super) fn replicated(out: &mut dyn Write, report: &Replicated) -> Shown {
    let Replicated { from, to, topics } = report;
    writeln!(out, "from {from} to {to}:")?;
    let mut table =
        table(&["topic", "published", "settled earlier", "filtered", "rewinds", "backlog"]);
    for lane in topics {
        let numbers = [lane.published, lane.duplicate, lane.filtered, lane.rewinds, lane.backlog];
        table.add_row([lane.topic.clone()].into_iter().chain(numbers.map(|n| n.to_string())));
    }
    writeln!(out, "{table}")?;
    let mut found = Found::Healthy;
    for lane in topics {
        if let Some(reason) = &lane.failed {
            writeln!(out, "{} is not replicated: {reason}", lane.topic)?;
            found = Found::Unhealthy;
        } else if lane.backlog > 0 {
            writeln!(out, "{}: {}", lane.topic, lane.why)?;
        }
    }
    Ok(found)
}

pub(super) fn status(out: &mut dyn Write, report: &Status) -> Shown {
    let Status { region, process, healthy, bookies, topics } = report;
    writeln!(out, "region {region}, held by process {process}")?;
    let mut shown = table(&["bookie", "state", "reason"]);
    for bookie in bookies {
        let reason = bookie.reason.clone().unwrap_or_default();
        shown.add_row([&bookie.bookie, &bookie.state, &reason]);
    }
    writeln!(out, "{shown}")?;
    let mut shown =
        table(&["topic", "state", "entries", "bytes", "cursor", "mark-delete", "backlog"]);
    for topic in topics {
        let state = with_reason(&topic.state, topic.reason.as_deref());
        let mut first =
            [topic.topic.clone(), state, topic.entries.to_string(), topic.bytes.to_string()];
        if topic.cursors.is_empty() {
            shown.add_row(first.clone());
        }
        for cursor in &topic.cursors {
            let mark_delete = cursor.mark_delete.clone().unwrap_or_else(|| "none".to_owned());
            // In its place, why it is not known.
            let backlog = cursor.backlog.map(|backlog| backlog.to_string());
            let backlog = backlog.or_else(|| cursor.reason.clone()).unwrap_or_default();
            let rest = [cursor.cursor.clone(), mark_delete, backlog];
            shown.add_row(first.clone().into_iter().chain(rest));
            // Said once.
            first = Default::default();
        }
    }
    writeln!(out, "{shown}")?;
    Ok(if *healthy { Found::Healthy } else { Found::Unhealthy })
}

pub(super) fn why(out: &mut dyn Write, links: &Vec<Link>) -> Shown {
    if links.is_empty() {
        writeln!(out, "no topic is replicated; see georepl replicate --help")?;
    }
    for Link { topic, remote, why, .. } in links {
        match remote {
            Some(remote) => writeln!(out, "{topic} to {remote}: {why}")?,
            None => writeln!(out, "{topic}: {why}")?,
        }
    }
    let stuck = links.iter().any(|link| link.stuck);
    Ok(if stuck { Found::Unhealthy } else { Found::Healthy })
}

pub(super) fn internal(_: &mut dyn Write, report: &Internal) -> Shown {
    Ok(if report.unopened_cursors.is_empty() { Found::Healthy } else { Found::Unhealthy })
}

pub(super) fn all_internal(_: &mut dyn Write, all: &BTreeMap<String, InternalOrError>) -> Shown {
    let bad = all.values().any(|one| match one {
        InternalOrError::Known(state) => !state.unopened_cursors.is_empty(),
        InternalOrError::Unknown { .. } => true,
    });
    Ok(if bad { Found::Unhealthy } else { Found::Healthy })
}

pub(super) fn ledgers(out: &mut dyn Write, records: &Vec<LedgerRecord>) -> Shown {
    let mut table = table(&["ledger", "state", "entries", "bytes", "fragments", "belongs to"]);
    for record in records {
        let number = |number: Option<u64>| number.map_or_else(String::new, |n| n.to_string());
        let cursor = record.custom.get("pulsar/cursor").map(|name| format!(", cursor {name}"));
        let owner = record.custom.get("pulsar/managed-ledger").cloned().unwrap_or_default();
        table.add_row([
            record.ledger.to_string(),
            with_reason(&record.state, record.reason.as_deref()),
            number(record.entries),
            number(record.bytes),
            record.ensembles.len().to_string(),
            owner + &cursor.unwrap_or_default(),
        ]);
    }
    writeln!(out, "{table}")?;
    let bad = records.iter().any(|record| record.reason.is_some());
    Ok(if bad { Found::Unhealthy } else { Found::Healthy })
}

/// A state, and what is wrong with it.
fn with_reason(state: &str, reason: Option<&str>) -> String {
    reason.map_or_else(|| state.to_owned(), |reason| format!("{state}: {reason}"))
}

pub(super) fn ledger(out: &mut dyn Write, record: &LedgerRecord) -> Shown {
    let LedgerRecord { ledger, state, quorums, .. } = record;
    writeln!(out, "ledger {ledger}, {state}")?;
    if let Some(Quorums { ensemble, write, ack }) = quorums {
        writeln!(out, "ensemble of {ensemble}, write quorum {write}, ack quorum {ack}")?;
    }
    if let (Some(entries), Some(bytes)) = (record.entries, record.bytes) {
        writeln!(out, "{entries} entries with {bytes} bytes")?;
    }
    for (key, value) in &record.custom {
        writeln!(out, "{key}: {value}")?;
    }
    let mut table = table(&["from entry", "bookies"]);
    for ensemble in &record.ensembles {
        table.add_row([ensemble.first_entry.to_string(), ensemble.bookies.join(", ")]);
    }
    writeln!(out, "{table}")?;
    Ok(Found::Healthy)
}

pub(super) fn checks(out: &mut dyn Write, checks: &Vec<LedgerCheck>) -> Shown {
    let mut table =
        table(&["ledger", "state", "entries", "under-replicated", "copies not present"]);
    for check in checks {
        table.add_row([
            check.ledger.to_string(),
            with_reason(&check.state, check.reason.as_deref()),
            check.entries.to_string(),
            check.under_replicated.to_string(),
            check.findings.join("; "),
        ]);
    }
    writeln!(out, "{table}")?;
    let bad = checks.iter().any(|check| check.under_replicated > 0 || check.reason.is_some());
    Ok(if bad { Found::Unhealthy } else { Found::Healthy })
}

pub(super) fn recovered(out: &mut dyn Write, end: &LedgerEnd) -> Shown {
    writeln!(out, "ledger {} is closed with {} entries", end.ledger, end.entries)?;
    Ok(Found::Healthy)
}

pub(super) fn renewed(out: &mut dyn Write, report: &Renewed) -> Shown {
    let Renewed { bookie, next } = report;
    writeln!(out, "bookie {bookie} begins again, empty, with the next command; now run {next}")?;
    Ok(Found::Healthy)
}

pub(super) fn topics(out: &mut dyn Write, topics: &[String]) -> Shown {
    topics.iter().try_for_each(|topic| writeln!(out, "{topic}"))?;
    Ok(Found::Healthy)
}

pub(super) fn moved(out: &mut dyn Write, report: &Moved) -> Shown {
    let Moved { topic, remote, done, passed_over, sent_again, backlog } = report;
    let would = if *done { "" } else { "would be " };
    writeln!(
        out,
        "{topic} to {remote}: {passed_over} entries {would}passed over, {sent_again} {would}sent again, \
         backlog {would}{backlog}"
    )?;
    Ok(Found::Healthy)
}

pub(super) fn retained(out: &mut dyn Write, report: &Retained) -> Shown {
    let Retained { topic, seconds, bytes, done, deleted_ledgers, deleted_entries } = report;
    let time = seconds.map_or_else(|| "for ever".to_owned(), |time| format!("for {time} s"));
    let bytes = bytes.map_or_else(String::new, |bytes| format!(", up to {bytes} bytes"));
    let deleted = if *done { "deleted" } else { "would be deleted" };
    writeln!(
        out,
        "{topic}: what every cursor has acknowledged stays {time}{bytes}; \
         {deleted_entries} entries in {deleted_ledgers} ledgers {deleted}"
    )?;
    Ok(Found::Healthy)
}

pub(super) fn quarantine(out: &mut dyn Write, entries: &[KeptEntry]) -> Shown {
    if entries.is_empty() {
        writeln!(out, "nothing lies in quarantine")?;
    }
    entries
        .iter()
        .try_for_each(|KeptEntry { position, state }| writeln!(out, "{position} {state}"))?;
    Ok(Found::Healthy)
}

pub(super) fn settled(out: &mut dyn Write, report: &Settled) -> Shown {
    let Settled { topic, remote, position, how, done } = report;
    let would = if *done { "" } else { "would be " };
    let what = match how {
        Settle::Release => "released, and is sent before anything else",
        Settle::Discard => "given up, and is never sent",
    };
    writeln!(out, "{topic} to {remote}: {position} {would}{what}")?;
    Ok(Found::Healthy)
}

pub(super) fn changed(out: &mut dyn Write, report: &Changed) -> Shown {
    writeln!(out, "{}: {}", report.topic, report.what)?;
    Ok(Found::Healthy)
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_BORDERS_ONLY_CONDENSED);
    table.set_header(header);
    table
}
