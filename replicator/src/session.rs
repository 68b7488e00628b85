//! The words a replicator and a remote exchange: sources, sessions, sends and answers.
//!
//! An entry is sent as `(previous, this)`: the position of the entry sent before it and its own.
//! The remote takes it only if `previous ≤ accepted < this`, so that it can neither store an
//! entry twice nor skip one that was to come before. What it answers is durable at its side.

use std::fmt;
use std::sync::Arc;

use georepl_cursor::Position;
use georepl_storage::Advice;

/// Whose entries are sent: a topic of a cluster, in one incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// The source cluster's name.
    pub cluster: Arc<str>,
    /// The topic's full name.
    pub topic: Arc<str>,
}

/// Raised when earlier positions are sent again on purpose, so that they are not taken for
/// duplicates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// Raised within an incarnation before anything is sent that relies on what the source has noted: that it passed over an
/// entry, or that a released one has arrived. A source that was put back to before such a note is told apart by it.
///
/// A source raises it only after a session with the one before was opened, so of two histories of a source the one that the
/// remote does not know cannot come to the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// One connection of a source to a remote. Ids grow with every opening and are never used again:
/// `owner` is the version that the cursor's record got when its owner took it, so that of two
/// owners the later one wins; `counter` numbers the openings of that owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// Which owner of the cursor.
    pub owner: u64,
    /// Which opening of that owner.
    pub counter: u64,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.owner, self.counter)
    }
}

/// The highest position of a source that a remote holds, and which entry it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Watermark {
    /// The source's position.
    pub position: Position,
    /// CRC32C of the entry's bytes at the source. A source that lost data and used the position
    /// again for another entry is told apart by it.
    pub checksum: u32,
}

/// One entry on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outgoing<E> {
    /// The position sent before this one since the last rewind, or the watermark for the first.
    pub previous: Option<Position>,
    /// This entry's position.
    pub position: Position,
    /// What is published.
    pub entry: E,
}

/// Why a remote refused an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The remote's words, for people.
    pub message: Arc<str>,
}

/// The remote's answer to one send. It speaks only of what is durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Receipt {
    /// The entry is stored.
    Published(Position),
    /// The remote had passed this position before; nothing was stored.
    Duplicate(Position),
    /// `previous` is beyond what the remote accepted; nothing was stored.
    Gap(Position),
    /// The remote does not take this entry; nothing was stored.
    Refused(Position, Refusal),
}

/// Why a session could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OpenError {
    /// The remote is unreachable, or did not answer. Opening again may help.
    #[error("the remote is unreachable: {0}")]
    Unreachable(Arc<str>),
    /// A later owner of the cursor opened a session. Opening again never helps.
    #[error("session {asked} was refused: a later owner opened session {newest}")]
    LaterOwner {
        /// The session asked for.
        asked: SessionId,
        /// The newest session the remote knows.
        newest: SessionId,
    },
    /// The remote knows a later incarnation of the source.
    #[error("incarnation {} was refused: the remote knows incarnation {}", asked.0, newest.0)]
    LaterIncarnation {
        /// The incarnation asked for.
        asked: Incarnation,
        /// The newest incarnation the remote knows.
        newest: Incarnation,
    },
    /// The remote knows a later revision of the source's incarnation.
    #[error("revision {} was refused: the remote knows revision {}", asked.0, newest.0)]
    LaterRevision {
        /// The revision asked for.
        asked: Revision,
        /// The newest revision the remote knows.
        newest: Revision,
        /// What the remote holds of the incarnation.
        watermark: Option<Position>,
    },
}

impl OpenError {
    /// What to do about it. The replicator itself opens again as long as that may help.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Unreachable(_) => Advice::Retry,
            // Whoever took the cursor over goes on; taking it back is a decision.
            Self::LaterOwner { .. } => Advice::Reopen,
            Self::LaterIncarnation { .. } | Self::LaterRevision { .. } => Advice::GiveUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_advise_by_who_must_act() {
        let (asked, newest) = (SessionId::default(), SessionId { owner: 2, counter: 1 });
        assert_eq!(OpenError::Unreachable("down".into()).advice(), Advice::Retry);
        assert_eq!(OpenError::LaterOwner { asked, newest }.advice(), Advice::Reopen);
        let (asked, newest) = (Incarnation(1), Incarnation(2));
        assert_eq!(OpenError::LaterIncarnation { asked, newest }.advice(), Advice::GiveUp);
        let (asked, newest) = (Revision(1), Revision(2));
        let error = OpenError::LaterRevision { asked, newest, watermark: None };
        assert_eq!(error.advice(), Advice::GiveUp);
    }
}
