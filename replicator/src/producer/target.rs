//! The remote's side: which sends of a source are taken.
//!
//! One [`Target`] stands for one source (cluster and topic, all its incarnations). The session
//! check, the watermark rule and the decision to append are one step; the caller makes the append
//! in the same step, so that appends are in the order of the decisions.
//!
//! | rule | without it |
//! |---|---|
//! | Sends are tested against the last *accepted* position. | A send that overtakes an append in progress is stored twice. |
//! | Answers speak only of what is durable. | The source acknowledges what a crash here then loses. |
//! | A failed append ends the session; its outcome is unknown. | Answered as refused, the entry is sent again and stored twice. |
//! | Sends of the newest open session only. | A late send of an older session lands behind a filter decision that has changed. |
//! | An opening is answered when every append accepted earlier is durable or failed. | The watermark it names moves afterwards, and the source sends again what then lands. |
//! | A session's id is never taken twice, nor a lower one. | Two owners of a topic are both current. |
//! | A revision of the source's record below the newest is refused. | A source that was put back to before it passed over an entry takes the entry for stored, since later ones are. |

use std::collections::VecDeque;

use georepl_cursor::Position;

use crate::session::{Incarnation, OpenError, Revision, SessionId, Watermark};

/// What becomes of an opening.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Opening {
    /// It is answered now, with what is durable.
    Answered(Option<Watermark>),
    /// It is answered by [`Target::durable`], when nothing is in progress.
    Waits,
    /// It is refused.
    Refused(OpenError),
}

/// What becomes of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Append it. It is accepted, and durable when [`Target::durable`] says so.
    Take,
    /// It was passed before, durably: say so.
    Duplicate,
    /// It was accepted in this session and is not durable yet: say nothing now.
    InProgress,
    /// What was to come before it is missing.
    Gap,
    /// It belongs to a session that is over or never was: say nothing.
    Stale,
}

/// An opening that is answered now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answered {
    /// Which session is open now.
    pub session: SessionId,
    /// What the remote holds.
    pub watermark: Option<Watermark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Closed,
    Opening(SessionId),
    Open(SessionId),
}

/// The sessions and the watermark of one source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    newest: SessionId,
    incarnation: Incarnation,
    revision: Revision,
    phase: Phase,
    accepted: Option<Watermark>,
    durable: Option<Watermark>,
    in_progress: VecDeque<(Incarnation, Watermark)>,
}

impl Target {
    /// A source whose newest session was `newest`, and of whose `incarnation`, in its `revision`, everything up to
    /// `watermark` is stored.
    pub fn new(
        newest: SessionId,
        incarnation: Incarnation,
        revision: Revision,
        watermark: Option<Watermark>,
    ) -> Self {
        Self {
            newest,
            incarnation,
            revision,
            phase: Phase::Closed,
            accepted: watermark,
            durable: watermark,
            in_progress: VecDeque::new(),
        }
    }

    /// A source asks for a session. From here on, sends of older sessions are stale.
    pub fn open(
        &mut self,
        session: SessionId,
        incarnation: Incarnation,
        revision: Revision,
    ) -> Opening {
        if session <= self.newest {
            let error = OpenError::LaterOwner { asked: session, newest: self.newest };
            return Opening::Refused(error);
        }
        if incarnation < self.incarnation {
            let newest = self.incarnation;
            return Opening::Refused(OpenError::LaterIncarnation { asked: incarnation, newest });
        }
        if incarnation == self.incarnation && revision < self.revision {
            let (newest, watermark) = (self.revision, reached(self.durable));
            let error = OpenError::LaterRevision { asked: revision, newest, watermark };
            return Opening::Refused(error);
        }
        self.revision = revision;
        if incarnation > self.incarnation {
            // Nothing of it is stored. Measured against the old watermark, earlier positions that
            // are sent again on purpose would be taken for duplicates.
            self.incarnation = incarnation;
            self.accepted = None;
            self.durable = None;
        }
        self.newest = session;
        self.phase = Phase::Opening(session);
        match self.answer() {
            Some(answered) => Opening::Answered(answered.watermark),
            None => Opening::Waits,
        }
    }

    /// A source sends an entry.
    pub fn offer(
        &mut self,
        session: SessionId,
        previous: Option<Position>,
        entry: Watermark,
    ) -> Verdict {
        if self.phase != Phase::Open(session) {
            return Verdict::Stale;
        }
        if reached(self.durable) >= Some(entry.position) {
            return Verdict::Duplicate;
        }
        if reached(self.accepted) >= Some(entry.position) {
            return Verdict::InProgress;
        }
        if previous > reached(self.accepted) {
            return Verdict::Gap;
        }
        self.accepted = Some(entry);
        self.in_progress.push_back((self.incarnation, entry));
        Verdict::Take
    }

    /// The oldest `appends` appends in progress are durable. Returns the opening that waited for
    /// the last of them.
    pub fn durable(&mut self, appends: usize) -> Option<Answered> {
        for _ in 0..appends {
            let (incarnation, entry) =
                self.in_progress.pop_front().expect("appends complete once, in order");
            if incarnation == self.incarnation {
                self.durable = Some(entry);
            }
        }
        self.answer()
    }

    /// An append failed: whether it is stored is unknown. Whatever is open or being opened is over,
    /// and this target takes nothing more; one that is made from the log goes on.
    pub fn failed(&mut self) {
        self.phase = Phase::Closed;
    }

    /// The session whose sends are taken.
    pub fn open_session(&self) -> Option<SessionId> {
        match self.phase {
            Phase::Open(session) => Some(session),
            Phase::Closed | Phase::Opening(_) => None,
        }
    }

    /// The highest durable position and its entry.
    pub fn watermark(&self) -> Option<Watermark> {
        self.durable
    }

    /// The newest session that was asked for.
    pub fn newest(&self) -> SessionId {
        self.newest
    }

    /// The newest incarnation of the source.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The newest revision of that incarnation.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Renames sessions, so that an exploration recognises situations that differ in nothing else.
    pub fn renumber(&mut self, rename: &dyn Fn(SessionId) -> SessionId) {
        self.newest = rename(self.newest);
        if let Phase::Opening(session) | Phase::Open(session) = &mut self.phase {
            *session = rename(*session);
        }
    }

    fn answer(&mut self) -> Option<Answered> {
        let Phase::Opening(session) = self.phase else {
            return None;
        };
        if !self.in_progress.is_empty() {
            return None;
        }
        self.phase = Phase::Open(session);
        Some(Answered { session, watermark: self.durable })
    }
}

fn reached(watermark: Option<Watermark>) -> Option<Position> {
    watermark.map(|held| held.position)
}

#[cfg(test)]
mod tests;
