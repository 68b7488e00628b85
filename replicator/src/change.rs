//! Changes of the cursor and its record that must be durable before anything else is sent.

use georepl_cursor::{Kept, Position, Progress, StartAt};
use georepl_storage::Advice;

use crate::session::Incarnation;
use crate::why::StopReason;

/// What becomes of an entry that the remote refuses again and again, or that is not readable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Poison {
    /// It holds up what follows until somebody acts. Nothing is ever passed over.
    #[default]
    Block,
    /// It is passed over and kept for [`Command::Release`] or [`Command::Discard`], while there is
    /// room: a topic's order is broken for that entry, and the others go on.
    Quarantine {
        /// After so many refusals in a row, at least 1; at once when it is not readable.
        after: u32,
    },
}

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Go on from there, back or forth, in a new incarnation: what the remote holds already is sent
    /// to it again on purpose.
    Seek(StartAt),
    /// Pass over the next so many entries that are not acknowledged.
    Skip(u64),
    /// Send an entry that lies in quarantine, before anything else.
    Release(Position),
    /// Give up an entry that lies in quarantine.
    Discard(Position),
}

/// Why a command was not carried out. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CommandRefused {
    /// The entry is not in quarantine.
    #[error("{0} does not lie in quarantine")]
    NotQuarantined(Position),
    /// The replicator has ended for good and no longer owns its cursor.
    #[error("the replicator ended for good: {0}; make a new one")]
    Ended(StopReason),
}

impl CommandRefused {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::NotQuarantined(_) => Advice::GiveUp,
            Self::Ended(_) => Advice::Reopen,
        }
    }
}

/// A change of the cursor. A replicator that makes one has no session meanwhile, and what it does
/// next follows from the changed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Acknowledge exactly what lies before a place.
    Seek {
        /// The place.
        to: StartAt,
        /// The incarnation that goes on from there.
        incarnation: Incarnation,
    },
    /// Acknowledge the next so many entries.
    Skip(u64),
    /// Note that an entry is passed over. It stays in the topic.
    Quarantine(Position),
    /// Note that an entry in quarantine is to be sent.
    Release(Position),
    /// Begin an incarnation in which a released entry can be sent.
    Begin {
        /// The incarnation.
        incarnation: Incarnation,
        /// The entry, which is sent in it before anything else.
        position: Position,
    },
    /// Note that a released entry is published.
    Delivered(Position),
    /// Note that an entry in quarantine is given up, and is not to be sent when it is read again.
    Discard(Position),
}

impl Change {
    /// A seek, from what is stored with the cursor. It begins an incarnation, unless nothing but an entry before the place
    /// can be in the current one: whether that has landed, only an opening of the same incarnation tells.
    pub fn seek(to: StartAt, progress: &Progress) -> Self {
        let lies_before = |at: &Position| match to {
            StartAt::Earliest => false,
            StartAt::Position(place) => *at < place,
            StartAt::Latest => true,
        };
        let in_doubt = progress.sending().is_some_and(|position| lies_before(&position));
        let incarnation = match in_doubt && progress.newest_incarnation <= progress.incarnation {
            true => Incarnation(progress.incarnation),
            false => next_incarnation(progress),
        };
        Self::Seek { to, incarnation }
    }

    /// Changes what is stored with the cursor.
    pub fn apply(&self, progress: &mut Progress) {
        let (kept, discarded) = (&mut progress.kept, &mut progress.discarded);
        match *self {
            Self::Skip(_) => {}
            Self::Quarantine(position) => {
                kept.insert(position, Kept::Quarantined);
                progress.revision += 1;
            }
            Self::Release(position) => {
                // What is being sent stays known as such, or it would be sent twice.
                let resting = kept.get_mut(&position).filter(|how| !how.is_released());
                resting.into_iter().for_each(|how| *how = Kept::Released);
            }
            Self::Discard(position) => {
                kept.remove(&position);
                discarded.insert(position);
            }
            Self::Begin { incarnation, position } => {
                kept.insert(position, Kept::Sending);
                begin(progress, incarnation);
            }
            Self::Delivered(position) => {
                kept.remove(&position);
                progress.revision += 1;
                progress.last_published = progress.last_published.max(Some(position));
            }
            Self::Seek { to, incarnation } => {
                // What lies behind the place is sent again as any other entry.
                match to {
                    StartAt::Earliest => {
                        kept.clear();
                        discarded.clear();
                    }
                    StartAt::Position(position) => {
                        kept.split_off(&position);
                        discarded.split_off(&position);
                    }
                    StartAt::Latest => {}
                }
                if incarnation.0 != progress.incarnation {
                    // Whether the remote has it is not learnt any more: somebody decides anew.
                    let sending = kept.values_mut().filter(|kept| **kept == Kept::Sending);
                    sending.for_each(|kept| *kept = Kept::InDoubt);
                    begin(progress, incarnation);
                }
            }
        }
    }
}

/// Above everything that either side knows, and above one in which they cannot agree any more.
pub(crate) fn next_incarnation(progress: &Progress) -> Incarnation {
    Incarnation(progress.incarnation.max(progress.newest_incarnation) + 1)
}

/// Nothing of it is published yet.
fn begin(progress: &mut Progress, incarnation: Incarnation) {
    progress.incarnation = incarnation.0;
    progress.revision = 0;
    progress.last_published = None;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn at(entry: u64) -> Position {
        format!("7:{entry}").parse().unwrap()
    }

    fn changed(change: Change) -> Progress {
        let kept = [(at(1), Kept::Quarantined), (at(5), Kept::Sending)].into();
        let (last_published, discarded) = (Some(at(9)), [at(3)].into());
        let mut progress =
            Progress { incarnation: 2, last_published, kept, discarded, ..Progress::default() };
        change.apply(&mut progress);
        progress
    }

    #[test]
    fn seek_begins_an_incarnation_and_replaces_what_it_reads_again() {
        let incarnation = Incarnation(3);
        let table = [
            (StartAt::Earliest, vec![], vec![]),
            (StartAt::Position(at(1)), vec![], vec![]),
            (StartAt::Position(at(3)), vec![at(1)], vec![]),
            (StartAt::Position(at(5)), vec![at(1)], vec![at(3)]),
            (StartAt::Latest, vec![at(1), at(5)], vec![at(3)]),
        ];
        for (to, kept, discarded) in table {
            let progress = changed(Change::Seek { to, incarnation });
            let how = |at: &Position| {
                if at.entry.get() == 5 { Kept::InDoubt } else { Kept::Quarantined }
            };
            let kept = kept.into_iter().map(|at| (at, how(&at))).collect();
            assert_eq!(progress.kept, kept, "{to:?}");
            assert_eq!(progress.discarded.into_iter().collect::<Vec<_>>(), discarded, "{to:?}");
            assert_eq!((progress.incarnation, progress.last_published), (3, None));
        }
    }

    #[test]
    fn revision_is_raised_by_what_later_sends_rely_on_and_begins_anew_with_an_incarnation() {
        let incarnation = Incarnation(3);
        let seek = |incarnation| Change::Seek { to: StartAt::Latest, incarnation };
        let table = [
            (Change::Quarantine(at(7)), 5),
            (Change::Delivered(at(5)), 5),
            // Without a session these may happen in two histories of a source, neither of which knows the other's.
            (Change::Skip(1), 4),
            (Change::Release(at(1)), 4),
            (Change::Discard(at(1)), 4),
            (seek(Incarnation(2)), 4),
            (seek(incarnation), 0),
            (Change::Begin { incarnation, position: at(5) }, 0),
        ];
        for (change, revision) in table {
            let kept = [(at(1), Kept::Quarantined), (at(5), Kept::Sending)].into();
            let mut progress =
                Progress { incarnation: 2, revision: 4, kept, ..Progress::default() };
            change.apply(&mut progress);
            assert_eq!(progress.revision, revision, "{change:?}");
        }
    }

    #[test]
    fn seek_goes_above_what_either_side_knows_and_begins_nothing_where_a_release_is_in_doubt() {
        for (newest_incarnation, next) in [(0, 3), (2, 3), (7, 8)] {
            for sending in [false, true] {
                let kept = if sending { Kept::Sending } else { Kept::Released };
                let kept = [(at(1), Kept::Quarantined), (at(5), kept)].into();
                let progress =
                    Progress { incarnation: 2, newest_incarnation, kept, ..Progress::default() };
                let places = [
                    (StartAt::Earliest, false),
                    (StartAt::Position(at(5)), false),
                    (StartAt::Position(at(6)), true),
                    (StartAt::Latest, true),
                ];
                for (to, beyond) in places {
                    let stays = sending && beyond && newest_incarnation <= 2;
                    let incarnation = Incarnation(if stays { 2 } else { next });
                    assert_eq!(Change::seek(to, &progress), Change::Seek { to, incarnation });
                }
            }
        }
    }

    #[test]
    fn seek_that_begins_no_incarnation_leaves_an_entry_that_may_have_landed_as_it_is() {
        let seek = Change::Seek { to: StartAt::Latest, incarnation: Incarnation(2) };
        let progress = changed(seek);
        assert_eq!((progress.incarnation, progress.last_published), (2, Some(at(9))));
        assert_eq!(progress.kept[&at(5)], Kept::Sending);
    }

    #[test]
    fn release_takes_an_entry_out_of_quarantine_and_leaves_one_that_is_being_sent() {
        let kept = [(at(1), Kept::InDoubt)].into();
        let mut doubtful = Progress { kept, ..Progress::default() };
        Change::Release(at(1)).apply(&mut doubtful);
        assert_eq!(doubtful.kept[&at(1)], Kept::Released);
        let released = |entry| changed(Change::Release(at(entry))).kept;
        let expected = |first, second| BTreeMap::from([(at(1), first), (at(5), second)]);
        assert_eq!(released(1), expected(Kept::Released, Kept::Sending));
        assert_eq!(released(5), expected(Kept::Quarantined, Kept::Sending));
        assert_eq!(released(7), expected(Kept::Quarantined, Kept::Sending));
    }

    #[test]
    fn entry_that_is_given_up_is_noted_as_such() {
        let progress = changed(Change::Discard(at(1)));
        assert_eq!(progress.kept.into_keys().collect::<Vec<_>>(), [at(5)]);
        assert_eq!(progress.discarded, [at(1), at(3)].into());
    }

    #[test]
    fn released_entry_is_published_in_the_incarnation_that_begins_for_it() {
        let begun = changed(Change::Begin { incarnation: Incarnation(3), position: at(5) });
        assert_eq!((begun.incarnation, begun.last_published), (3, None));
        assert_eq!(begun.kept[&at(5)], Kept::Sending);
        let mut delivered = begun;
        Change::Delivered(at(5)).apply(&mut delivered);
        assert_eq!(delivered.last_published, Some(at(5)));
        assert_eq!(delivered.kept, [(at(1), Kept::Quarantined)].into());
    }
}
