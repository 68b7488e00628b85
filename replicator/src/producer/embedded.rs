//! A remote in this process: a topic of an embedded region that takes entries of other clusters.
//!
//! Local publishers and sessions of sources meet in [`EmbeddedTopic`]. One short lock is held while
//! entries get their index, are tested against the source's watermark and are handed to the managed
//! ledger, so that the order of the decisions is the order of the log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use georepl_cursor::{AppendBatch, AppendError, ManagedLedger, Position};
use georepl_storage::Mailbox;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::remote::{
    OpenedSession, Opening, Prepared, RemoteProducer, RemoteSession, SessionEvents,
};
use super::target::{self, Answered, Target, Verdict};
use crate::message::{BrokerEntryMetadata, Frame, FrameError, Unstamped};
use crate::session::{OpenError, Outgoing, Receipt, Refusal, SessionId, Source, Watermark};

/// Tells the time of day.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Settings of an [`EmbeddedTopic`].
#[derive(Clone)]
pub struct EmbeddedTopicConfig {
    /// The largest frame that is taken. At least [`Unstamped::ROOM_BYTES`] below the largest entry
    /// of the managed ledger. Default 5 MiB - 64 KiB.
    pub frame_bytes_max: usize,
    /// Where the timestamps of stored entries come from. Default the system's clock.
    pub clock: WallClock,
}

impl Default for EmbeddedTopicConfig {
    fn default() -> Self {
        Self { frame_bytes_max: (5 << 20) - (64 << 10), clock: Arc::new(SystemTime::now) }
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

/// Why a topic cannot take entries of other clusters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "topic {topic} already has {entries} entries: which entries of other clusters are among them \
     is not known, so what they send again would be stored twice; use a new topic"
)]
pub struct NewTopicError {
    topic: String,
    entries: u64,
}

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

struct Inner {
    ledger: ManagedLedger,
    config: EmbeddedTopicConfig,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of the next message.
    index: u64,
    sources: BTreeMap<Source, Inbound>,
    /// The ledger takes no appends any more. The first reason stays.
    failed: Option<Arc<str>>,
}

/// What comes in from one source.
struct Inbound {
    target: Target,
    waiting: Option<(SessionId, oneshot::Sender<OpenAnswer>)>,
}

type OpenAnswer = Result<Option<Watermark>, OpenError>;

/// A frame that may be stored.
struct Checked {
    frame: Unstamped,
    messages: u32,
}

impl EmbeddedTopic {
    /// A topic in `ledger`, which must be empty.
    ///
    /// # Errors
    /// [`NewTopicError`].
    pub fn new(ledger: ManagedLedger, config: EmbeddedTopicConfig) -> Result<Self, NewTopicError> {
        match ledger.end().get() {
            0 => Ok(Self(Arc::new(Inner { ledger, config, state: Mutex::default() }))),
            entries => Err(NewTopicError { topic: ledger.name().to_owned(), entries }),
        }
    }

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
    /// Waits while the topic's byte budget is used up. If the future is dropped, all messages may
    /// be in the topic or none.
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
            let frame = check(&mut buffer, frame, b"");
            checked.push(frame.map_err(|error| PublishError::Frame { index, error })?);
        }
        // Safe to drop while waiting: nothing was promised to anybody yet.
        let permit = inner.ledger.reserve(bytes as u64).await?;
        let append = {
            let mut state = inner.state.lock();
            let broker_timestamp = inner.timestamp_ms();
            let stamp = |checked: Checked| state.stamp(checked, broker_timestamp);
            let entries = checked.into_iter().map(stamp).collect();
            inner.ledger.append_batch(permit, entries)
        };
        append.await.map_err(|error| {
            inner.fail(&error);
            error.into()
        })
    }

    /// Opens a session of a source, by the rules of [`Target`].
    async fn open(
        &self,
        opening: Opening,
        events: SessionEvents,
    ) -> Result<OpenedSession, OpenError> {
        let Opening { source, session, incarnation } = opening;
        let answer = {
            let mut state = self.0.state.lock();
            if let Some(message) = &state.failed {
                return Err(OpenError::Unreachable(message.clone()));
            }
            let inbound = state.sources.entry(source.clone()).or_insert_with(|| Inbound {
                target: Target::new(incarnation, None),
                waiting: None,
            });
            match inbound.target.open(session, incarnation) {
                target::Opening::Answered(watermark) => Ok(watermark),
                target::Opening::Refused(error) => return Err(error),
                target::Opening::Waits => {
                    let (sender, receiver) = oneshot::channel();
                    if let Some((asked, older)) = inbound.waiting.replace((session, sender)) {
                        let superseded = OpenError::LaterOwner { asked, newest: session };
                        let _ = older.send(Err(superseded));
                    }
                    Err(receiver)
                }
            }
        };
        // Safe to drop while waiting: the session opens without anybody to send in it.
        let watermark = match answer {
            Ok(watermark) => watermark,
            Err(receiver) => receiver.await.expect("every waiting opening is answered")?,
        };
        let inbox = Arc::new(Mailbox::new());
        let serving = Serving { topic: self.clone(), source, events, inbox: inbox.clone() };
        tokio::spawn(serving.run());
        Ok(OpenedSession { watermark, session: Box::new(EmbeddedSession { inbox }) })
    }
}

impl Inner {
    fn timestamp_ms(&self) -> u64 {
        let since = (self.config.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// An append failed. The ledger takes no more, so no session can go on; whether what was under
    /// way is stored is known only to whoever opens the topic again.
    fn fail(&self, error: &AppendError) {
        let message: Arc<str> = error.to_string().into();
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

impl State {
    /// Gives an entry its place among the topic's messages.
    fn stamp(&mut self, checked: Checked, broker_timestamp: u64) -> Bytes {
        self.index += u64::from(checked.messages);
        checked.frame.stamp(BrokerEntryMetadata {
            broker_timestamp: Some(broker_timestamp),
            index: Some(self.index - 1),
        })
    }
}

/// Copies a frame to where it can be stamped, and looks at it as its later readers will.
fn check(buffer: &mut BytesMut, head: Bytes, payload: &[u8]) -> Result<Checked, FrameError> {
    let frame = Unstamped::carve(buffer, &head, payload);
    frame.verify()?;
    // The metadata lies in the head, and what follows it is payload, however much is there.
    let messages = Frame::parse(head)?.facts()?.messages();
    Ok(Checked { frame, messages })
}

/// A session's sends on their way to its task.
struct EmbeddedSession {
    /// Bounded by the replicator's window.
    inbox: Arc<Mailbox<Outgoing<Prepared>>>,
}

impl RemoteSession for EmbeddedSession {
    fn submit(&mut self, batch: Vec<Outgoing<Prepared>>) {
        self.inbox.extend(batch);
    }
}

impl Drop for EmbeddedSession {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

/// The task of one session.
struct Serving {
    topic: EmbeddedTopic,
    source: Source,
    events: SessionEvents,
    inbox: Arc<Mailbox<Outgoing<Prepared>>>,
}

/// Sends that were decided on. The receipts leave when the append is durable; so do those of
/// duplicates among them, whose originals may be in an append before this one.
struct Decided {
    append: Option<AppendBatch>,
    taken: usize,
    receipts: Vec<Receipt>,
}

/// Why a session's task takes no more sends.
enum Over {
    /// A newer session was opened.
    Stale,
    /// The topic takes no appends.
    Failed(AppendError),
}

impl Serving {
    /// Runs until the session is dropped and what was submitted is decided, or until it is lost.
    async fn run(self) {
        // Bounded by the topic's byte budget and the replicator's window.
        let (decided, decisions) = mpsc::unbounded_channel();
        tokio::join!(self.take_sends(decided), self.answer(decisions));
        // A session that was lost may be held for a while; what it submits goes nowhere.
        self.inbox.close();
    }

    async fn take_sends(&self, decided: mpsc::UnboundedSender<Decided>) {
        let mut sends = Vec::new();
        while self.inbox.recv_into(&mut sends).await.is_ok() {
            let mut rest = std::mem::take(&mut sends).into_iter().peekable();
            while rest.peek().is_some() {
                match self.decide(next_batch(&mut rest)).await {
                    // Nobody answers any more: the session was lost.
                    Ok(decision) => match decided.send(decision) {
                        Ok(()) => {}
                        Err(_) => return,
                    },
                    Err(Over::Stale) => {
                        return self.events.lost("a newer session of the source was opened");
                    }
                    Err(Over::Failed(error)) => {
                        self.topic.0.fail(&error);
                        return self.events.lost(error.to_string());
                    }
                }
            }
        }
    }

    /// Session check, watermark rule and append are one step under the topic's lock.
    async fn decide(&self, batch: Vec<Outgoing<Prepared>>) -> Result<Decided, Over> {
        let inner = &*self.topic.0;
        let bytes = batch.iter().map(|sent| sent.entry.frame_bytes() + Unstamped::ROOM_BYTES).sum();
        let mut buffer = BytesMut::with_capacity(bytes);
        let checked: Vec<_> = batch.into_iter().map(|sent| self.check(&mut buffer, sent)).collect();
        let permit = inner.ledger.reserve(bytes as u64).await.map_err(Over::Failed)?;

        let mut receipts = Vec::with_capacity(checked.len());
        let mut entries = Vec::with_capacity(checked.len());
        let mut state = inner.state.lock();
        let broker_timestamp = inner.timestamp_ms();
        for Outgoing { previous, position, entry } in checked {
            let (checksum, entry) = match entry {
                Ok(good) => good,
                // It is not offered, so it leaves no trace, and what follows it meets a gap.
                Err(refusal) => {
                    receipts.push(Receipt::Refused(position, refusal));
                    continue;
                }
            };
            let inbound = state.sources.get_mut(&self.source).expect("a source stays known");
            let entry_at_source = Watermark { position, checksum };
            receipts.push(
                match inbound.target.offer(self.events.session(), previous, entry_at_source) {
                    Verdict::Take => {
                        entries.push(state.stamp(entry, broker_timestamp));
                        Receipt::Published(position)
                    }
                    Verdict::Duplicate | Verdict::InProgress => Receipt::Duplicate(position),
                    Verdict::Gap => Receipt::Gap(position),
                    // The lock is held, so the first entry that is offered is stale or none is.
                    Verdict::Stale => return Err(Over::Stale),
                },
            );
        }
        let taken = entries.len();
        let append = (taken > 0).then(|| inner.ledger.append_batch(permit, entries));
        Ok(Decided { append, taken, receipts })
    }

    fn check(
        &self,
        buffer: &mut BytesMut,
        sent: Outgoing<Prepared>,
    ) -> Outgoing<Result<(u32, Checked), Refusal>> {
        let Outgoing { previous, position, entry } = sent;
        let (bytes, bytes_max) = (entry.frame_bytes(), self.topic.0.config.frame_bytes_max);
        let entry = if bytes > bytes_max {
            let message = format!("a frame of {bytes} bytes is above the limit of {bytes_max}");
            Err(Refusal { message: message.into() })
        } else {
            match check(buffer, entry.head, &entry.payload) {
                Ok(checked) => Ok((entry.checksum, checked)),
                Err(error) => Err(Refusal { message: error.to_string().into() }),
            }
        };
        Outgoing { previous, position, entry }
    }

    async fn answer(&self, mut decisions: mpsc::UnboundedReceiver<Decided>) {
        while let Some(Decided { append, taken, receipts }) = decisions.recv().await {
            if let Some(append) = append {
                match append.await {
                    Ok(_) => self.durable(taken),
                    Err(error) => {
                        self.topic.0.fail(&error);
                        return self.events.lost(error.to_string());
                    }
                }
            }
            self.events.receipts(receipts);
        }
    }

    fn durable(&self, appends: usize) {
        let mut state = self.topic.0.state.lock();
        // After a failure the target counts no appends any more.
        if state.failed.is_some() {
            return;
        }
        let inbound = state.sources.get_mut(&self.source).expect("a source stays known");
        if let Some(Answered { session, watermark }) = inbound.target.durable(appends)
            && let Some((waits, waiting)) = inbound.waiting.take()
        {
            assert_eq!(waits, session, "only the newest opening waits");
            // Nobody may wait any more; then the session is open and nothing is sent in it.
            let _ = waiting.send(Ok(watermark));
        }
    }
}

/// The next sends up to [`BATCH_BYTES_MAX`], at least one.
pub(super) fn next_batch(
    sends: &mut std::iter::Peekable<impl Iterator<Item = Outgoing<Prepared>>>,
) -> Vec<Outgoing<Prepared>> {
    let mut bytes = 0;
    let mut batch = Vec::new();
    while let Some(sent) = sends
        .next_if(|sent| batch.is_empty() || bytes + sent.entry.frame_bytes() <= BATCH_BYTES_MAX)
    {
        bytes += sent.entry.frame_bytes();
        batch.push(sent);
    }
    batch
}

/// The largest append of a session: many entries, and a small part of the topic's byte budget, which
/// it must not take from local publishers at once.
pub(super) const BATCH_BYTES_MAX: usize = 1 << 20;

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
        topic.map_err(OpenError::Unreachable)?.open(opening, events).await
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("topic", &self.ledger.name()).finish_non_exhaustive()
    }
}
