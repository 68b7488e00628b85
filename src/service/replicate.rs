//! Replicating topics to another region.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use georepl::Absent;
use georepl::cursor::{ManagedCursor, StartAt};
use georepl::replicator::{EmbeddedRemote, RemoteProducer, Replicator, ReplicatorConfig, Wake};

use super::host::{Attached, Host, attach};
use super::line::{self, Frame, Inbox, Outbox};
use super::links::{self, cursor_name};
use super::receive::SocketRemote;
use super::words::{Command, Lane, Name, Replicated, Reply, Request, Until, VERSION};
use crate::exit::{Exit, Failure};

/// Where topics go.
struct Target {
    name: String,
    remote: Arc<dyn RemoteProducer>,
    /// If this process holds it for the purpose.
    host: Option<Arc<Host>>,
}

/// Runs the replicators of topics until everything is replicated, or until told to stop.
pub(super) async fn run(
    host: &Arc<Host>,
    to: PathBuf,
    topics: Vec<String>,
    until: Until,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<Replicated, Failure> {
    let target = Target::reach(&to).await?;
    let mut running = Vec::new();
    let outcome = async {
        if *target.name == **host.region.name() {
            let message =
                format!("both regions are called {}; names tell clusters apart", target.name);
            return Err(Failure::new(Exit::Usage, message));
        }
        for topic in topics {
            running.push(start(host, &target, topic).await?);
        }
        watch(host, &target, &running, until, inbox, outbox).await
    };
    let outcome = outcome.await;
    let (mut lanes, mut kept) = (Vec::new(), Ok(()));
    for Running { topic, cursor, replicator } in &running {
        replicator.shutdown(SHUTDOWN).await;
        host.replicators.lock().remove(&(topic.clone(), target.name.clone()));
        lanes.push(lane(topic, replicator));
        // To the end for all of them, whatever fails for one.
        if let Err(error) = cursor.close().await {
            let failed = Failure::failed(format!("{topic}: {error}"));
            kept = kept.and(Err(failed));
        }
    }
    let closed = match &target.host {
        Some(host) => Box::pin(host.close()).await,
        None => Ok(()),
    };
    outcome.and(kept).and(closed)?;
    Ok(Replicated { from: host.region.name().to_string(), to: target.name, topics: lanes })
}

impl Target {
    /// Opens the region, or finds the process that holds it.
    async fn reach(to: &Path) -> Result<Self, Failure> {
        match Box::pin(attach(to, Absent::Create)).await? {
            Attached::Local(host) => {
                let name = host.region.name().to_string();
                let remote = Arc::new(EmbeddedRemote::new(host.region.clone()));
                Ok(Self { name, remote, host: Some(host) })
            }
            Attached::Remote(stream) => {
                let unreachable = |error| Failure::new(Exit::Unreachable, error);
                let request = Request { georepl: VERSION, command: Command::Name };
                let asked = line::ask(Box::new(stream), &request).await.map_err(unreachable)?;
                let (mut inbox, _outbox) = asked;
                while let Some(Frame::Word(word)) = inbox.next().await.map_err(unreachable)? {
                    match line::parse(&word).map_err(unreachable)? {
                        Reply::Taken | Reply::Progress(_) => {}
                        Reply::Done(name) => {
                            let name = serde_json::from_value::<Name>(name);
                            let name = name.map_err(Failure::failed)?.region;
                            let remote = Arc::new(SocketRemote::new(to.to_owned()));
                            return Ok(Self { name, remote, host: None });
                        }
                        Reply::Failed(failure) => return Err(failure),
                    }
                }
                let message =
                    format!("the process that holds the region in {} ended", to.display());
                Err(Failure::new(Exit::Unreachable, message))
            }
        }
    }
}

/// One topic on its way.
struct Running {
    topic: String,
    cursor: Arc<ManagedCursor>,
    replicator: Replicator,
}

async fn start(host: &Arc<Host>, target: &Target, topic: String) -> Result<Running, Failure> {
    let key = (topic.clone(), target.name.clone());
    if host.replicators.lock().contains_key(&key) {
        let message = format!("{topic} is being replicated to {} already", target.name);
        return Err(Failure::new(Exit::Refused, message));
    }
    let log = host.topic(&topic).await?;
    let cursor = cursor_name(&target.name);
    let cursor = ManagedCursor::open(log.ledger(), &cursor, StartAt::Earliest).await;
    let cursor = cursor.map_err(Failure::failed)?;
    let from = host.region.name().clone();
    let config = ReplicatorConfig::new(from, target.name.as_str(), topic.as_str());
    let replicator = Replicator::new(config, cursor.clone(), target.remote.clone()).await;
    let replicator = replicator.map_err(Failure::failed)?;
    replicator.start();
    host.replicators.lock().insert(key, replicator.clone());
    Ok(Running { topic, cursor, replicator })
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
        }
        Ok(())
    };
    let mut drained = std::pin::pin!(drained);
    loop {
        tokio::select! {
            result = &mut drained, if until == Until::End => return result,
            () = inbox.end() => return Ok(()),
            () = host.closing() => return Err(host.ending()),
            () = tokio::time::sleep(PROGRESS) => {}
        }
        for Running { topic, replicator, .. } in running {
            let why = replicator.why();
            // With others that follow, one that waits for an operator says so in the progress, and in `why`.
            let alone = until == Until::End || running.len() == 1;
            if alone && why.wake == Wake::Operator && why.backlog > 0 {
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
