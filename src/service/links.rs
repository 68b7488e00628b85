//! Topics on their way to remotes: why they do not move, and moving their cursors by hand.

use std::sync::Arc;

use futures::{FutureExt, StreamExt, stream};
use georepl::cursor::{ManagedCursor, ManagedLedger, Offset, Position, StartAt};
use georepl::replicator::{Change, EmbeddedTopic, Reason, Replicator, StopReason, Wake, Why};
use georepl::storage::EntryId;

use super::Host;
use super::lanes::Claimed;
use super::stops::{self, Stop};
use super::topics::guard;
use super::words::{Consent, Link, Move, Moved, Run};
use crate::exit::{Exit, Failure};

/// The cursor of a topic for a remote has Pulsar's name.
fn cursor_name(remote: &str) -> String {
    format!("{CURSOR_PREFIX}{remote}")
}

/// The remote whose cursor this is; none for other cursors.
pub(super) fn remote_of(cursor: &str) -> Option<&str> {
    cursor.strip_prefix(CURSOR_PREFIX)
}

const CURSOR_PREFIX: &str = "pulsar.repl.";

/// Why each of these topics, or all, does not get on to its remotes.
pub(super) async fn why(host: &Arc<Host>, topics: Vec<String>) -> Result<Vec<Link>, Failure> {
    let topics = chosen(host, topics).await?;
    Ok(of_each(topics, |name| links(host, name)).await.into_iter().flatten().collect())
}

async fn links(host: &Host, name: String) -> Vec<Link> {
    let topic = match host.topic(&name).await {
        Ok(topic) => topic,
        Err(failure) => return vec![unknown(name, None, failure)],
    };
    let mut links = Vec::new();
    for cursor in topic.ledger().cursors() {
        if let Some(remote) = remote_of(&cursor) {
            let link = link(host, &topic, remote).await;
            let failed = |failure| unknown(name.clone(), Some(remote.to_owned()), failure);
            links.push(link.unwrap_or_else(failed));
        }
    }
    links
}

/// What cannot be told, and why. The others are told all the same.
fn unknown(topic: String, remote: Option<String>, failure: Failure) -> Link {
    Link {
        topic,
        remote,
        backlog: None,
        reason: "unknown".to_owned(),
        since_seconds: 0.0,
        why: failure.message,
        stuck: true,
        stopped: None,
    }
}

/// The topics that were named, or all.
pub(super) async fn chosen(host: &Host, topics: Vec<String>) -> Result<Vec<String>, Failure> {
    match topics.is_empty() {
        true => host.region.topics().await.map_err(Failure::failed),
        false => Ok(topics),
    }
}

/// Asks something of each topic, in their order. Some are asked at once, so that one that takes long holds up no more
/// than its place, and those that have to be opened share the syncs of the disk.
pub(super) async fn of_each<F: Future>(
    topics: Vec<String>,
    ask: impl Fn(String) -> F,
) -> Vec<F::Output> {
    let asked = topics.into_iter().enumerate();
    let asked = asked.map(|(place, topic)| ask(topic).map(move |told| (place, told)));
    let mut told: Vec<_> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
    told.sort_unstable_by_key(|(place, _)| *place);
    told.into_iter().map(|(_, told)| told).collect()
}

/// Topics that are asked at once.
const AT_ONCE: usize = 32;

async fn link(host: &Host, topic: &EmbeddedTopic, remote: &str) -> Result<Link, Failure> {
    let name = topic.ledger().name().to_owned();
    if let Some(replicator) = host.lanes.running(&name, remote) {
        let why = replicator.why();
        return Ok(Link {
            topic: name,
            remote: Some(remote.to_owned()),
            backlog: Some(why.backlog),
            reason: why.reason.name().to_owned(),
            since_seconds: why.since.as_secs_f64(),
            stuck: needs_operator(&why) || is_full(&why),
            why: in_words(&why),
            stopped: None,
        });
    }
    let backlog = open_cursor(topic.ledger(), remote).await?.backlog();
    let stop = Stop::last(topic.ledger(), remote).await;
    let ago = stop.as_ref().map(Stop::ago).unwrap_or_default();
    let last = stop.as_ref().map_or_else(String::new, |Stop { why, .. }| {
        format!("; the last one stopped {} ago and said: {why}", stops::in_words(ago))
    });
    let from = host.directory().display();
    let entries = if backlog == 1 { "entry" } else { "entries" };
    let why = format!(
        "{backlog} {entries} behind: no replicator runs{last}; start georepl replicate --from {from} \
         --to <directory of {remote}> {name}"
    );
    Ok(Link {
        topic: name,
        remote: Some(remote.to_owned()),
        backlog: Some(backlog),
        reason: "not-running".to_owned(),
        since_seconds: ago.as_secs_f64(),
        // What either side has lost shows without a backlog as well.
        stuck: backlog > 0 || stop.is_some(),
        why,
        stopped: stop.map(|stop| stop.why),
    })
}

/// Why a topic does not get on, and where to look if it is the remote that takes no more.
pub(super) fn in_words(why: &Why) -> String {
    match is_full(why) {
        true => format!(
            "{why}; at the remote, georepl status shows which cursors of its topic have a backlog"
        ),
        false => why.to_string(),
    }
}

/// Whether somebody has to act at the remote, who reads there or gives it room.
fn is_full(why: &Why) -> bool {
    matches!(why.reason, Reason::RemoteNotWritable { .. })
}

/// Whether somebody has to act. What a remote or a source has lost shows without a backlog as well.
pub(super) fn needs_operator(why: &Why) -> bool {
    let meant = matches!(
        &why.reason,
        Reason::Stopped(reason) if reason.may_restart() || *reason == StopReason::Drained
    );
    why.wake == Wake::Operator && (why.backlog > 0 || !meant)
}

pub(super) async fn open_cursor(
    ledger: &ManagedLedger,
    remote: &str,
) -> Result<Arc<ManagedCursor>, Failure> {
    let cursor = ManagedCursor::open(ledger, &cursor_name(remote), StartAt::Earliest).await;
    cursor.map_err(Failure::failed)
}

/// The cursor of a topic for a remote that it was replicated to before.
pub(super) async fn existing_cursor(
    host: &Host,
    topic: &str,
    remote: &str,
) -> Result<Arc<ManagedCursor>, Failure> {
    let log = host.topic(topic).await?;
    if !log.ledger().cursors().contains(&cursor_name(remote)) {
        let message = format!("{topic} was never replicated to {remote}; see georepl status");
        return Err(Failure::failed(message));
    }
    open_cursor(log.ledger(), remote).await
}

/// Moves the cursor of a remote, or says what that would do.
pub(super) async fn moved(
    host: &Arc<Host>,
    name: String,
    remote: String,
    how: Move,
    run: Run,
    consent: Consent,
) -> Result<Moved, Failure> {
    // Before the cursor is opened, so that it is not one that is just being closed.
    let claimed = host.lanes.claim(&name, &remote)?;
    let cursor = existing_cursor(host, &name, &remote).await?;
    let mut report = plan(&cursor, how)?;
    if run == Run::Real {
        guard_move(&report, how, consent)?;
        match &claimed {
            Claimed::Running(replicator) => order(replicator, how).await?,
            Claimed::Free(_) => {
                carry_out(&cursor, how).await?;
                // Somebody has decided about it.
                stops::note(cursor.ledger(), &remote, None).await;
            }
        }
        report.done = true;
        report.backlog = cursor.backlog();
        let Moved { passed_over, sent_again, .. } = report;
        tracing::warn!(
            topic = name,
            remote,
            passed_over,
            sent_again,
            "the cursor was moved by hand"
        );
    }
    Ok(Moved { topic: name, remote, ..report })
}

/// What a move would do.
fn plan(cursor: &ManagedCursor, how: Move) -> Result<Moved, Failure> {
    let (ledger, mark_delete) = (cursor.ledger(), cursor.mark_delete_offset());
    let (end, backlog) = (ledger.end(), cursor.backlog());
    let (passed_over, sent_again, left) = match how {
        Move::Skip(entries) => (entries.min(backlog), 0, backlog - entries.min(backlog)),
        Move::Clear => (backlog, 0, 0),
        Move::Seek(to) => {
            let to = match to.at() {
                StartAt::Earliest => ledger.start(),
                StartAt::Latest => end,
                StartAt::Position(at) => offset_of(ledger, at)?,
            };
            // Single entries that are acknowledged further on count as passed over, which is at most too many.
            (to.since(mark_delete).min(backlog), mark_delete.since(to), end.since(to))
        }
    };
    let (topic, remote) = (String::new(), String::new());
    Ok(Moved { topic, remote, done: false, passed_over, sent_again, backlog: left })
}

/// Where an entry is, or where the one is that follows the entry before it: in another ledger it has another number.
pub(super) fn offset_of(ledger: &ManagedLedger, at: Position) -> Result<Offset, Failure> {
    let behind = |entry| Some(ledger.offset_of(Position::new(at.ledger, EntryId(entry)))?.plus(1));
    let before = at.entry.get().checked_sub(1);
    ledger.offset_of(at).or_else(|| before.and_then(behind)).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("topic {} has no entry {at}", ledger.name()))
    })
}

/// Refuses what would repeat or lose something, unless it is meant.
fn guard_move(report: &Moved, how: Move, consent: Consent) -> Result<(), Failure> {
    let Moved { passed_over, sent_again, .. } = report;
    match how {
        Move::Seek(_) | Move::Clear if *sent_again > 0 => {
            guard(consent, || format!("{sent_again} entries would be sent again"))
        }
        Move::Seek(_) | Move::Clear if *passed_over > 0 => {
            guard(consent, || format!("{passed_over} entries would not be replicated"))
        }
        // It was said how many, or there are none.
        Move::Skip(_) | Move::Seek(_) | Move::Clear => Ok(()),
    }
}

/// Lets the replicator that runs do it.
async fn order(replicator: &Replicator, how: Move) -> Result<(), Failure> {
    match how {
        Move::Skip(entries) => replicator.skip(entries).await,
        Move::Clear => replicator.clear().await,
        Move::Seek(to) => replicator.seek(to.at()).await,
    }
    .map(drop)
    .map_err(Failure::failed)
}

/// Does it where no replicator runs.
async fn carry_out(cursor: &ManagedCursor, how: Move) -> Result<(), Failure> {
    match how {
        Move::Skip(entries) => cursor.skip(entries).await.map(drop),
        Move::Clear => cursor.clear_backlog().await.map(drop),
        Move::Seek(to) => {
            let to = to.at();
            // Positions that are sent again must not be taken for duplicates.
            let seek = Change::seek(to, &cursor.progress());
            cursor.reset(to, |progress| seek.apply(progress)).await.map(drop)
        }
    }
    .map_err(Failure::failed)
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn topic_that_takes_long_holds_up_nothing_but_its_own_place() {
        let names: Vec<_> = (0..5 * AT_ONCE).map(|n| n.to_string()).collect();
        let (last, asked) = (names.last().expect("there are some").clone(), Notify::new());
        let told = of_each(names.clone(), async |name| {
            match &name {
                first if *first == names[0] => asked.notified().await,
                name if *name == last => asked.notify_one(),
                _ => {}
            }
            name
        });
        assert_eq!(told.now_or_never(), Some(names.clone()), "in their order");
    }
}
