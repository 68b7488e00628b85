//! What became of every entry that was read.

use georepl_cursor::Position;

use crate::filter::PassReason;
use crate::window::Settled;

/// Counts over positions, exact at every step, and of what happened on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Accounting {
    /// Entries delivered by the cursor; one that is read again after a rewind counts again.
    pub read: u64,
    /// Acknowledged because the remote stored them and said so.
    pub published: u64,
    /// Acknowledged because the remote had passed them before: settled earlier.
    pub duplicate: u64,
    /// Acknowledged because they had been replicated to this cluster.
    pub filtered_already_replicated: u64,
    /// Acknowledged because they are not for this remote.
    pub filtered_not_for_this_remote: u64,
    /// Acknowledged and kept in quarantine.
    pub quarantined: u64,
    /// Acknowledged although it was not sent, because an operator had given it up in quarantine.
    pub discarded: u64,
    /// Taken back by a rewind, a stop or a change, to be read again.
    pub rewound: u64,
    /// Read and not yet any of these.
    pub open: u64,
    /// Acknowledged by an operator's seek or skip. They are not read, or were taken back before.
    pub skipped: u64,
    /// Published out of quarantine.
    pub released: u64,
    /// Stored bytes of what was published.
    pub published_bytes: u64,
    /// Entries given to the remote, every attempt.
    pub sends: u64,
    /// Those of them that had been given to it before.
    pub sent_again: u64,
    /// Rewinds of the cursor.
    pub rewinds: u64,
    /// Sessions opened or tried to.
    pub sessions: u64,
    /// Sessions that ended by themselves, or were given up because a receipt stayed away.
    pub links_lost: u64,
    /// Sessions given up because an entry was refused.
    pub refusals: u64,
    /// Sessions given up because the remote had not accepted what came before.
    pub gaps: u64,
    #[serde(skip)]
    highest_sent: Option<Position>,
}

impl Accounting {
    /// Whether every entry read is accounted for.
    pub fn balances(&self) -> bool {
        let settled = self.published + self.duplicate + self.filtered();
        let passed_over = self.quarantined + self.discarded;
        self.read == settled + passed_over + self.rewound + self.open
    }

    /// Acknowledged because of what they are.
    pub fn filtered(&self) -> u64 {
        self.filtered_already_replicated + self.filtered_not_for_this_remote
    }

    pub(super) fn settled(&mut self, how: Settled, bytes: u64) {
        match how {
            Settled::Published => {
                self.published += 1;
                self.published_bytes += bytes;
            }
            Settled::Duplicate => self.duplicate += 1,
            Settled::Quarantined => self.quarantined += 1,
            Settled::Discarded => self.discarded += 1,
            Settled::Passed(PassReason::AlreadyReplicated) => self.filtered_already_replicated += 1,
            Settled::Passed(PassReason::NotForThisRemote) => self.filtered_not_for_this_remote += 1,
        }
    }

    pub(super) fn sent(&mut self, position: Position) {
        self.sends += 1;
        if self.highest_sent >= Some(position) {
            self.sent_again += 1;
        } else {
            self.highest_sent = Some(position);
        }
    }
}
