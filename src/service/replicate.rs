//! Replicating topics to another region, each on its own: what fails for one keeps no other from its end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use georepl::cursor::ManagedCursor;
use georepl::replicator::{
    Ended, Poison, Reason, Replicator, ReplicatorConfig, State, StopReason, Why,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::host::Host;
use super::lanes::{Claim, Claimed};
use super::line::{Inbox, Outbox};
use super::links::{needs_operator, of_each, open_cursor};
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
    begins(host, &topics).await?;
    let target = Arc::new(Target::reach(to, host.region.name()).await?);
    let alone = topics.len() == 1;
    let stopped_by_why = match until {
        Until::End => StoppedByWhy::Yes,
        // With others that follow, one that waits for an operator says so in the progress, and in `why`.
        Until::Told if alone => StoppedByWhy::Yes,
        Until::Told => StoppedByWhy::No,
    };
    let route = Route { host, target: target.clone(), until, stopped_by_why, poison };
    let outcome = route.replicate(topics, inbox, outbox).await;
    let closed = target.close().await;
    let lanes = outcome?;
    closed?;
    if alone && let Some(Lane { topic, failed: Some(reason), .. }) = lanes.first() {
        return Err(Failure::failed(format!("{topic}: {reason}")));
    }
    Ok(route.report(lanes))
}

/// Refuses what cannot begin. A topic that is there and cannot be opened is no reason not to replicate the others.
async fn begins(host: &Host, topics: &[String]) -> Result<(), Failure> {
    let opened = of_each(topics.to_vec(), async |name: String| {
        match host.region.existing_topic(&name).await {
            Ok(Some(_)) => Ok(Ok(())),
            Ok(None) => Err(host.has_no_topic(&name)),
            Err(message) => Ok(Err(Failure::failed(message))),
        }
    });
    let opened = opened.await.into_iter().collect::<Result<Vec<_>, _>>()?;
    match opened.iter().any(Result::is_ok) {
        true => Ok(()),
        false => opened.into_iter().collect(),
    }
}

/// What the topics of a command have in common.
struct Route<'a> {
    host: &'a Arc<Host>,
    target: Arc<Target>,
    until: Until,
    stopped_by_why: StoppedByWhy,
    poison: Poison,
}

/// Whether a topic that waits for an operator has come to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoppedByWhy {
    Yes,
    No,
}

impl Route<'_> {
    async fn replicate(
        &self,
        topics: Vec<String>,
        inbox: &mut Inbox,
        outbox: &mut Outbox,
    ) -> Result<Vec<Lane>, Failure> {
        // All of them before the first is started: a refusal has touched nothing.
        let claims = topics.iter().map(|topic| self.claim(topic));
        let claims = claims.collect::<Result<Vec<_>, _>>()?;
        let carried: Vec<_> = topics.into_iter().map(Carried::new).collect();
        let stop = watch::Sender::new(false);
        let lanes = carried.iter().zip(claims);
        let lanes = lanes.map(|(one, claim)| one.run(self, claim, stop.subscribe()));
        let lanes = join_all(lanes);
        let mut lanes = std::pin::pin!(lanes);
        let told = tokio::select! {
            lanes = &mut lanes => return Ok(lanes),
            told = self.tell(&carried, inbox, outbox) => told,
        };
        stop.send_replace(true);
        let lanes = lanes.await;
        told.map(|()| lanes)
    }

    fn claim(&self, topic: &str) -> Result<Claim, Failure> {
        match self.host.lanes.claim(topic, &self.target.name)? {
            Claimed::Free(claim) => Ok(claim),
            Claimed::Running(_) => {
                let message =
                    format!("{topic} is being replicated to {} already", self.target.name);
                Err(Failure::new(Exit::Refused, message))
            }
        }
    }

    /// Tells how far the topics have come until they are to stop.
    async fn tell(
        &self,
        carried: &[Carried],
        inbox: &mut Inbox,
        outbox: &mut Outbox,
    ) -> Result<(), Failure> {
        loop {
            tokio::select! {
                () = inbox.end() => return Ok(()),
                () = self.host.closing() => return Err(self.host.ending("run the command again")),
                () = tokio::time::sleep(PROGRESS) => {}
            }
            let progress = self.report(carried.iter().map(Carried::lane).collect());
            let progress = serde_json::to_value(progress).expect("a report of text and numbers");
            let told = outbox.word(&Reply::Progress(progress)).await;
            told.map_err(|error| Failure::new(Exit::Unreachable, error))?;
        }
    }

    fn report(&self, topics: Vec<Lane>) -> Replicated {
        let (from, to) = (self.host.region.name().to_string(), self.target.name.clone());
        Replicated { from, to, topics }
    }
}

/// One topic on its way, by one replicator after the other.
struct Carried(Mutex<Figures>);

struct Figures {
    /// Of replicators that have ended.
    past: Lane,
    running: Option<Replicator>,
}

/// How a topic's replicator came to its end.
enum Outcome {
    /// As it was to.
    Done,
    /// It does not get on without somebody who decides.
    Failed(String),
    /// It could not be started, or lost its cursor. Another one may do it.
    Ended(String),
}

impl Carried {
    fn new(topic: String) -> Self {
        let past = Lane { topic, ..Lane::default() };
        Self(Mutex::new(Figures { past, running: None }))
    }

    /// How far it has come.
    fn lane(&self) -> Lane {
        let figures = self.0.lock();
        let mut lane = figures.past.clone();
        if let Some(replicator) = &figures.running {
            let (accounting, why) = (replicator.accounting(), replicator.why());
            lane.published += accounting.published;
            lane.duplicate += accounting.duplicate;
            lane.filtered += accounting.filtered();
            lane.rewinds += accounting.rewinds;
            lane.backlog = why.backlog;
            lane.why = why.to_string();
        }
        lane
    }

    /// Replicates the topic until it is done, has failed, or is to stop.
    async fn run(&self, route: &Route<'_>, claim: Claim, mut stop: watch::Receiver<bool>) -> Lane {
        loop {
            let outcome = self.carry(route, &claim, &mut stop).await;
            let failed = match outcome {
                Outcome::Done => None,
                Outcome::Failed(reason) => Some(reason),
                Outcome::Ended(reason) if route.until == Until::End || *stop.borrow() => {
                    Some(reason)
                }
                Outcome::Ended(reason) => {
                    self.fail(reason);
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN) => continue,
                        _ = stop.wait_for(|stop| *stop) => return self.lane(),
                    }
                }
            };
            failed.into_iter().for_each(|reason| self.fail(reason));
            return self.lane();
        }
    }

    /// Runs one replicator, and closes its cursor behind it: then the lane is free for the next.
    async fn carry(
        &self,
        route: &Route<'_>,
        claim: &Claim,
        stop: &mut watch::Receiver<bool>,
    ) -> Outcome {
        let (cursor, replicator) = match Box::pin(self.start(route, claim)).await {
            Ok(started) => started,
            Err(failure) => return Outcome::Ended(failure.message),
        };
        let outcome = tokio::select! {
            outcome = end(&replicator, route.until) => outcome,
            outcome = look(&replicator, route.stopped_by_why) => outcome,
            _ = stop.wait_for(|stop| *stop) => match replicator.why() {
                why if is_stuck(&why) => Outcome::Failed(why.to_string()),
                _ => Outcome::Done,
            },
        };
        // Later it is only that it was told to stop.
        let why = replicator.why();
        replicator.shutdown(SHUTDOWN).await;
        let closed = cursor.close().await;
        let mut past = self.lane();
        past.why = Why { backlog: past.backlog, ..why }.to_string();
        *self.0.lock() = Figures { past, running: None };
        match (outcome, closed) {
            (Outcome::Done, Err(error)) => Outcome::Failed(error.to_string()),
            (outcome, _) => outcome,
        }
    }

    async fn start(
        &self,
        route: &Route<'_>,
        claim: &Claim,
    ) -> Result<(Arc<ManagedCursor>, Replicator), Failure> {
        let topic = self.lane().topic;
        let log = route.host.topic(&topic).await?;
        let cursor = open_cursor(log.ledger(), &route.target.name).await?;
        let from = route.host.region.name().clone();
        let mut config = ReplicatorConfig::new(from, route.target.name.as_str(), topic);
        config.poison = route.poison;
        let replicator = Replicator::new(config, cursor.clone(), route.target.clone()).await;
        let replicator = replicator.map_err(Failure::failed)?;
        replicator.start();
        claim.run(replicator.clone());
        let mut figures = self.0.lock();
        figures.running = Some(replicator.clone());
        figures.past.failed = None;
        Ok((cursor, replicator))
    }

    fn fail(&self, reason: String) {
        let Figures { past, .. } = &mut *self.0.lock();
        tracing::warn!(topic = past.topic, "is not replicated: {reason}");
        past.why.clone_from(&reason);
        past.failed = Some(reason);
    }
}

/// Waits until everything is there.
async fn end(replicator: &Replicator, until: Until) -> Outcome {
    match until {
        Until::End => {}
        Until::Told => std::future::pending().await,
    }
    match replicator.drained().await {
        Ok(()) => answered(replicator).await,
        Err(Ended { reason }) => Outcome::Ended(reason.to_string()),
    }
}

/// Waits for the remote's first answer. What either side has lost shows in it, without a backlog too.
async fn answered(replicator: &Replicator) -> Outcome {
    let mut state = replicator.watch();
    loop {
        let started = *state.borrow_and_update() == State::Started;
        let why = replicator.why();
        if is_stuck(&why) {
            return Outcome::Failed(why.to_string());
        }
        if started || why.reason == Reason::Stopped(StopReason::Drained) {
            return Outcome::Done;
        }
        state.changed().await.expect("it is not dropped before its replicator");
    }
}

/// Looks from time to time whether it gets on by itself.
async fn look(replicator: &Replicator, stopped_by_why: StoppedByWhy) -> Outcome {
    loop {
        tokio::time::sleep(PROGRESS).await;
        let why = replicator.why();
        match &why.reason {
            // Somebody has decided: a seek ends what it was stopped for, and leaves it at rest.
            Reason::Stopped(reason) if reason.may_restart() => replicator.start(),
            Reason::Stopped(
                StopReason::CursorClosed | StopReason::LaterOwner(_) | StopReason::Failed(_),
            ) => return Outcome::Ended(why.to_string()),
            _ if stopped_by_why == StoppedByWhy::Yes && is_stuck(&why) => {
                return Outcome::Failed(why.to_string());
            }
            _ => {}
        }
    }
}

/// Whether somebody has to act on a replicator that was started.
fn is_stuck(why: &Why) -> bool {
    let starts = matches!(&why.reason, Reason::Stopped(reason) if reason.may_restart());
    needs_operator(why) && !starts
}

/// What was sent is answered by then, or settled by the next start.
const SHUTDOWN: Duration = Duration::from_secs(10);
const PROGRESS: Duration = Duration::from_millis(200);
/// Before the next replicator of a topic whose last one ended.
const AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use georepl::Absent;
    use georepl::cursor::StartAt;
    use georepl::replicator::EmbeddedTopics;
    use georepl::replicator::message::{MessageMetadata, compose};

    use super::super::host::{Attached, attach};
    use super::super::line;
    use super::super::words::{Command, Purpose, Request, VERSION};
    use super::*;

    const TOPICS: [&str; 2] =
        ["persistent://public/default/orders", "persistent://public/default/payments"];

    async fn publish(host: &Host, topic: &str, payload: &str) {
        let topic = host.topic_or_new(topic).await.unwrap();
        let message = compose(&MessageMetadata::default(), payload.as_bytes());
        topic.publish(message).await.unwrap();
    }

    async fn arrive(host: &Host, topic: &str, entries: u64) {
        let log = host.region.topic(topic).await.unwrap();
        let wait = async {
            while log.ledger().end().get() < entries {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it arrives");
    }

    #[tokio::test]
    async fn topic_whose_cursor_was_closed_under_it_is_followed_by_another_replicator() {
        let directory = tempfile::tempdir().unwrap();
        let hold = async |name: &str| {
            let path = directory.path().join(name);
            match Box::pin(attach(&path, Absent::Create, Purpose::Command)).await.unwrap() {
                Attached::Local(host) => host,
                Attached::Remote(_) => panic!("nobody else holds it"),
            }
        };
        let (west, east) = (hold("west").await, hold("east").await);
        for topic in TOPICS {
            publish(&west, topic, "one").await;
        }
        let (here, there) = tokio::io::duplex(64 << 10);
        west.serve(Box::new(there));
        let command = Command::Replicate {
            to: directory.path().join("east"),
            topics: TOPICS.map(str::to_owned).into(),
            until: Until::Told,
            quarantine_after: None,
        };
        let request = Request { georepl: VERSION, command };
        let (mut inbox, mut outbox) = line::ask(Box::new(here), &request).await.unwrap();
        let reading = tokio::spawn(async move {
            let mut last = None;
            while let Some(line::Frame::Word(word)) = inbox.next().await.unwrap() {
                last = Some(line::parse::<Reply>(&word).unwrap());
            }
            last
        });
        for topic in TOPICS {
            arrive(&east, topic, 1).await;
        }
        let log = west.topic(TOPICS[0]).await.unwrap();
        let cursor = ManagedCursor::open(log.ledger(), "pulsar.repl.east", StartAt::Earliest);
        // As when its topic is opened again after a failed write.
        cursor.await.unwrap().close().await.unwrap();
        for topic in TOPICS {
            publish(&west, topic, "two").await;
            arrive(&east, topic, 2).await;
        }
        outbox.feed(line::Frame::End).await.unwrap();
        outbox.flush().await.unwrap();
        let Some(Reply::Done(report)) = reading.await.unwrap() else { panic!("it is done") };
        let report: Replicated = serde_json::from_value(report).unwrap();
        let lanes = report.topics.iter().map(|lane| (lane.published, lane.failed.clone()));
        assert_eq!(lanes.collect::<Vec<_>>(), [(2, None), (2, None)], "counted over both");
        west.close().await.unwrap();
        east.close().await.unwrap();
    }
}
