//! What a replicator keeps with its cursor, so that it is written together with mark-delete.

use std::collections::BTreeMap;

use georepl_storage::{EntryId, LedgerId};

use crate::position::Position;

/// Entries that may be kept at once. Each is some 40 bytes of every snapshot of its cursor.
pub const KEPT_MAX: usize = 1_000;

/// How far a replicator has come, beyond what is acknowledged. A cursor stores it and gives it no
/// meaning, except that the topic keeps what is named there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Raised when earlier positions are sent again on purpose; 0 until something was sent.
    pub incarnation: u64,
    /// The last position at or below mark-delete that the remote holds in this incarnation.
    pub last_published: Option<Position>,
    /// Entries that were passed over although the remote has not taken them, and what is to become
    /// of them. They stay in the topic.
    pub kept: BTreeMap<Position, Kept>,
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
const PUBLISHED_LEDGER: &str = "published.ledger";
const PUBLISHED_ENTRY: &str = "published.entry";
/// Behind `@` the position; the value says what is to become of it.
const KEPT: &str = "kept";
const QUARANTINED: u64 = 1;
const RELEASED: u64 = 2;

impl Progress {
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
        if let Some(position) = self.last_published {
            set(PUBLISHED_LEDGER.into(), position.ledger.get());
            set(PUBLISHED_ENTRY.into(), position.entry.get());
        }
        for (at, kept) in &self.kept {
            let kept = match kept {
                Kept::Quarantined => QUARANTINED,
                Kept::Released => RELEASED,
            };
            set(format!("{KEPT}@{at}"), kept);
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
            let mut keep = |kept| {
                let position = at.parse().map_err(|_| invalid())?;
                progress.kept.insert(position, kept);
                Ok(())
            };
            match (kind, number) {
                (INCARNATION, _) => progress.incarnation = number,
                (PUBLISHED_LEDGER, _) => ledger = Some(LedgerId(number)),
                (PUBLISHED_ENTRY, _) => entry = Some(EntryId(number)),
                (KEPT, QUARANTINED) => keep(Kept::Quarantined)?,
                (KEPT, RELEASED) => keep(Kept::Released)?,
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
            last_published: Some(at("7:41")),
            kept: [(at("7:2"), Kept::Quarantined), (at("5:9"), Kept::Released)].into(),
            others: BTreeMap::from([("pulsar.dedup.a".into(), -4)]),
        };
        let properties = progress.to_properties();
        assert_eq!(properties["georepl.kept@7:2"], 1);
        assert_eq!(properties["pulsar.dedup.a"], -4);
        assert_eq!(Progress::from_properties(properties), Ok(progress));
        assert!(Progress::default().to_properties().is_empty());
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
