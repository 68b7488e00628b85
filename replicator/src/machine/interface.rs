//! What a replicator can suffer and all it can do.

use std::sync::Arc;

use georepl_cursor::{
    Offset, Position, Progress, ReadId, ReadLimits, ReadOutcome, ReadRefused, ReadStart, Rewound,
};
use georepl_storage::Time;

use crate::change::{Change, Command, CommandRefused};
use crate::session::{Incarnation, OpenError, Outgoing, Receipt, Revision, SessionId};
use crate::why::Reason;
use crate::window::Delivered;

/// What the world sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It was started and has not yet rewound the cursor under its first session.
    Starting,
    /// It replicates, or says why it does not.
    Started,
    /// It is not running.
    Stopped,
}

/// What the remote holds, as its answer to an opening says, checked against the source's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// Everything up to here; nothing yet when `None`.
    Through(Option<Position>),
    /// A position where this source has no entry, or another one.
    Foreign(Position),
}

impl Held {
    /// Up to where the remote holds everything; or why nothing may be sent to it, if what it holds does not agree with what
    /// is stored with the cursor.
    pub(crate) fn checked(self, progress: &Progress) -> Result<Option<Position>, Reason> {
        let last_published = progress.last_published;
        match self {
            Self::Foreign(watermark) => Err(Reason::RemoteAhead { watermark }),
            Self::Through(watermark) if watermark < last_published => {
                let last_published = last_published.expect("no position is below no position");
                Err(Reason::RemoteBehind { watermark, last_published })
            }
            // In the incarnation that began for an entry nothing else is sent before it is known to have arrived.
            Self::Through(watermark @ Some(held))
                if progress.sending().is_some_and(|sending| sending != held) =>
            {
                Err(Reason::CursorBehind { watermark, last_published })
            }
            Self::Through(watermark) => Ok(watermark),
        }
    }
}

/// How to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// At once. What was sent may still land; the next session's opening tells.
    Now,
    /// Read and send no more, and stop when every send is answered or at this time.
    Settle(Time),
}

/// Everything that can happen to a replicator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input<E> {
    /// Start it. No effect when it runs or may not be started again.
    Start,
    /// Stop it. No effect when it is stopped.
    Stop(Stop),
    /// The answer to [`Output::Read`].
    ReadAnswered(Result<ReadStart, ReadRefused>),
    /// A read ended. The cursor reports each once, in order.
    ReadCompleted {
        /// Which read.
        id: ReadId,
        /// How it ended.
        outcome: ReadOutcome<Delivered<E>>,
    },
    /// The answer to [`Output::CancelRead`]: whether a waiting read was taken.
    CancelAnswered(bool),
    /// The answer to [`Output::Rewind`].
    Rewound(Rewound),
    /// The cursor is closed: nothing can be read or acknowledged any more.
    CursorClosed,
    /// The opening of a session was answered.
    Opened {
        /// Which session.
        session: SessionId,
        /// What the remote holds.
        held: Held,
    },
    /// A session could not be opened.
    OpenFailed {
        /// Which session.
        session: SessionId,
        /// Why.
        error: OpenError,
    },
    /// The opening of a session was refused because the remote knew a later one of this source. The
    /// cursor is its owner's all the same: the source was put back to an earlier state, and it is
    /// stored that its sessions follow that one.
    SetBack {
        /// Which session.
        session: SessionId,
        /// The owner of sessions from now on, above every one that the remote knew.
        owner: u64,
    },
    /// The remote answered for entries.
    Receipts {
        /// In which session.
        session: SessionId,
        /// The answers, in any order.
        receipts: Vec<Receipt>,
    },
    /// The remote takes nothing more of a session for now; it is over with the next receipts.
    NotWritable {
        /// Which session.
        session: SessionId,
        /// Why, and what to do about it, for people.
        message: Arc<str>,
    },
    /// A session ended by itself.
    Lost {
        /// Which session.
        session: SessionId,
        /// Why, for people.
        message: Arc<str>,
    },
    /// An operator asks for something; answered by [`Output::Answered`], in order.
    Command(Command),
    /// The change that was under way is durable, with the number of entries that it acknowledged;
    /// or it is made and could not be stored.
    Stored(Result<u64, Arc<str>>),
    /// The answer to [`Output::Fetch`].
    Fetched(Result<Delivered<E>, Arc<str>>),
    /// Time has passed.
    Tick,
    /// A part outside the machine broke a promise; the replicator ends with this reason.
    Failed(Arc<str>),
}

/// Everything a replicator does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output<E> {
    /// Open a session; answer with [`Input::Opened`] or [`Input::OpenFailed`].
    Open {
        /// The new session.
        session: SessionId,
        /// The source's incarnation.
        incarnation: Incarnation,
        /// The revision of what is noted in it.
        revision: Revision,
    },
    /// Give a session up, open or still opening.
    Close(SessionId),
    /// Start a read or a wait; answer with [`Input::ReadAnswered`].
    Read(ReadLimits),
    /// Cancel the waiting read; answer with [`Input::CancelAnswered`].
    CancelRead,
    /// Rewind the cursor; answer with [`Input::Rewound`].
    Rewind,
    /// Publish entries, in this order.
    Send {
        /// In which session.
        session: SessionId,
        /// The entries.
        batch: Vec<Outgoing<E>>,
    },
    /// Change the cursor; answer with [`Input::Stored`].
    Change(Change),
    /// Store again what was changed; answer with [`Input::Stored`].
    Persist,
    /// Read the entry at a position, which was acknowledged; answer with [`Input::Fetched`].
    Fetch(Position),
    /// A command was carried out, and acknowledged so many entries, or was refused.
    Answered(Result<u64, CommandRefused>),
    /// Acknowledge every entry before `through`.
    Acknowledge {
        /// The first entry that is not acknowledged.
        through: Offset,
        /// The last position among them that the remote holds, if it moved.
        last_published: Option<Position>,
    },
}
