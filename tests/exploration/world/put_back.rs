//! The source is put back from an older copy of itself.
//!
//! It forgets entries, and uses their positions again for others; acknowledgements; and that it had sessions with ids
//! that it is now about to use.

use georepl_cursor::{Offset, Progress};
use georepl_replicator::{Held, Input, SessionId, Watermark};

use super::World;

/// What a copy of the source holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SourceCopy {
    end: Offset,
    mark_delete: Offset,
    progress: Progress,
    version: u64,
}

impl SourceCopy {
    /// Made before the cursor had its first owner.
    pub(super) fn of_the_start(present: u8) -> Self {
        let end = Offset::new(present.into());
        Self { end, mark_delete: Offset::ZERO, progress: Progress::default(), version: 0 }
    }
}

/// An entry is its place in the topic, and how often that place had another before.
const PLACES: u8 = 1 << 4;

pub(super) fn place(entry: u8) -> u8 {
    entry % PLACES
}

impl World {
    /// What the source has at a place.
    pub(super) fn entry_at(&self, at: u8) -> u8 {
        at + self.reused[usize::from(at)] * PLACES
    }

    /// Whether the remote has it.
    pub(super) fn holds(&self, at: u8) -> bool {
        self.log.contains(&self.entry_at(at))
    }

    /// As the replicator's driver compares what the remote holds with the source's own entry.
    pub(super) fn compared(&self, held: Option<Watermark>) -> Held {
        match held {
            Some(held) if self.is_foreign(held) => Held::Foreign(held.position),
            held => Held::Through(held.map(|held| held.position)),
        }
    }

    fn is_foreign(&self, held: Watermark) -> bool {
        let at = held.position.entry.get();
        at >= self.cursor.end().get() || held.checksum != u32::from(self.entry_at(at as u8))
    }

    pub(super) fn copy_source(&mut self) {
        self.copy = SourceCopy {
            end: self.cursor.end(),
            mark_delete: self.stored.mark_delete,
            progress: self.stored.progress.clone(),
            version: self.version,
        };
    }

    pub(super) fn put_back(&mut self) {
        self.put_back += 1;
        let SourceCopy { end, mark_delete, progress, version } = self.copy.clone();
        for at in end.get()..self.cursor.end().get() {
            self.reused[at as usize] += 1;
        }
        (self.stored.mark_delete, self.stored.progress) = (mark_delete, progress);
        self.version = version;
        self.restart(end);
    }

    /// As the replicator's driver does when a later session of its own cursor is known: it keeps the cursor, and stores
    /// that its sessions follow that one.
    pub(super) fn follow(&mut self, session: SessionId, newest: SessionId) {
        self.version += 1;
        let progress = self.cursor.progress_mut();
        progress.sessions_after = progress.sessions_after.max(newest.owner);
        let owner = progress.sessions_after + self.version;
        self.keep();
        self.input(Input::SetBack { session, owner });
    }

    /// The remote took an opening of an earlier history of the source since. Who asked for it is gone, and sends nothing.
    pub(super) fn is_outdone(&self) -> bool {
        self.put_back > 0 && Some(self.target.newest()) > self.replicator.session()
    }

    /// Rule 12: nothing is sent to a remote that lost what was published, or that holds what the source does not have.
    pub(super) fn check_named(&self) -> Result<(), String> {
        let session = self.replicator.session();
        if !self.replicator.connected() || self.target.open_session() != session {
            return Ok(());
        }
        let held = self.target.watermark();
        if held.is_some_and(|held| self.is_foreign(held)) {
            return Err(format!(
                "rule 12: it goes on, but the remote holds another entry: {held:?}"
            ));
        }
        let published = self.replicator.last_published();
        if held.map(|held| held.position) < published {
            return Err(format!("rule 12: it goes on, but the remote lost {published:?}"));
        }
        Ok(())
    }
}
