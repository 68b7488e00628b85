//! Names of ledgers, entries and bookies.

use std::fmt;
use std::sync::Arc;

/// The id of a ledger, unique in one metadata store and never used again. At most 2^63 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LedgerId(pub u64);

impl LedgerId {
    /// The id as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for LedgerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The place of an entry in its ledger: 0, 1, 2 and so on without a gap. At most 2^63 - 1.
///
/// "No entry yet" is `Option::<EntryId>::None`; the -1 of stored and sent formats exists only in their codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u64);

impl EntryId {
    /// The first entry of every ledger.
    pub const FIRST: Self = Self(0);

    /// The entry after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The entry before this one; none before the first.
    #[must_use]
    pub const fn checked_prev(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// The entry that follows `last`, which may be "none yet".
    #[must_use]
    pub fn following(last: Option<Self>) -> Self {
        last.map_or(Self::FIRST, Self::next)
    }

    /// The id as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a bookie. Clones share the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BookieId(Arc<str>);

impl BookieId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One life of a bookie under its id: the creation id of its cookie's record in the metadata store. A bookie that was
/// wiped and set up again has the same id and another instance; one that was restarted has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance(pub u64);

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<&str> for BookieId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl From<String> for BookieId {
    fn from(id: String) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for BookieId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// "none" or the entry's id, for messages.
pub(crate) struct Shown(pub(crate) Option<EntryId>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(entry) => entry.fmt(f),
            None => f.write_str("none"),
        }
    }
}
