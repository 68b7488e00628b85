//! The topics of a region that are open, each behind a lock of its own.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use georepl_replicator::EmbeddedTopic;
use parking_lot::Mutex;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// Places by the names of topics. Whoever opens, closes or deletes a topic holds its place, so that a topic is opened
/// once; and one that takes long, because its bookies are away, keeps nobody from another.
#[derive(Debug, Default)]
pub(super) struct Topics(Mutex<BTreeMap<String, Arc<Place>>>);

/// A topic that is open, or none.
pub(super) type Place = Turn<Option<EmbeddedTopic>>;

/// A place that is nobody else's. When it is let go empty, and nobody waits for it, it is forgotten.
#[derive(Debug)]
pub(super) struct Held {
    topics: Arc<Topics>,
    name: String,
    /// None while it is waited for.
    topic: Option<OwnedMutexGuard<Option<EmbeddedTopic>>>,
}

impl Topics {
    /// Waits for the place of a topic. If the future is dropped, nothing stays behind.
    pub(super) async fn hold(self: &Arc<Self>, name: &str) -> Held {
        let mut held = Held { topics: self.clone(), name: name.to_owned(), topic: None };
        let place = self.0.lock().entry(name.to_owned()).or_default().clone();
        held.topic = Some(place.lock_owned().await);
        held
    }

    /// The places that there are now, with the names of their topics. Who has one keeps it from being forgotten, so that
    /// is made up for here.
    pub(super) fn places(&self) -> Vec<(String, Arc<Place>)> {
        let mut places = self.0.lock();
        places.retain(|_, place| !is_nobodys(place));
        places.iter().map(|(name, place)| (name.clone(), place.clone())).collect()
    }
}

impl Deref for Held {
    type Target = Option<EmbeddedTopic>;

    fn deref(&self) -> &Self::Target {
        self.topic.as_ref().expect(HELD)
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.topic.as_mut().expect(HELD)
    }
}

const HELD: &str = "it is given out once it is held";

impl Drop for Held {
    fn drop(&mut self) {
        self.topic = None;
        let mut places = self.topics.0.lock();
        if places.get(&self.name).is_some_and(is_nobodys) {
            places.remove(&self.name);
        }
    }
}

/// Of a place in the map, under its lock. Who wants one takes it out of there: one that only the map has, and that is
/// empty, is nobody's.
fn is_nobodys(place: &Arc<Place>) -> bool {
    Arc::strong_count(place) == 1 && place.try_lock().is_ok_and(|topic| topic.is_none())
}
