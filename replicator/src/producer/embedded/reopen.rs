//! Going on in a log that had failed and was opened again.

use std::collections::{BTreeMap, VecDeque};

use georepl_cursor::{Entry, ManagedLedger, Offset, Position, ReadError};
use georepl_storage::Advice;

use super::{EmbeddedTopic, Inbound, NewTopicError, Placed, State};
use crate::message::{Frame, SOURCE_POSITION_PROPERTY};
use crate::session::{Source, Watermark};

/// Why a topic cannot go on in a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReopenError {
    /// The topic's own log has not failed.
    #[error("topic {topic} takes appends; close it before it is opened again")]
    TakesAppends {
        /// The topic.
        topic: String,
    },
    /// The log is another one, or it has lost entries.
    #[error(
        "the log of topic {topic} had {before} acknowledged entries and has {found} now; \
         use a new topic"
    )]
    Shorter {
        /// The topic.
        topic: String,
        /// Where it ended.
        before: Offset,
        /// Where it ends.
        found: Offset,
    },
    /// The log does not fit the topic's settings.
    #[error(transparent)]
    Settings(#[from] NewTopicError),
    /// The end of the log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl ReopenError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::TakesAppends { .. } | Self::Shorter { .. } => Advice::GiveUp,
            Self::Settings(error) => error.advice(),
            Self::Read(error) => error.advice(),
        }
    }
}

impl EmbeddedTopic {
    /// The topic, going on in `log`: its own log, which had failed, was closed and was opened
    /// again. This object stays at its end; what it knows of the sources goes over.
    ///
    /// What the outcome was of the appends that failed is read from the end of the log: of each
    /// source, the entries that were accepted and are found there are durable, and the others will
    /// be taken when they are sent again.
    ///
    /// If the future is dropped nothing has changed.
    ///
    /// # Errors
    /// [`ReopenError`].
    pub async fn reopen(&self, log: ManagedLedger) -> Result<Self, ReopenError> {
        let (inner, topic) = (&*self.0, || log.name().to_owned());
        let Some(refusal) = inner.ledger.refusal() else {
            return Err(ReopenError::TakesAppends { topic: topic() });
        };
        inner.fail(&refusal);
        let (before, found) = (inner.ledger.end(), log.end());
        if found < before {
            return Err(ReopenError::Shorter { topic: topic(), before, found });
        }
        // Nothing is accepted after a failure, so this is all there will ever be in doubt.
        let (mut index, mut sources) = {
            let state = inner.state.lock();
            let reloads = state.sources.iter().map(|(source, i)| (source.clone(), Reload::of(i)));
            (state.index, reloads.collect::<BTreeMap<_, _>>())
        };
        let in_doubt = sources.values().filter_map(|reload| reload.in_doubt.front());
        let from = in_doubt.map(|placed| placed.offset).min();
        let last = found.get().checked_sub(1).map(Offset::new);
        let mut at = from.into_iter().chain(last).min().unwrap_or(found);
        while at < found {
            for entry in log.read(at, found, READ_BYTES).await? {
                at = entry.offset.plus(1);
                let Ok(frame) = Frame::parse(entry.payload.clone()) else { continue };
                if let Ok(Some(broker)) = frame.broker_entry_metadata() {
                    index = broker.index.map_or(index, |last| last + 1);
                }
                find(&mut sources, &entry, &frame);
            }
        }
        let inbound = sources.into_iter().map(|(source, reload)| (source, reload.inbound()));
        let state = State { index, sources: inbound.collect(), failed: None };
        Ok(Self::with_state(log, inner.config.clone(), state)?)
    }
}

/// Bytes that are read of the log at once.
const READ_BYTES: u64 = 1 << 20;

/// What is being found out of one source.
struct Reload {
    inbound: Inbound,
    in_doubt: VecDeque<Placed>,
    held: Option<Watermark>,
}

impl Reload {
    fn of(inbound: &Inbound) -> Self {
        let (target, in_doubt) = (inbound.target.clone(), inbound.in_doubt.clone());
        let held = target.watermark();
        Self {
            inbound: Inbound { target, in_doubt: VecDeque::new(), waiting: None },
            in_doubt,
            held,
        }
    }

    /// The log holds the entry that was at `position` of the source.
    fn stored(&mut self, offset: Offset, position: Position) {
        // Both are compared: an entry that was refused has no place, and an older incarnation may
        // have had the same position elsewhere.
        let found = |placed: &&Placed| placed.offset == offset && placed.entry.position == position;
        if let Some(placed) = self.in_doubt.iter().find(found)
            && placed.incarnation == self.inbound.target.incarnation()
        {
            self.held = Some(placed.entry);
        }
    }

    fn inbound(mut self) -> Inbound {
        // Whoever waited for an opening was told that it failed.
        self.inbound.target.reload(self.held);
        self.inbound
    }
}

/// Notes which source an entry came from, if it came from one.
fn find(sources: &mut BTreeMap<Source, Reload>, entry: &Entry, frame: &Frame) {
    let Ok(metadata) = frame.metadata() else { return };
    let Some(cluster) = metadata.replicated_from else { return };
    let named = |property: &&crate::message::Property| property.key == SOURCE_POSITION_PROPERTY;
    let position = metadata.properties.iter().rev().find(named);
    let Some(Ok(position)) = position.map(|property| property.value.parse::<Position>()) else {
        return;
    };
    let of_cluster = sources.iter_mut().filter(|(source, _)| *source.cluster == *cluster);
    of_cluster.for_each(|(_, reload)| reload.stored(entry.offset, position));
}
