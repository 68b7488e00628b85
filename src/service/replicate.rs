//! Replicating topics to another region.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use georepl::cursor::ManagedCursor;
use georepl::replicator::{Poison, Reason, Replicator, ReplicatorConfig, State, StopReason};

use super::host::Host;
use super::lanes::{Claim, Claimed};
use super::line::{Inbox, Outbox};
use super::links::{self, open_cursor};
use super::target::Target;
use super::words::{Lane, Replicated, Reply, Until};
use crate::exit::{Exit, Failure};

/// Runs the replicators of topics until everything is replicated, or until told to stop.
pub(super) async fn run(
    host: &Arc<Host>,
    to: PathBuf,
    topics: Vec<String>,
    until: Until,
    poison: Poison,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<Replicated, Failure> {
    // Everything that may be refused comes before the other region is touched.
    for topic in &topics {
        host.topic(topic).await?;
    }
    let target = Arc::new(Target::reach(to, host.region.name()).await?);
    let mut running = Vec::new();
    let outcome = async {
        for topic in topics {
            running.push(start(host, &target, topic, poison).await?);
        }
        watch(host, &target, &running, until, inbox, outbox).await
    };
    let outcome = outcome.await;
    let (mut lanes, mut kept) = (Vec::new(), Ok(()));
    join_all(running.iter().map(|one| one.replicator.shutdown(SHUTDOWN))).await;
    // A lane is free for the next when its cursor is closed.
    for Running { topic, cursor, replicator, _claim } in running {
        lanes.push(lane(&topic, &replicator));
        // To the end for all of them, whatever fails for one.
        if let Err(error) = cursor.close().await {
            let failed = Failure::failed(format!("{topic}: {error}"));
            kept = kept.and(Err(failed));
        }
    }
    let closed = target.close().await;
    outcome.and(kept).and(closed)?;
    let (from, to) = (host.region.name().to_string(), target.name.clone());
    Ok(Replicated { from, to, topics: lanes })
}

/// One topic on its way.
struct Running {
    topic: String,
    cursor: Arc<ManagedCursor>,
    replicator: Replicator,
    _claim: Claim,
}

async fn start(
    host: &Arc<Host>,
    target: &Arc<Target>,
    topic: String,
    poison: Poison,
) -> Result<Running, Failure> {
    let claim = match host.lanes.claim(&topic, &target.name)? {
        Claimed::Free(claim) => claim,
        Claimed::Running(_) => {
            let message = format!("{topic} is being replicated to {} already", target.name);
            return Err(Failure::new(Exit::Refused, message));
        }
    };
    let log = host.topic(&topic).await?;
    let cursor = open_cursor(log.ledger(), &target.name).await?;
    let from = host.region.name().clone();
    let mut config = ReplicatorConfig::new(from, target.name.as_str(), topic.as_str());
    config.poison = poison;
    let replicator = Replicator::new(config, cursor.clone(), target.clone()).await;
    let replicator = replicator.map_err(Failure::failed)?;
    replicator.start();
    claim.run(replicator.clone());
    Ok(Running { topic, cursor, replicator, _claim: claim })
}

/// Tells how far the replicators have come until they are to stop.
async fn watch(
    host: &Arc<Host>,
    target: &Target,
    running: &[Running],
    until: Until,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Failure> {
    let drained = async {
        for Running { topic, replicator, .. } in running {
            let drained = replicator.drained().await;
            drained.map_err(|ended| Failure::failed(format!("{topic}: {ended}")))?;
            answered(topic, replicator).await?;
        }
        Ok(())
    };
    let mut drained = std::pin::pin!(drained);
    loop {
        tokio::select! {
            result = &mut drained, if until == Until::End => return result,
            () = inbox.end() => return Ok(()),
            () = host.closing() => return Err(host.ending("run the command again")),
            () = tokio::time::sleep(PROGRESS) => {}
        }
        for Running { topic, replicator, .. } in running {
            let why = replicator.why();
            // With others that follow, one that waits for an operator says so in the progress, and in `why`.
            let alone = until == Until::End || running.len() == 1;
            if alone && links::needs_operator(&why) {
                return Err(Failure::failed(format!("{topic}: {why}")));
            }
        }
        let progress = Replicated {
            from: host.region.name().to_string(),
            to: target.name.clone(),
            topics: running.iter().map(|it| lane(&it.topic, &it.replicator)).collect(),
        };
        let progress = serde_json::to_value(progress).expect("a report of text and numbers");
        let told = outbox.word(&Reply::Progress(progress)).await;
        told.map_err(|error| Failure::new(Exit::Unreachable, error))?;
    }
}

/// Waits for the remote's first answer. What either side has lost shows in it, without a backlog too.
async fn answered(topic: &str, replicator: &Replicator) -> Result<(), Failure> {
    let mut state = replicator.watch();
    loop {
        let started = *state.borrow_and_update() == State::Started;
        let why = replicator.why();
        if links::needs_operator(&why) {
            return Err(Failure::failed(format!("{topic}: {why}")));
        }
        if started || why.reason == Reason::Stopped(StopReason::Drained) {
            return Ok(());
        }
        state.changed().await.expect("it is not dropped before its replicator");
    }
}

fn lane(topic: &str, replicator: &Replicator) -> Lane {
    let (accounting, why) = (replicator.accounting(), replicator.why());
    Lane {
        topic: topic.to_owned(),
        published: accounting.published,
        duplicate: accounting.duplicate,
        filtered: accounting.filtered(),
        rewinds: accounting.rewinds,
        backlog: why.backlog,
        why: links::text(&why),
    }
}

/// What was sent is answered by then, or settled by the next start.
const SHUTDOWN: Duration = Duration::from_secs(10);
const PROGRESS: Duration = Duration::from_millis(200);
