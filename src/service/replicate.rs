//! Replicating topics to another region, each on its own: what fails for one keeps no other from its end.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use georepl::cursor::ManagedCursor;
use georepl::replicator::{
    EmbeddedTopic, Ended, Poison, Reason, Replicator, ReplicatorConfig, State, StopReason, Why,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::host::Host;
use super::lanes::{Claim, Claimed};
use super::line::{Inbox, Outbox};
use super::links::{in_words, needs_operator, of_each, open_cursor};
use super::stops;
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
    let ready = async {
        begins(host, &topics).await?;
        Target::reach(to, host.region.name()).await
    };
    let target = tokio::select! {
        target = ready => Arc::new(target?),
        () = inbox.end() => return Err(Failure::failed(NOT_BEGUN)),
        () = host.closing() => return Err(host.ending("run the command again")),
    };
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

const NOT_BEGUN: &str = "interrupted before anything was replicated; run the command again";

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
        let signal = watch::Sender::new(Signal::Look);
        let lanes = carried.iter().zip(claims);
        let lanes = lanes.map(|(one, claim)| one.run(self, claim, signal.subscribe()));
        let lanes = join_all(lanes);
        let mut lanes = std::pin::pin!(lanes);
        let told = tokio::select! {
            lanes = &mut lanes => return Ok(lanes),
            told = self.tell(&carried, signal.subscribe(), inbox, outbox) => told,
            never = beat(&signal) => match never {},
        };
        signal.send_replace(Signal::Stop);
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
        mut signal: watch::Receiver<Signal>,
        inbox: &mut Inbox,
        outbox: &mut Outbox,
    ) -> Result<(), Failure> {
        loop {
            tokio::select! {
                () = inbox.end() => return Ok(()),
                () = self.host.closing() => return Err(self.host.ending("run the command again")),
                look = signal.changed() => look.expect("it is sent as long as this is told"),
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

/// What the topics of a command are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// To look how far they are, and whether they get on by themselves.
    Look,
    Stop,
}

/// The one timer of a command, for all its topics.
async fn beat(signal: &watch::Sender<Signal>) -> Infallible {
    loop {
        tokio::time::sleep(PROGRESS).await;
        signal.send_replace(Signal::Look);
    }
}

async fn told_to_stop(signal: &mut watch::Receiver<Signal>) {
    let told = signal.wait_for(|signal| *signal == Signal::Stop).await;
    told.expect("it is sent as long as topics run");
}

/// One topic on its way, by one replicator after the other.
struct Carried(Mutex<Figures>);

struct Figures {
    /// Of replicators that have ended.
    past: Lane,
    running: Option<Replicator>,
}

/// A replicator, and what it works on.
struct Started {
    topic: EmbeddedTopic,
    cursor: Arc<ManagedCursor>,
    replicator: Replicator,
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
            lane.why = in_words(&why);
        }
        lane
    }

    /// Replicates the topic until it is done, has failed, or is to stop.
    async fn run(
        &self,
        route: &Route<'_>,
        claim: Claim,
        mut signal: watch::Receiver<Signal>,
    ) -> Lane {
        loop {
            let outcome = self.carry(route, &claim, &mut signal).await;
            let failed = match outcome {
                Outcome::Done => None,
                Outcome::Failed(reason) => Some(reason),
                Outcome::Ended(reason)
                    if route.until == Until::End || *signal.borrow() == Signal::Stop =>
                {
                    Some(reason)
                }
                Outcome::Ended(reason) => {
                    self.fail(reason);
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN) => continue,
                        () = told_to_stop(&mut signal) => return self.lane(),
                    }
                }
            };
            failed.into_iter().for_each(|reason| self.fail(reason));
            return self.lane();
        }
    }

    /// Runs one replicator, closes its cursor behind it, and notes why it stopped: then the lane is free for the next.
    async fn carry(
        &self,
        route: &Route<'_>,
        claim: &Claim,
        signal: &mut watch::Receiver<Signal>,
    ) -> Outcome {
        let started = tokio::select! {
            started = Box::pin(self.start(route, claim)) => started,
            // A topic that is being opened is the region's, and is opened without this.
            () = told_to_stop(signal) => return Outcome::Ended(BEING_OPENED.to_owned()),
        };
        let Started { topic, cursor, replicator } = match started {
            Ok(started) => started,
            Err(failure) => return Outcome::Ended(failure.message),
        };
        let outcome = tokio::select! {
            outcome = end(&replicator, route.until) => outcome,
            outcome = look(route, &topic, &replicator, signal.clone()) => outcome,
            () = told_to_stop(signal) => match replicator.why() {
                why if is_stuck(&why) => Outcome::Failed(why.to_string()),
                _ => Outcome::Done,
            },
        };
        // Later it is only that it was told to stop.
        let why = replicator.why();
        replicator.shutdown(SHUTDOWN).await;
        let closed = cursor.close().await;
        let mut past = self.lane();
        let why = Why { backlog: past.backlog, ..why };
        past.why = in_words(&why);
        let (outcome, said) = match (outcome, closed) {
            (Outcome::Done, Err(error)) => (Outcome::Failed(error.to_string()), error.to_string()),
            (outcome, _) => (outcome, why.reason.to_string()),
        };
        let is_done = matches!(outcome, Outcome::Done) && past.backlog == 0;
        *self.0.lock() = Figures { past, running: None };
        stops::note(topic.ledger(), &route.target.name, (!is_done).then_some(&said)).await;
        outcome
    }

    async fn start(&self, route: &Route<'_>, claim: &Claim) -> Result<Started, Failure> {
        let name = self.lane().topic;
        let topic = route.host.topic(&name).await?;
        let cursor = open_cursor(topic.ledger(), &route.target.name).await?;
        let from = route.host.region.name().clone();
        let mut config = ReplicatorConfig::new(from, route.target.name.as_str(), name);
        config.poison = route.poison;
        let replicator = Replicator::new(config, cursor.clone(), route.target.clone()).await;
        let replicator = replicator.map_err(Failure::failed)?;
        replicator.start();
        claim.run(replicator.clone());
        let mut figures = self.0.lock();
        figures.running = Some(replicator.clone());
        figures.past.failed = None;
        Ok(Started { topic, cursor, replicator })
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

/// Looks, whenever it is told to, whether it gets on by itself.
async fn look(
    route: &Route<'_>,
    topic: &EmbeddedTopic,
    replicator: &Replicator,
    mut signal: watch::Receiver<Signal>,
) -> Outcome {
    let mut noted = None;
    loop {
        signal.changed().await.expect("it is sent as long as topics run");
        let why = replicator.why();
        match &why.reason {
            // Somebody has decided: a seek ends what it was stopped for, and leaves it at rest.
            Reason::Stopped(reason) if reason.may_restart() => replicator.start(),
            Reason::Stopped(
                StopReason::CursorClosed | StopReason::LaterOwner(_) | StopReason::Failed(_),
            ) => return Outcome::Ended(why.to_string()),
            reason if is_stuck(&why) => match route.stopped_by_why {
                StoppedByWhy::Yes => return Outcome::Failed(why.to_string()),
                // It goes on to run, and may be killed before it can say why it stopped.
                StoppedByWhy::No if noted.as_ref() != Some(reason) => {
                    let said = reason.to_string();
                    stops::note(topic.ledger(), &route.target.name, Some(&said)).await;
                    noted = Some(reason.clone());
                }
                StoppedByWhy::No => {}
            },
            _ => {}
        }
    }
}

/// Whether somebody has to act on a replicator that was started.
fn is_stuck(why: &Why) -> bool {
    let starts = matches!(&why.reason, Reason::Stopped(reason) if reason.may_restart());
    needs_operator(why) && !starts
}

const BEING_OPENED: &str = "interrupted while it was being opened; run the command again";
/// What was sent is answered by then, or settled by the next start.
const SHUTDOWN: Duration = Duration::from_secs(10);
const PROGRESS: Duration = Duration::from_millis(200);
/// Before the next replicator of a topic whose last one ended.
const AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
