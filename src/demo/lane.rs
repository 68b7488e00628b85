//! One topic on its way from west to east: publisher, replicator, link with faults.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use georepl::cursor::{ManagedCursor, OpenCursorError, StartAt};
use georepl::replicator::message::{MessageMetadata, compose};
use georepl::replicator::{
    Accounting, EmbeddedRemote, EmbeddedTopic, EmbeddedTopics, FaultyRemote, NewReplicatorError,
    PublishError, RemoteFaults, Replicator, ReplicatorConfig,
};
use tokio::sync::watch;

use super::Regions;
use super::faults::{self, Scope, Stalled, Survived};
use super::input::Input;
use super::ledgers;
use super::progress::Progress;
use super::wire::{Refused, Tap, Wire};

/// A topic, and everything that moves it.
pub(crate) struct Lane {
    pub(crate) topic: String,
    pub(crate) messages: u64,
    pub(crate) regions: Regions,
    pub(crate) west: EmbeddedTopic,
    pub(crate) east: EmbeddedTopic,
    pub(crate) cursor: Arc<ManagedCursor>,
    pub(crate) faults: RemoteFaults,
    pub(crate) wire: Tap,
    pub(crate) replicator: Replicator,
    progress: Progress,
    /// How many messages may be published by now.
    gate: watch::Sender<u64>,
}

/// What the lane says of itself; the audit says what is true.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) survived: Vec<Survived>,
    pub(crate) accounting: Accounting,
    pub(crate) refused: Refused,
    /// From the first message let through to the last acknowledged.
    pub(crate) elapsed: Duration,
}

/// Whether faults are injected, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Fair,
    Faults { seed: u64 },
}

/// Why a lane did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneError {
    #[error("the topic does not open: {0}")]
    Topic(Arc<str>),
    #[error("the cursor does not open: {0}")]
    Cursor(#[from] OpenCursorError),
    #[error(transparent)]
    Replicator(#[from] NewReplicatorError),
    #[error("publishing failed: {0}")]
    Publish(#[from] PublishError),
    #[error(transparent)]
    Stalled(#[from] Stalled),
    #[error(transparent)]
    Ledgers(#[from] ledgers::Error),
}

impl Lane {
    pub(crate) async fn open(
        regions: Regions,
        topic: String,
        messages: u64,
        progress: Progress,
    ) -> Result<Self, LaneError> {
        let Regions { west, east } = &regions;
        let local = west.topic(&topic).await.map_err(LaneError::Topic)?;
        let remote = east.topic(&topic).await.map_err(LaneError::Topic)?;
        let name = format!("pulsar.repl.{}", east.name());
        let cursor = ManagedCursor::open(local.ledger(), &name, StartAt::Earliest).await?;
        let (faults, wire) = (RemoteFaults::new(), Tap::default());
        let region: Arc<dyn EmbeddedTopics> = east.clone();
        let far_end = Wire::new(EmbeddedRemote::new(region), wire.clone());
        let link = Arc::new(FaultyRemote::new(far_end, faults.clone()));
        let config =
            ReplicatorConfig::new(west.name().clone(), east.name().clone(), topic.as_str());
        let replicator = Replicator::new(config, Arc::clone(&cursor), link).await?;
        let gate = watch::Sender::new(0);
        let (west, east) = (local, remote);
        Ok(Self {
            topic,
            messages,
            regions,
            west,
            east,
            cursor,
            faults,
            wire,
            replicator,
            progress,
            gate,
        })
    }

    /// Publishes everything and waits until it is acknowledged.
    pub(crate) async fn run(
        &self,
        input: &Input,
        weather: Weather,
        scope: Scope,
    ) -> Result<Outcome, LaneError> {
        self.replicator.start();
        let begun = Instant::now();
        let script = async {
            let survived = match weather {
                Weather::Fair => Vec::new(),
                Weather::Faults { seed } => faults::run(self, seed, scope).await?,
            };
            self.let_through(self.messages);
            faults::drained(self).await?;
            Ok(survived)
        };
        let publish = async { self.publish(input).await.map_err(LaneError::from) };
        let ((), survived) = tokio::try_join!(publish, script)?;
        let elapsed = begun.elapsed();
        let (accounting, refused) = (self.replicator.accounting(), self.wire.refused());
        self.stop().await;
        Ok(Outcome { survived, accounting, refused, elapsed })
    }

    /// Settles what was sent.
    pub(crate) async fn stop(&self) {
        self.replicator.shutdown(SHUTDOWN).await;
    }

    /// Publishes in batches, and pauses where the gate is closed.
    async fn publish(&self, input: &Input) -> Result<(), PublishError> {
        let mut gate = self.gate.subscribe();
        let mut next = 0;
        while next < self.messages {
            let open = gate.wait_for(|allowed| *allowed > next).await;
            let allowed = *open.expect("the gate lives as long as the lane");
            let (mut batch, mut bytes) = (Vec::new(), 0);
            while next < allowed && batch.len() < BATCH_ENTRIES_MAX && bytes < BATCH_BYTES {
                let payload = input.message(next);
                bytes += payload.len();
                batch.push(frame(next, payload));
                next += 1;
            }
            self.west.publish_batch(batch).await?;
        }
        Ok(())
    }

    /// Opens the gate up to this number of messages.
    pub(crate) fn let_through(&self, messages: u64) {
        self.gate.send_replace(messages);
    }

    /// How many messages may be published by now.
    pub(crate) fn allowed(&self) -> u64 {
        *self.gate.borrow()
    }

    /// Entries published, replicated and acknowledged.
    pub(crate) fn progress(&self) -> [u64; 3] {
        let acknowledged = self.cursor.mark_delete_offset();
        [self.west.ledger().end(), self.east.ledger().end(), acknowledged].map(|at| at.get())
    }

    pub(crate) fn tell(&self, survived: &Survived) {
        let (_, name) = self.topic.rsplit_once('/').unwrap_or(("", &self.topic));
        self.progress.line(&format!("{name}: {survived}"));
    }
}

fn frame(number: u64, payload: &Bytes) -> Bytes {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let metadata = MessageMetadata {
        producer_name: "georepl-demo".to_owned(),
        sequence_id: number,
        publish_time: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        ..MessageMetadata::default()
    };
    compose(&metadata, payload)
}

/// One append: enough to spread its cost.
const BATCH_ENTRIES_MAX: usize = 256;
/// A batch is complete with the message that reaches this.
const BATCH_BYTES: usize = 1 << 20;
/// At the end nothing is open and it takes no time; a lane that is stopped before waits for its receipts.
const SHUTDOWN: Duration = Duration::from_secs(10);
