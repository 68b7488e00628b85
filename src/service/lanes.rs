//! Which topics are on their way to which remotes.
//!
//! Whoever starts, moves or deletes one claims it first, and has it to itself until the claim is dropped: of two who
//! begin at once, the second is refused before it has touched anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use georepl::replicator::Replicator;
use parking_lot::Mutex;

use crate::exit::{Exit, Failure};

/// The lanes of a region.
#[derive(Clone, Default)]
pub(super) struct Lanes(Arc<Mutex<BTreeMap<Key, Lane>>>);

/// Topic and remote.
type Key = (String, String);

#[derive(Clone)]
enum Lane {
    /// Something is done to it.
    Busy,
    Running(Replicator),
}

/// What a claim comes to.
pub(super) enum Claimed {
    /// Nobody has the lane but who claimed it.
    Free(Claim),
    /// A replicator runs, and is the one to ask.
    Running(Replicator),
}

/// A lane that is claimed. Free again when this is dropped.
pub(super) struct Claim {
    lanes: Lanes,
    key: Key,
}

impl Lanes {
    /// Claims the lane of a topic to a remote, unless a replicator runs.
    pub(super) fn claim(&self, topic: &str, remote: &str) -> Result<Claimed, Failure> {
        let mut lanes = self.0.lock();
        let (key, whole) = (key(topic, remote), key(topic, EVERY));
        if let Some(Lane::Running(replicator)) = lanes.get(&key) {
            return Ok(Claimed::Running(replicator.clone()));
        }
        if lanes.contains_key(&key) || lanes.contains_key(&whole) {
            let message = format!(
                "somebody else just starts, stops, moves or deletes {topic} on its way to {remote}; try again"
            );
            return Err(Failure::new(Exit::Refused, message));
        }
        lanes.insert(key.clone(), Lane::Busy);
        Ok(Claimed::Free(Claim { lanes: self.clone(), key }))
    }

    /// Claims all lanes of a topic.
    pub(super) fn claim_all(&self, topic: &str) -> Result<Claim, Failure> {
        let mut lanes = self.0.lock();
        let key = key(topic, EVERY);
        let first = lanes.range(key.clone()..).next();
        if first.is_some_and(|((found, _), _)| found == topic) {
            let message = format!("{topic} is being replicated; stop that first");
            return Err(Failure::new(Exit::Refused, message));
        }
        lanes.insert(key.clone(), Lane::Busy);
        Ok(Claim { lanes: self.clone(), key })
    }

    /// The replicator that runs, if one does.
    pub(super) fn running(&self, topic: &str, remote: &str) -> Option<Replicator> {
        match self.0.lock().get(&key(topic, remote)) {
            Some(Lane::Running(replicator)) => Some(replicator.clone()),
            Some(Lane::Busy) | None => None,
        }
    }
}

impl Claim {
    /// From now on others ask this replicator, until the claim is dropped.
    pub(super) fn run(&self, replicator: Replicator) {
        self.lanes.0.lock().insert(self.key.clone(), Lane::Running(replicator));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.lanes.0.lock().remove(&self.key);
    }
}

/// In the place of a remote: all of them. No region is called so, and it comes before all names.
const EVERY: &str = "";

fn key(topic: &str, remote: &str) -> Key {
    (topic.to_owned(), remote.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(lanes: &Lanes, topic: &str, remote: &str) -> Result<Claim, Exit> {
        match lanes.claim(topic, remote) {
            Ok(Claimed::Free(claim)) => Ok(claim),
            Ok(Claimed::Running(_)) => panic!("no replicator was started"),
            Err(failure) => Err(failure.exit),
        }
    }

    #[test]
    fn second_claim_of_a_lane_is_refused_until_the_first_is_dropped() {
        let lanes = Lanes::default();
        let first = claim(&lanes, "a", "east").unwrap();
        assert_eq!(claim(&lanes, "a", "east").err(), Some(Exit::Refused));
        let others = [claim(&lanes, "a", "north"), claim(&lanes, "b", "east")];
        assert!(others.iter().all(Result::is_ok), "other lanes are free");
        drop(first);
        assert!(claim(&lanes, "a", "east").is_ok());
    }

    #[test]
    fn topic_is_claimed_as_a_whole_or_lane_by_lane() {
        let lanes = Lanes::default();
        let lane = claim(&lanes, "b", "east").unwrap();
        assert_eq!(lanes.claim_all("b").err().map(|failure| failure.exit), Some(Exit::Refused));
        let (before, after) = (lanes.claim_all("a"), lanes.claim_all("c"));
        assert!(before.is_ok() && after.is_ok(), "topics beside it are free");
        drop(lane);
        let whole = lanes.claim_all("b").unwrap();
        assert_eq!(claim(&lanes, "b", "east").err(), Some(Exit::Refused));
        assert!(lanes.claim_all("b").is_err());
        drop(whole);
        assert!(claim(&lanes, "b", "east").is_ok());
    }
}
