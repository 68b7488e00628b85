//! Why the last replicator of a topic stopped. It is noted with the topic, for when none runs.
//!
//! | property of the topic | value |
//! |---|---|
//! | `georepl.stopped@REMOTE` | milliseconds since 1970, a space, why |
//!
//! There is none once a replicator has come to its end.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use georepl::cursor::ManagedLedger;

/// Why a replicator stopped, and when.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stop {
    at: SystemTime,
    pub(super) why: String,
}

impl Stop {
    /// What is noted of the last replicator to a remote.
    pub(super) async fn last(ledger: &ManagedLedger, remote: &str) -> Option<Self> {
        Self::parse(ledger.properties().await.get(&property(remote))?)
    }

    /// How long ago it was. A clock that was set back makes it none.
    pub(super) fn ago(&self) -> Duration {
        SystemTime::now().duration_since(self.at).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<Self> {
        let (at, why) = text.split_once(' ')?;
        let at = UNIX_EPOCH.checked_add(Duration::from_millis(at.parse().ok()?))?;
        Some(Self { at, why: why.to_owned() })
    }
}

/// Notes why a replicator stops, or that nothing is in the way. What cannot be noted is no failure of the replication.
pub(super) async fn note(ledger: &ManagedLedger, remote: &str, why: Option<&str>) {
    let property = property(remote);
    let value = why.map(|why| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{} {}", now.as_millis(), cut(why))
    });
    // One that has come to its end, as they mostly do, has nothing to write.
    if value.is_none() && !ledger.properties().await.contains_key(&property) {
        return;
    }
    if let Err(error) = ledger.set_properties([(property, value)]).await {
        tracing::warn!(topic = ledger.name(), remote, "why it stopped is not noted: {error}");
    }
}

/// A time for people: its largest unit is enough.
pub(super) fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(86_400, "days"), (3_600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    let (unit, name) = unit.unwrap_or((1, "s"));
    format!("{} {name}", seconds / unit)
}

fn property(remote: &str) -> String {
    format!("georepl.stopped@{remote}")
}

fn cut(why: &str) -> &str {
    &why[..why.floor_char_boundary(WHY_BYTES_MAX)]
}

/// The remote's words are part of it, and a topic's record is to stay small.
const WHY_BYTES_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use georepl::Region;
    use georepl::replicator::EmbeddedTopics;

    use super::*;

    #[tokio::test]
    async fn last_stop_is_noted_for_each_remote_until_one_comes_to_its_end() {
        let region = Region::builder().in_memory();
        let topic = region.topic("persistent://public/default/orders").await.unwrap();
        let ledger = topic.ledger();
        let last = async |remote| Stop::last(ledger, remote).await.map(|stop| stop.why);
        note(ledger, "east", Some("no answer")).await;
        note(ledger, "north", Some(&"é".repeat(WHY_BYTES_MAX))).await;
        assert_eq!(last("east").await.as_deref(), Some("no answer"));
        assert_eq!(last("north").await, Some("é".repeat(WHY_BYTES_MAX / 2)));
        assert_eq!(last("south").await, None);
        assert!(Stop::last(ledger, "east").await.unwrap().ago() < Duration::from_secs(3_600));
        note(ledger, "east", None).await;
        assert_eq!(last("east").await, None);
        assert!(last("north").await.is_some());
    }

    #[test]
    fn what_is_no_note_is_none() {
        for text in ["", "17", "x y", "-1 why", "99999999999999999999 why"] {
            assert_eq!(Stop::parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_told_in_their_largest_unit() {
        for (seconds, words) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7_199, "119 min"),
            (7_200, "2 h"),
            (172_800, "2 days"),
        ] {
            assert_eq!(in_words(Duration::from_secs(seconds)), words);
        }
    }
}
