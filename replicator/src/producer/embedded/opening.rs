//! Opening a topic: what is known of its sources is read from its keeper and the end of its log.

use std::collections::BTreeMap;
use std::sync::Arc;

use georepl_cursor::{Entry, ManagedLedger, Offset, OpenCursorError, Position, ReadError};
use georepl_storage::{Advice, EntryId, LedgerId};
use parking_lot::Mutex;

use super::keeping::{InvalidSource, KEEPER, Keeper, Known};
use super::{EmbeddedTopic, EmbeddedTopicConfig, Inner, State};
use crate::message::{Frame, Origin};
use crate::session::{Incarnation, Watermark};

/// Why a topic cannot take entries of other clusters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenTopicError {
    /// The largest frame, as it is stored, would be no entry.
    #[error(
        "topic {topic} is to take frames of {frame_bytes_max} bytes, but its entries have at most \
         {entry_bytes_max}; leave {} bytes between the two",
        EmbeddedTopic::ROOM_BYTES
    )]
    FramesTooLarge {
        /// The topic.
        topic: String,
        /// The limit of frames.
        frame_bytes_max: usize,
        /// The limit of entries.
        entry_bytes_max: usize,
    },
    /// What is kept of the sources could not be read or written.
    #[error("the sources of the topic are not known: {0}")]
    Keeper(OpenCursorError),
    /// It could not be understood.
    #[error(transparent)]
    Source(#[from] InvalidSource),
    /// The end of the log could not be read.
    #[error("the end of the topic's log was not read: {0}")]
    Read(#[from] ReadError),
}

impl OpenTopicError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::FramesTooLarge { .. } | Self::Source(_) => Advice::GiveUp,
            Self::Keeper(error) => error.advice(),
            Self::Read(error) => error.advice(),
        }
    }
}

impl EmbeddedTopic {
    /// The topic in `ledger`, whatever is in it.
    ///
    /// What an earlier owner knew of the sources is known again: sessions that are not newer are
    /// refused, what is stored is a duplicate, and of appends whose outcome was unknown the log
    /// tells which were stored. Other objects of the topic must not be used any more.
    ///
    /// If the future is dropped nothing has changed.
    ///
    /// # Errors
    /// [`OpenTopicError`].
    pub async fn open(
        ledger: ManagedLedger,
        config: EmbeddedTopicConfig,
    ) -> Result<Self, OpenTopicError> {
        let (frame_bytes_max, entry_bytes_max) = (config.frame_bytes_max, ledger.entry_bytes_max());
        if frame_bytes_max.saturating_add(Self::ROOM_BYTES) > entry_bytes_max {
            let topic = ledger.name().to_owned();
            return Err(OpenTopicError::FramesTooLarge { topic, frame_bytes_max, entry_bytes_max });
        }
        let end = ledger.end();
        let last = end.get().checked_sub(1).map(Offset::new).filter(|last| *last >= ledger.start());
        let mut from = last.unwrap_or(end);
        let (mut keeper, mut known) = (Keeper::default(), BTreeMap::new());
        if ledger.cursors().iter().any(|name| name == KEEPER) {
            let cursor;
            (cursor, known) = Keeper::open(&ledger).await?;
            from = from.min(cursor.mark_delete_offset());
            keeper = Keeper::with(cursor);
        }
        let mut found = Found { index: from.get(), sources: known };
        while from < end {
            for entry in ledger.read(from, end, READ_BYTES).await? {
                from = entry.offset.plus(1);
                found.look_at(entry);
            }
        }
        let mut state = State { index: found.index, ..State::default() };
        state.adopt(found.sources);
        Ok(Self(Arc::new(Inner { ledger, config, state: Mutex::new(state), keeper })))
    }
}

/// Bytes that are read of the log at once.
const READ_BYTES: u64 = 1 << 20;

/// What the log tells.
struct Found {
    /// Of the next message. Until a stamp says it, each entry counts as one.
    index: u64,
    sources: BTreeMap<Arc<str>, Known>,
}

impl Found {
    /// What is no frame, or has no stamp, came here by another way: it is a message and no more.
    fn look_at(&mut self, entry: Entry) {
        let frame = Frame::parse(entry.payload);
        let stamp = frame.as_ref().ok().and_then(|f| f.broker_entry_metadata().ok().flatten());
        let index = stamp.and_then(|stamp| stamp.index);
        self.index = index.map_or(self.index, |last| last) + 1;
        let Some(origin) = stamp.and_then(|stamp| stamp.origin) else { return };
        let facts = frame.as_ref().ok().and_then(|frame| frame.facts().ok());
        if let Some(cluster) = facts.and_then(|facts| facts.replicated_from()) {
            self.stored(cluster, origin);
        }
    }

    fn stored(&mut self, cluster: &str, origin: Origin) {
        let Origin { incarnation, ledger, entry, checksum } = origin;
        // An opening is kept before anything of it is stored, so there are no other sources, and no
        // later incarnations, than those that are kept.
        let Some(known) = self.sources.get_mut(cluster) else { return };
        if known.incarnation == Incarnation(incarnation) {
            let position = Position::new(LedgerId(ledger), EntryId(entry));
            known.watermark = Some(Watermark { position, checksum });
        }
    }
}
