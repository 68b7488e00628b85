//! A remote in this process: a topic of an embedded region that takes entries of other clusters.
//!
//! Local publishers and sessions of sources meet in [`EmbeddedTopic`]. One short lock is held while
//! entries get their index, are tested against the source's watermark and are handed to the managed
//! ledger, so that the order of the decisions is the order of the log.
//!
//! What is known of the sources outlives the topic: each entry carries its origin in its stamp, and
//! a cursor of the topic keeps the rest (see [`keeping`]). A log that has failed takes nothing any
//! more; its owner opens it again, and [`EmbeddedTopic::open`] goes on in it.

mod keeping;
mod opening;
mod serving;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use georepl_cursor::{AppendError, ManagedLedger, Offset, Position, Refusal};
use georepl_storage::Advice;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

pub use keeping::{CHECKPOINT_BYTES, CHECKPOINT_ENTRIES, InvalidSource, KEEPER};
pub use opening::OpenTopicError;
#[cfg(test)]
pub(super) use serving::{BATCH_BYTES_MAX, next_batch};

use super::remote::{OpenedSession, Opening, RemoteProducer, SessionEvents};
use super::target::{self, Target};
use crate::message::{BrokerEntryMetadata, Frame, FrameError, Origin, Unstamped};
use crate::session::{Incarnation, OpenError, Revision, SessionId, Watermark};
use keeping::Keeper;

/// Tells the time of day.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Settings of an [`EmbeddedTopic`].
#[derive(Clone)]
pub struct EmbeddedTopicConfig {
    /// The largest frame that local publishers may give, in bytes. At least
    /// [`EmbeddedTopic::ROOM_BYTES`] below the largest entry of the managed ledger. What comes from
    /// other clusters is only limited by that entry, so that of two equal regions each takes what
    /// was published in the other. Default 5 MiB - 32 KiB.
    pub frame_bytes_max: usize,
    /// Where the timestamps of stored entries come from. Default the system's clock.
    pub clock: WallClock,
}

impl Default for EmbeddedTopicConfig {
    fn default() -> Self {
        Self { frame_bytes_max: (5 << 20) - (32 << 10), clock: Arc::new(SystemTime::now) }
    }
}

impl fmt::Debug for EmbeddedTopicConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedTopicConfig")
            .field("frame_bytes_max", &self.frame_bytes_max)
            .finish_non_exhaustive()
    }
}

/// A topic of an embedded region. Clones are the same topic.
#[derive(Clone, Debug)]
pub struct EmbeddedTopic(Arc<Inner>);

/// Why messages were not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// A message is no frame. Nothing was written.
    #[error("message {index} of the batch is no frame: {error}")]
    Frame {
        /// Which message of the batch, from 0.
        index: usize,
        /// What is wrong with it.
        error: FrameError,
    },
    /// A message is too large. Nothing was written.
    #[error("message {index} of the batch has {bytes} bytes, above the limit of {bytes_max}")]
    TooLarge {
        /// Which message of the batch, from 0.
        index: usize,
        /// Its size.
        bytes: usize,
        /// The limit, `frame_bytes_max`.
        bytes_max: usize,
    },
    /// The append failed; its error says whether the outcome is known.
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl PublishError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Frame { .. } | Self::TooLarge { .. } => Advice::GiveUp,
            Self::Append(error) => error.advice(),
        }
    }
}

struct Inner {
    ledger: ManagedLedger,
    config: EmbeddedTopicConfig,
    state: Mutex<State>,
    keeper: Keeper,
}

#[derive(Default)]
struct State {
    /// Of the next message.
    index: u64,
    /// By cluster: a topic takes entries of its namesakes.
    sources: BTreeMap<Arc<str>, Inbound>,
    /// Entries and bytes since the last checkpoint.
    unkept: (u64, u64),
    /// The ledger takes no appends any more. The first reason stays.
    failed: Option<Arc<str>>,
}

/// What comes in from one source.
struct Inbound {
    target: Target,
    /// Where the accepted entries that are not known to be durable are in the log if their appends
    /// succeed. Bounded by the topic's byte budget and the replicator's window.
    in_doubt: VecDeque<Offset>,
    waiting: Option<(SessionId, oneshot::Sender<OpenAnswer>)>,
    /// A newer session was asked for: an older one that waits to append gives up.
    newer: Arc<Notify>,
}

type OpenAnswer = Result<Option<Watermark>, OpenError>;

/// A frame that may be stored.
struct Checked {
    frame: Unstamped,
    messages: u32,
}

impl EmbeddedTopic {
    /// What a frame may grow by until it is an entry of another region: by the origin and the
    /// position that the splice adds, for clusters with names of up to 900 bytes, and by the stamp.
    pub const ROOM_BYTES: usize = SPLICE_BYTES_MAX + Unstamped::ROOM_BYTES;

    /// The log.
    pub fn ledger(&self) -> &ManagedLedger {
        &self.0.ledger
    }

    /// Publishes one message, a frame as [`compose`](crate::message::compose) makes it.
    ///
    /// # Errors
    /// As [`EmbeddedTopic::publish_batch`].
    pub async fn publish(&self, frame: Bytes) -> Result<Position, PublishError> {
        let positions = self.publish_batch(vec![frame]).await?;
        Ok(*positions.first().expect("a batch of one entry has one position"))
    }

    /// Publishes messages in the order given, and waits until all are durable.
    ///
    /// Waits while the topic's byte budget is used up. If the future is dropped, or the outcome is
    /// unknown, the first of the messages may be in the topic, or all of them, or none.
    ///
    /// # Errors
    /// [`PublishError`]. A frame that is damaged or too large keeps the whole batch out.
    pub async fn publish_batch(&self, frames: Vec<Bytes>) -> Result<Vec<Position>, PublishError> {
        let inner = &*self.0;
        let bytes = frames.iter().map(|frame| frame.len() + Unstamped::ROOM_BYTES).sum();
        let mut buffer = BytesMut::with_capacity(bytes);
        let mut checked = Vec::with_capacity(frames.len());
        for (index, frame) in frames.into_iter().enumerate() {
            let (bytes, bytes_max) = (frame.len(), inner.config.frame_bytes_max);
            if bytes > bytes_max {
                return Err(PublishError::TooLarge { index, bytes, bytes_max });
            }
            let frame = Checked::local(&mut buffer, frame);
            checked.push(frame.map_err(|error| PublishError::Frame { index, error })?);
        }
        // Safe to drop while waiting: nothing was promised to anybody yet.
        let permit = inner.ledger.reserve(bytes as u64).await?;
        let append = {
            let mut state = inner.state.lock();
            let broker_timestamp = inner.timestamp_ms();
            let stamp = |checked: Checked| state.stamp(checked, broker_timestamp, None);
            let entries = checked.into_iter().map(stamp).collect();
            inner.ledger.append_batch(permit, entries)
        };
        self.checkpoint_if_due();
        append.await.map_err(|error| {
            inner.append_failed(&error);
            error.into()
        })
    }

    /// Opens a session of a source, by the rules of [`Target`].
    async fn open_session(
        &self,
        opening: Opening,
        events: SessionEvents,
    ) -> Result<OpenedSession, OpenError> {
        let Opening { source, session, incarnation, revision } = opening;
        let unreachable =
            |error: &dyn fmt::Display| OpenError::Unreachable(error.to_string().into());
        if let Some(refusal) = self.0.ledger.refusal() {
            self.0.fail(&refusal);
        }
        self.0.begin_keeping().await.map_err(|error| unreachable(&error))?;
        let answer = self.0.state.lock().ask(&source.cluster, session, incarnation, revision)?;
        // A lower id, and an earlier incarnation, are refused from the answer on, also after a
        // crash: without this two owners of the source could both be current.
        self.0.keep().await.map_err(|error| unreachable(&error))?;
        // Safe to drop while waiting: the session opens without anybody to send in it.
        let watermark = match answer {
            Asked::Answered(watermark) => watermark,
            Asked::Waits(receiver) => receiver.await.expect("every waiting opening is answered")?,
        };
        let session = serving::start(self, source.cluster, incarnation, events);
        Ok(OpenedSession { watermark, session })
    }

    /// Lets the sources be kept in the background, when enough was appended since the last time.
    fn checkpoint_if_due(&self) {
        let due = {
            let mut state = self.0.state.lock();
            let (entries, bytes) = state.unkept;
            let due = self.0.keeper.begun()
                && (entries >= CHECKPOINT_ENTRIES || bytes >= CHECKPOINT_BYTES);
            if due {
                state.unkept = (0, 0);
            }
            due
        };
        if due {
            let topic = self.clone();
            tokio::spawn(async move {
                if let Err(error) = topic.0.keep().await {
                    tracing::warn!(
                        topic = topic.ledger().name(),
                        "sources are kept later: {error}"
                    );
                }
            });
        }
    }
}

/// What became of an opening that was not refused.
enum Asked {
    Answered(Option<Watermark>),
    Waits(oneshot::Receiver<OpenAnswer>),
}

impl Inner {
    fn timestamp_ms(&self) -> u64 {
        let since = (self.config.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn append_failed(&self, error: &AppendError) {
        match error {
            AppendError::Refused(refusal) | AppendError::OutcomeUnknown(refusal) => {
                self.fail(refusal);
            }
            // The log is well, and takes more when its cursors have moved on.
            AppendError::BacklogFull(_) => {}
            AppendError::EntryTooLarge { .. } | AppendError::BeyondPermit { .. } => {
                unreachable!("frames are checked so that they fit entries and permits: {error}")
            }
        }
    }

    /// The log takes no more, so no session can go on; whether what was under way is stored is
    /// known only to whoever opens the log again.
    fn fail(&self, refusal: &Refusal) {
        let message: Arc<str> = refusal.to_string().into();
        let mut state = self.state.lock();
        for inbound in state.sources.values_mut() {
            inbound.target.failed();
            if let Some((_, waiting)) = inbound.waiting.take() {
                let _ = waiting.send(Err(OpenError::Unreachable(message.clone())));
            }
        }
        state.failed.get_or_insert(message);
    }
}

/// The encoded origin and source position, with the names of their fields.
const SPLICE_BYTES_MAX: usize = 1 << 10;

impl State {
    /// A source asks for a session.
    fn ask(
        &mut self,
        cluster: &Arc<str>,
        session: SessionId,
        incarnation: Incarnation,
        revision: Revision,
    ) -> Result<Asked, OpenError> {
        if let Some(message) = &self.failed {
            return Err(OpenError::Unreachable(message.clone()));
        }
        let nothing = SessionId::default();
        let unknown = || Inbound::new(Target::new(nothing, incarnation, revision, None));
        let inbound = self.sources.entry(cluster.clone()).or_insert_with(unknown);
        let opening = inbound.target.open(session, incarnation, revision);
        inbound.newer.notify_waiters();
        match opening {
            target::Opening::Answered(watermark) => Ok(Asked::Answered(watermark)),
            target::Opening::Refused(error) => Err(error),
            target::Opening::Waits => {
                let (sender, receiver) = oneshot::channel();
                if let Some((asked, older)) = inbound.waiting.replace((session, sender)) {
                    let superseded = OpenError::LaterOwner { asked, newest: session };
                    let _ = older.send(Err(superseded));
                }
                Ok(Asked::Waits(receiver))
            }
        }
    }

    /// Gives an entry its place among the topic's messages.
    fn stamp(&mut self, checked: Checked, broker_timestamp: u64, origin: Option<Origin>) -> Bytes {
        self.index += u64::from(checked.messages);
        let entry = checked.frame.stamp(BrokerEntryMetadata {
            broker_timestamp: Some(broker_timestamp),
            index: Some(self.index - 1),
            origin,
        });
        self.unkept.0 += 1;
        self.unkept.1 += entry.len() as u64;
        entry
    }
}

impl Inbound {
    fn new(target: Target) -> Self {
        Self { target, in_doubt: VecDeque::new(), waiting: None, newer: Arc::default() }
    }
}

impl Checked {
    fn local(buffer: &mut BytesMut, frame: Bytes) -> Result<Self, FrameError> {
        let (frame, message) = check(buffer, frame, b"")?;
        Ok(Self { frame, messages: message.facts()?.messages() })
    }
}

/// Copies a frame to where it can be stamped, and looks at it as its later readers will.
fn check(
    buffer: &mut BytesMut,
    head: Bytes,
    payload: &[u8],
) -> Result<(Unstamped, Frame), FrameError> {
    let frame = Unstamped::carve(buffer, &head, payload);
    frame.verify()?;
    // The metadata lies in the head, and what follows it is payload, however much is there.
    Ok((frame, Frame::parse(head)?))
}

/// Finds the topics of an embedded region.
#[async_trait]
pub trait EmbeddedTopics: Send + Sync {
    /// The topic of that full name, made if need be. A dropped future may leave it made.
    ///
    /// # Errors
    /// What is wrong, for people.
    async fn topic(&self, name: &str) -> Result<EmbeddedTopic, Arc<str>>;
}

/// An embedded region as a remote.
#[derive(Clone)]
pub struct EmbeddedRemote {
    topics: Arc<dyn EmbeddedTopics>,
}

impl EmbeddedRemote {
    /// Publishes to the topic of the source's name among `topics`.
    pub fn new(topics: Arc<dyn EmbeddedTopics>) -> Self {
        Self { topics }
    }
}

impl fmt::Debug for EmbeddedRemote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedRemote").finish_non_exhaustive()
    }
}

#[async_trait]
impl RemoteProducer for EmbeddedRemote {
    async fn open(
        &self,
        opening: Opening,
        events: SessionEvents,
    ) -> Result<OpenedSession, OpenError> {
        let topic = self.topics.topic(&opening.source.topic).await;
        topic.map_err(OpenError::Unreachable)?.open_session(opening, events).await
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("topic", &self.ledger.name()).finish_non_exhaustive()
    }
}
