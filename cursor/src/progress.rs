//! What a replicator keeps with its cursor, so that it is written together with mark-delete.

use std::collections::{BTreeMap, BTreeSet};

use georepl_storage::{EntryId, LedgerId};

use crate::position::Position;

/// Entries that may be noted at once, kept or given up. Each is some 40 bytes of every snapshot of its cursor.
pub const KEPT_MAX: usize = 1_000;

/// How far a replicator has come, beyond what is acknowledged. A cursor stores it and gives it no
/// meaning, except that the topic keeps what is named there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Raised when earlier positions are sent again on purpose; 0 until something was sent.
    pub incarnation: u64,
    /// Raised within an incarnation whenever it is noted that an entry was passed over or was sent out of its turn, before
    /// any later one is sent. A remote that knows a higher one knows a later state of this record.
    pub revision: u64,
    /// The last position at or below mark-delete that the remote holds in this incarnation.
    pub last_published: Option<Position>,
    /// Entries that were passed over although the remote has not taken them, and what is to become
    /// of them. They stay in the topic.
    pub kept: BTreeMap<Position, Kept>,
    /// Entries that were given up before they were acknowledged. They are never sent, and forgotten
    /// when mark-delete is past them.
    pub discarded: BTreeSet<Position>,
    /// The sessions of this cursor's owners come after those of this one, which a remote knew from a
    /// later state of the source than the one it was put back to; 0 if there was none.
    pub sessions_after: u64,
    /// An incarnation that begins is above this one. It is above the current one if that cannot be gone on in: because a
    /// remote has named it, or because of what a remote holds in the current one.
    pub newest_incarnation: u64,
    /// Properties that others have stored with mark-delete; kept as they are.
    pub others: BTreeMap<String, i64>,
}

/// What is to become of an entry that was passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// It lies in quarantine until somebody decides.
    Quarantined,
    /// It is to be sent before anything else.
    Released,
    /// The incarnation has begun for it: it may have been sent, and nothing else was.
    Sending,
    /// As in quarantine; but it was being sent when a later incarnation began, and the remote may have it.
    InDoubt,
}

impl Kept {
    /// Whether it is to be sent.
    pub const fn is_released(self) -> bool {
        matches!(self, Self::Released | Self::Sending)
    }
}

/// A stored property that says something impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mark-delete property {name} = {value} cannot be understood")]
pub struct InvalidProperty {
    name: String,
    value: i64,
}

const PREFIX: &str = "georepl.";
const INCARNATION: &str = "incarnation";
const REVISION: &str = "revision";
const PUBLISHED_LEDGER: &str = "published.ledger";
const PUBLISHED_ENTRY: &str = "published.entry";
/// Behind `@` the position; the value says what is to become of it.
const KEPT: &str = "kept";
const SESSIONS_AFTER: &str = "sessions.after";
const NEWEST_INCARNATION: &str = "incarnation.newest";
const QUARANTINED: u64 = 1;
const RELEASED: u64 = 2;
const DISCARDED: u64 = 3;
const SENDING: u64 = 4;
const IN_DOUBT: u64 = 5;

impl Progress {
    /// Entries that are noted.
    pub fn noted(&self) -> usize {
        self.kept.len() + self.discarded.len()
    }

    /// The entry for which the incarnation has begun, if it is not known to have arrived.
    pub fn sending(&self) -> Option<Position> {
        let mut kept = self.kept.iter();
        kept.find(|(_, kept)| **kept == Kept::Sending).map(|(position, _)| *position)
    }

    /// Forgets the entries that were given up, from the first on, as long as mark-delete `is_past`
    /// them: they are not delivered any more.
    pub fn forget_discarded(&mut self, is_past: impl Fn(Position) -> bool) {
        while self.discarded.first().is_some_and(|first| is_past(*first)) {
            self.discarded.pop_first();
        }
    }

    /// As properties that are stored with mark-delete.
    pub fn to_properties(&self) -> BTreeMap<String, i64> {
        let mut properties = self.others.clone();
        let mut set = |name: String, value: u64| {
            let value = i64::try_from(value).expect("ids and counts stay below 2^63");
            properties.insert(format!("{PREFIX}{name}"), value);
        };
        if self.incarnation > 0 {
            set(INCARNATION.into(), self.incarnation);
        }
        if self.revision > 0 {
            set(REVISION.into(), self.revision);
        }
        if let Some(position) = self.last_published {
            set(PUBLISHED_LEDGER.into(), position.ledger.get());
            set(PUBLISHED_ENTRY.into(), position.entry.get());
        }
        if self.sessions_after > 0 {
            set(SESSIONS_AFTER.into(), self.sessions_after);
        }
        if self.newest_incarnation > 0 {
            set(NEWEST_INCARNATION.into(), self.newest_incarnation);
        }
        for (at, kept) in &self.kept {
            let kept = match kept {
                Kept::Quarantined => QUARANTINED,
                Kept::Released => RELEASED,
                Kept::Sending => SENDING,
                Kept::InDoubt => IN_DOUBT,
            };
            set(format!("{KEPT}@{at}"), kept);
        }
        for at in &self.discarded {
            set(format!("{KEPT}@{at}"), DISCARDED);
        }
        properties
    }

    /// From properties that were stored with mark-delete.
    ///
    /// # Errors
    /// A property of ours that says something impossible, or that this version does not know: to
    /// pass over it could lose an entry.
    pub fn from_properties(properties: BTreeMap<String, i64>) -> Result<Self, InvalidProperty> {
        let mut progress = Self::default();
        let (mut ledger, mut entry) = (None, None);
        for (name, value) in properties {
            let invalid = || InvalidProperty { name: name.clone(), value };
            let Some(ours) = name.strip_prefix(PREFIX) else {
                progress.others.insert(name, value);
                continue;
            };
            let number = u64::try_from(value).map_err(|_| invalid())?;
            let (kind, at) = ours.split_once('@').unwrap_or((ours, ""));
            let position = || at.parse().map_err(|_| invalid());
            let kept = &mut progress.kept;
            match (kind, number) {
                (INCARNATION, _) => progress.incarnation = number,
                (REVISION, _) => progress.revision = number,
                (SESSIONS_AFTER, _) => progress.sessions_after = number,
                (NEWEST_INCARNATION, _) => progress.newest_incarnation = number,
                (PUBLISHED_LEDGER, _) => ledger = Some(LedgerId(number)),
                (PUBLISHED_ENTRY, _) => entry = Some(EntryId(number)),
                (KEPT, QUARANTINED) => drop(kept.insert(position()?, Kept::Quarantined)),
                (KEPT, RELEASED) => drop(kept.insert(position()?, Kept::Released)),
                (KEPT, SENDING) => drop(kept.insert(position()?, Kept::Sending)),
                (KEPT, IN_DOUBT) => drop(kept.insert(position()?, Kept::InDoubt)),
                (KEPT, DISCARDED) => drop(progress.discarded.insert(position()?)),
                _ => return Err(invalid()),
            }
        }
        // Half a position is as good as none, and would only be written by somebody else.
        progress.last_published = ledger.zip(entry).map(|(l, e)| Position::new(l, e));
        Ok(progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Position {
        text.parse().unwrap()
    }

    #[test]
    fn properties_give_back_what_was_stored_and_what_others_stored() {
        let progress = Progress {
            incarnation: 3,
            revision: 2,
            last_published: Some(at("7:41")),
            kept: [
                (at("7:2"), Kept::Quarantined),
                (at("5:9"), Kept::Released),
                (at("5:3"), Kept::Sending),
                (at("5:2"), Kept::InDoubt),
            ]
            .into(),
            discarded: [at("7:1"), at("7:4")].into(),
            sessions_after: 17,
            newest_incarnation: 4,
            others: BTreeMap::from([("pulsar.dedup.a".into(), -4)]),
        };
        let properties = progress.to_properties();
        assert_eq!(properties["georepl.kept@7:2"], 1);
        assert_eq!(properties["pulsar.dedup.a"], -4);
        assert_eq!(Progress::from_properties(properties), Ok(progress));
        assert!(Progress::default().to_properties().is_empty());
    }

    #[test]
    fn what_was_given_up_is_forgotten_when_mark_delete_is_past_it_and_not_before() {
        let mut progress =
            Progress { discarded: [at("7:1"), at("7:4")].into(), ..Progress::default() };
        let past = |mark_delete: &'static str| move |place: Position| place <= at(mark_delete);
        let table = [("7:0", vec!["7:1", "7:4"]), ("7:1", vec!["7:4"]), ("8:0", vec![])];
        for (mark_delete, left) in table {
            progress.forget_discarded(past(mark_delete));
            assert_eq!(progress.discarded, left.into_iter().map(at).collect(), "{mark_delete}");
        }
    }

    #[test]
    fn properties_of_ours_that_are_not_understood_are_refused_by_name() {
        let bad = [
            ("georepl.later", 1),
            ("georepl.incarnation", -1),
            ("georepl.kept@x", 1),
            ("georepl.kept@1:1", 9),
        ];
        for (name, value) in bad {
            let error = Progress::from_properties([(name.to_owned(), value)].into()).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
