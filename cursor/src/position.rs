//! Where an entry is: its position in the ledgers, and its place in the topic.

use std::fmt;
use std::str::FromStr;

use georepl_storage::{EntryId, LedgerId};

/// The address of one entry: ledger, then entry; ordered in that order.
///
/// Positions are stored, sent and compared, never computed: which position follows another is
/// known only to the chain of ledgers. "Nothing yet" is `Option::<Position>::None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The ledger.
    pub ledger: LedgerId,
    /// The entry in that ledger.
    pub entry: EntryId,
}

impl Position {
    /// The entry `entry` of ledger `ledger`.
    pub const fn new(ledger: LedgerId, entry: EntryId) -> Self {
        Self { ledger, entry }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ledger.get(), self.entry.get())
    }
}

/// A text that is not `ledger:entry`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no position: write it as ledger:entry, for example 17:42")]
pub struct ParsePositionError(String);

impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once(':').and_then(|(ledger, entry)| {
            let ledger = ledger.parse().ok().filter(|n| i64::try_from(*n).is_ok())?;
            let entry = entry.parse().ok().filter(|n| i64::try_from(*n).is_ok())?;
            Some(Self::new(LedgerId(ledger), EntryId(entry)))
        });
        parsed.ok_or_else(|| ParsePositionError(text.to_owned()))
    }
}

/// A place between two entries: behind the first `entries` entries of a ledger.
///
/// What is acknowledged ends at a place. Unlike a position there is one in an empty ledger, and one
/// before the first entry. It is stored and shown as the position of the entry before it, with
/// entry -1 before the first; [`Place::after`] an entry and before the next one is the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The ledger.
    pub ledger: LedgerId,
    /// How many of its entries lie before the place.
    pub entries: u64,
}

impl Place {
    /// The place behind an entry.
    pub const fn after(position: Position) -> Self {
        Self { ledger: position.ledger, entries: position.entry.get() + 1 }
    }

    /// The place before an entry.
    pub const fn before(position: Position) -> Self {
        Self { ledger: position.ledger, entries: position.entry.get() }
    }

    /// The entry right before it; none before the first entry of the ledger.
    pub fn entry_before(self) -> Option<Position> {
        Some(Position::new(self.ledger, EntryId(self.entries.checked_sub(1)?)))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry_before() {
            Some(position) => position.fmt(f),
            None => write!(f, "{}:-1", self.ledger),
        }
    }
}

/// How many entries of the topic lie before a place in it.
///
/// Offsets make distances arithmetic: the entry at offset n is the (n+1)-th of the topic, the
/// read position and the mark-delete are offsets, and a backlog is a difference. They live only
/// in memory, for as long as the topic is open; what is stored or sent is a [`Position`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(u64);

impl Offset {
    /// The place of the first entry.
    pub const ZERO: Self = Self(0);

    /// The place that `entries` entries precede.
    pub const fn new(entries: u64) -> Self {
        Self(entries)
    }

    /// The number of entries before this place.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The place `entries` entries further on.
    #[must_use]
    pub const fn plus(self, entries: u64) -> Self {
        Self(self.0 + entries)
    }

    /// The number of entries from `earlier` up to here; 0 when `earlier` is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A place in a topic. A new cursor starts there; one that exists stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StartAt {
    /// Before the first entry that the topic has.
    Earliest,
    /// Behind the last entry that the topic has acknowledged to its publishers.
    Latest,
    /// Before this entry. If the topic does not have it, before the next one that it has.
    Position(Position),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_text_round_trips_and_bad_text_is_named() {
        let position = Position::new(LedgerId(3), EntryId(17));
        assert_eq!(position.to_string().parse(), Ok(position));
        for bad in ["", "3", "3:", ":4", "3:-1", "a:b", "3:4:5", "9223372036854775808:0"] {
            assert!(bad.parse::<Position>().unwrap_err().to_string().contains(bad));
        }
    }

    #[test]
    fn positions_order_by_ledger_then_entry() {
        let at = |l, e| Position::new(LedgerId(l), EntryId(e));
        assert!(at(1, 9) < at(2, 0));
        assert!(at(2, 0) < at(2, 1));
    }
}
