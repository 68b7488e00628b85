//! The state of a region and its topics, and what ends a topic.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use georepl::cursor::{Expired, ManagedCursor, StartAt};
use georepl::storage::bookie_rules::Mode;

use super::Host;
use super::links::{chosen, of_each, remote_of};
use super::words::{
    BookieStatus, Bound, Changed, Consent, CursorStatus, Internal, InternalOrError, Retained, Run,
    Status, TopicStatus,
};
use crate::exit::{Exit, Failure};

/// How the region is, and these topics, or all.
pub(super) async fn status(host: &Arc<Host>, topics: Vec<String>) -> Result<Status, Failure> {
    let region = &host.region;
    let serving = region
        .registered()
        .iter()
        .map(|bookie| BookieStatus {
            bookie: bookie.id.to_string(),
            state: match bookie.mode {
                Mode::Writable => "writable".to_owned(),
                Mode::ReadOnly => "read-only".to_owned(),
            },
            reason: None,
        })
        .collect::<Vec<_>>();
    let missing = region.missing().iter().map(|missing| BookieStatus {
        bookie: missing.bookie.to_string(),
        state: "missing".to_owned(),
        reason: Some(missing.error.to_string()),
    });
    let failed = region.failed().into_iter().map(|bookie| BookieStatus {
        bookie: bookie.to_string(),
        state: "failed".to_owned(),
        reason: Some(
            "its disk failed, as the log of the process says; it is tried again".to_owned(),
        ),
    });
    let mut bookies: Vec<_> = serving.into_iter().chain(missing).chain(failed).collect();
    bookies.sort_by(|a, b| a.bookie.cmp(&b.bookie));
    let topics = chosen(host, topics).await?;
    let statuses = of_each(topics, |name| topic_status(host, name)).await;
    let healthy = bookies.iter().all(|bookie| bookie.state == "writable")
        && statuses.iter().all(|topic| HEALTHY.contains(&topic.state.as_str()))
        && statuses.iter().flat_map(|topic| &topic.cursors).all(|cursor| cursor.reason.is_none());
    Ok(Status {
        region: region.name().to_string(),
        process: std::process::id(),
        healthy,
        bookies,
        topics: statuses,
    })
}

const HEALTHY: [&str; 3] = ["LedgerOpened", "ClosingLedger", "Terminated"];

async fn topic_status(host: &Host, name: String) -> TopicStatus {
    let topic = match host.topic(&name).await {
        Ok(topic) => topic,
        Err(failure) => {
            return TopicStatus {
                topic: name,
                state: "Unopened".to_owned(),
                reason: Some(failure.message),
                entries: 0,
                bytes: 0,
                cursors: Vec::new(),
            };
        }
    };
    let mut cursors = Vec::new();
    for cursor in topic.ledger().cursors() {
        let remote = remote_of(&cursor);
        let replicating = remote.is_some_and(|remote| host.lanes.running(&name, remote).is_some());
        let opened = ManagedCursor::open(topic.ledger(), &cursor, StartAt::Earliest).await;
        let (mark_delete, backlog, reason) = match opened {
            Ok(opened) => (opened.mark_delete_position(), Some(opened.backlog()), None),
            Err(error) => (None, None, Some(error.to_string())),
        };
        let mark_delete = mark_delete.map(|at| at.to_string());
        cursors.push(CursorStatus { cursor, mark_delete, backlog, reason, replicating });
    }
    let stats = topic.ledger().internal_stats();
    TopicStatus {
        topic: name,
        state: stats.state,
        reason: topic.ledger().refusal().map(|refusal| refusal.to_string()),
        entries: stats.number_of_entries,
        bytes: stats.total_size,
        cursors,
    }
}

/// The state of a topic, in Pulsar's words.
pub(super) async fn internal(host: &Arc<Host>, name: String) -> Result<Internal, Failure> {
    let topic = host.topic(&name).await?;
    // Those that are open are among the stats.
    let (mut opened, mut unopened_cursors) = (Vec::new(), BTreeMap::new());
    for cursor in topic.ledger().cursors() {
        match ManagedCursor::open(topic.ledger(), &cursor, StartAt::Earliest).await {
            Ok(cursor) => opened.push(cursor),
            Err(error) => drop(unopened_cursors.insert(cursor, error.to_string())),
        }
    }
    Ok(Internal { topic: topic.ledger().internal_stats(), unopened_cursors })
}

/// The state of all topics.
pub(super) async fn all_internal(
    host: &Arc<Host>,
) -> Result<BTreeMap<String, InternalOrError>, Failure> {
    let topics = chosen(host, Vec::new()).await?;
    let states = of_each(topics, async |name: String| match internal(host, name.clone()).await {
        Ok(state) => (name, InternalOrError::Known(Box::new(state))),
        Err(Failure { message, .. }) => (name, InternalOrError::Unknown { error: message }),
    });
    Ok(states.await.into_iter().collect())
}

/// Deletes what every cursor has acknowledged and retention has let go.
pub(super) async fn trim(host: &Arc<Host>, name: String) -> Result<Changed, Failure> {
    let topic = host.topic(&name).await?;
    let ledgers = topic.ledger().trim().await.map_err(Failure::failed)?;
    Ok(Changed { topic: name, what: format!("deleted {ledgers} ledgers that nobody needs") })
}

/// What is to change about the retention of a topic.
pub(super) struct Retain {
    pub(super) seconds: Option<Bound>,
    pub(super) bytes: Option<Bound>,
}

/// Sets for how long a topic keeps what every cursor has acknowledged, or says it, or what it would mean.
pub(super) async fn retain(
    host: &Arc<Host>,
    name: String,
    Retain { seconds, bytes }: Retain,
    run: Run,
    consent: Consent,
) -> Result<Retained, Failure> {
    let topic = host.topic(&name).await?;
    let mut retention = topic.ledger().retention();
    if let Some(seconds) = seconds {
        retention.time = seconds.limit().map(Duration::from_secs);
    }
    if let Some(bytes) = bytes {
        retention.bytes = bytes.limit();
    }
    let Expired { ledgers, entries } = topic.ledger().expired(&retention);
    let done = run == Run::Real && (seconds.is_some() || bytes.is_some());
    if done {
        if entries > 0 {
            guard(consent, || format!("{entries} entries of {name} would be deleted"))?;
        }
        host.region.set_retention(&topic, retention).await.map_err(Failure::failed)?;
    }
    Ok(Retained {
        topic: name,
        seconds: retention.time.map(|time| time.as_secs()),
        bytes: retention.bytes,
        done,
        deleted_ledgers: ledgers,
        deleted_entries: entries,
    })
}

/// Ends a topic for ever.
pub(super) async fn terminate(
    host: &Arc<Host>,
    name: String,
    consent: Consent,
) -> Result<Changed, Failure> {
    let topic = host.topic(&name).await?;
    guard(consent, || format!("{name} would never take a message again"))?;
    let last = topic.ledger().terminate().await.map_err(Failure::failed)?;
    let what = match last {
        Some(last) => format!("terminated after {last}"),
        None => "terminated, and it is empty".to_owned(),
    };
    Ok(Changed { topic: name, what })
}

/// Deletes a topic with all that it holds.
pub(super) async fn delete(
    host: &Arc<Host>,
    name: String,
    consent: Consent,
) -> Result<Changed, Failure> {
    let topic = host.topic(&name).await?;
    let entries = topic.ledger().end().since(topic.ledger().start());
    guard(consent, || format!("{name} has {entries} entries, which would be lost"))?;
    let _claim = host.lanes.claim_all(&name)?;
    host.region.delete_topic(&topic).await.map_err(Failure::failed)?;
    Ok(Changed { topic: name, what: format!("deleted with {entries} entries") })
}

/// Refuses what cannot be undone, unless it is meant.
pub(super) fn guard(consent: Consent, what: impl FnOnce() -> String) -> Result<(), Failure> {
    match consent {
        Consent::Given => Ok(()),
        Consent::Missing => {
            Err(Failure::new(Exit::Refused, format!("{}; give --yes if that is meant", what())))
        }
    }
}
