//! Acknowledging, and moving a cursor elsewhere.

use georepl_storage::Advice;

use super::keeping::{ACKED_RANGES_MAX, Holes};
use super::{ManagedCursor, StartAt};
use crate::chain::Chain;
use crate::machine::{MarkDeleteRefused, Rewound};
use crate::position::{Offset, Place, Position};
use crate::progress::Progress;
use crate::snapshots::PersistError;

/// Why an acknowledgement or a move did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkDeleteError {
    /// The topic has no such entry. Nothing changed.
    #[error("the topic has no entry {0}")]
    NoSuchEntry(Position),
    /// The cursor refused. Nothing changed.
    #[error(transparent)]
    Refused(#[from] MarkDeleteRefused),
    /// It is acknowledged in memory, and will be stored if that says so.
    #[error(transparent)]
    NotStored(#[from] PersistError),
    /// It is acknowledged in memory. Some single entries will be delivered again after a restart, because there are too
    /// many ranges of them.
    #[error(
        "more than {ACKED_RANGES_MAX} ranges of single entries are acknowledged, and only the \
         first are stored; acknowledge what lies before them"
    )]
    TooManyHoles,
}

impl MarkDeleteError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::NoSuchEntry(_) => Advice::GiveUp,
            Self::Refused(refused) => refused.advice(),
            Self::NotStored(error) => error.advice(),
            Self::TooManyHoles => Advice::Retry,
        }
    }
}

impl ManagedCursor {
    /// Acknowledges every entry up to and including the one at `position`, durably.
    ///
    /// If the future is dropped the entries are acknowledged, and it will be stored.
    ///
    /// # Errors
    /// [`MarkDeleteError`].
    pub async fn mark_delete(&self, position: Position) -> Result<(), MarkDeleteError> {
        let offset = self.ledger.offset_of(position);
        let offset = offset.ok_or(MarkDeleteError::NoSuchEntry(position))?;
        self.acknowledge(offset.plus(1), None)?;
        Ok(self.persist().await?)
    }

    /// Acknowledges single entries, in any order, durably: all of them, or none if the topic does not have one.
    ///
    /// If the future is dropped the entries are acknowledged, and it will be stored.
    ///
    /// # Errors
    /// [`MarkDeleteError`].
    pub async fn delete(&self, positions: &[Position]) -> Result<(), MarkDeleteError> {
        self.accept_delete(positions)?;
        self.persist().await?;
        match self.stored_holes() {
            Holes::All => Ok(()),
            Holes::TooMany => Err(MarkDeleteError::TooManyHoles),
        }
    }

    /// As [`ManagedCursor::delete`], but returns before it is durable; it is stored soon.
    ///
    /// # Errors
    /// [`MarkDeleteError`]; nothing changed.
    pub fn accept_delete(&self, positions: &[Position]) -> Result<(), MarkDeleteError> {
        if positions.is_empty() {
            return Ok(());
        }
        let mut offsets = Vec::with_capacity(positions.len());
        self.ledger.with_chain(|chain| {
            for &position in positions {
                match chain.offset_of(position) {
                    Some(offset) => offsets.push(offset),
                    // What was deleted from the topic was acknowledged.
                    None if chain.locate(Place::after(position)).is_trimmed() => {}
                    None => return Err(MarkDeleteError::NoSuchEntry(position)),
                }
            }
            Ok(())
        })?;
        self.change(|state| {
            state.machine.appended(self.ledger.end());
            offsets.into_iter().try_for_each(|offset| state.machine.delete(offset))
        })?;
        Ok(())
    }

    /// Acknowledges every entry before `through`, and notes the last published position among them; `None` leaves it
    /// as it was. Returns before it is durable; it is stored soon.
    ///
    /// # Errors
    /// [`MarkDeleteRefused`].
    pub fn acknowledge(
        &self,
        through: Offset,
        last_published: Option<Position>,
    ) -> Result<(), MarkDeleteRefused> {
        self.change(|state| {
            state.machine.appended(self.ledger.end());
            state.machine.mark_delete(through, last_published)
        })
    }

    /// Acknowledges the next `entries` entries that are not acknowledged, or all if there are fewer, durably. Returns
    /// how many.
    ///
    /// # Errors
    /// [`MarkDeleteError`].
    pub async fn skip(&self, entries: u64) -> Result<u64, MarkDeleteError> {
        let skipped = self.change(|state| {
            state.machine.appended(self.ledger.end());
            let before = state.machine.backlog();
            let to = state.machine.place_after(entries);
            state.machine.mark_delete(to, None).map(|()| before - state.machine.backlog())
        })?;
        self.persist().await?;
        Ok(skipped)
    }

    /// Acknowledges every entry that the topic has now, durably. Returns how many were not acknowledged.
    ///
    /// # Errors
    /// [`MarkDeleteError`].
    pub async fn clear_backlog(&self) -> Result<u64, MarkDeleteError> {
        self.skip(u64::MAX).await
    }

    /// Reads on from somewhere else, without acknowledging anything: not before mark-delete. Reads that are waiting or
    /// in storage end with [`ReadOutcome::Superseded`](crate::ReadOutcome::Superseded).
    pub fn seek(&self, to: StartAt) -> Rewound {
        self.step(|state| {
            let to = self.offset_at(to);
            // After the place was looked up, so that it lies within.
            state.machine.appended(self.ledger.end());
            state.machine.seek(to)
        })
    }

    /// Acknowledges exactly what lies before `to`, forwards or backwards, durably, and reads on from there. A place that
    /// the topic does not have is the next one that it has. `progress` is changed with it; it must not call the cursor
    /// or its topic.
    ///
    /// If the future is dropped the cursor may be moved, and then it will be stored.
    ///
    /// # Errors
    /// [`MarkDeleteError`].
    pub async fn reset(
        &self,
        to: StartAt,
        progress: impl FnOnce(&mut Progress),
    ) -> Result<Rewound, MarkDeleteError> {
        let rewound = {
            // What it goes back to must not be deleted before that is stored.
            let _opening = self.ledger.opening().await;
            let rewound = self.change(|state| {
                let mut changed = state.machine.progress().clone();
                progress(&mut changed);
                let to = self.offset_at(to);
                state.machine.appended(self.ledger.end());
                let rewound = state.machine.reset(to)?;
                *state.machine.progress_mut() = changed;
                Ok::<_, MarkDeleteRefused>(rewound)
            })?;
            if self.snapshots.is_some() {
                self.now_holds_back();
            }
            rewound
        };
        self.persist().await?;
        Ok(rewound)
    }

    fn offset_at(&self, to: StartAt) -> Offset {
        self.ledger.with_chain(|chain| offset_of(chain, to))
    }
}

/// The place in a topic.
pub(super) fn offset_of(chain: &Chain, to: StartAt) -> Offset {
    match to {
        StartAt::Earliest => chain.start(),
        StartAt::Latest => chain.end(),
        StartAt::Position(position) => chain.locate(Place::before(position)).offset(),
    }
}
