//! Which topic goes where, and within which bounds.

use std::sync::Arc;

use georepl_storage::Advice;

use crate::change::Poison;
use crate::limits::{Limits, LimitsError};

/// Which topic goes where, and within which bounds.
#[derive(Clone, Debug)]
pub struct ReplicatorConfig {
    /// The cluster the topic belongs to: the origin that its entries carry.
    pub local_cluster: Arc<str>,
    /// The cluster it is replicated to, by which publishers select.
    pub remote_cluster: Arc<str>,
    /// The topic's full name.
    pub topic: Arc<str>,
    /// Bounds and timeouts.
    pub limits: Limits,
    /// What becomes of an entry that cannot be published. Default: it blocks.
    pub poison: Poison,
}

/// Why a replicator cannot be configured so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A bound is out of range.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// A cluster is named as none can be.
    #[error(
        "{field} is {name:?}; a cluster's name is not empty and has neither `/` nor control \
         characters"
    )]
    Cluster {
        /// Which of the two.
        field: &'static str,
        /// Its name.
        name: Arc<str>,
    },
    /// The topic is named as none can be.
    #[error("topic is {name:?}; a topic's name is not empty and has no control characters")]
    Topic {
        /// Its name.
        name: Arc<str>,
    },
}

impl ConfigError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        Advice::GiveUp
    }
}

impl ReplicatorConfig {
    /// With the default limits.
    pub fn new(
        local_cluster: impl Into<Arc<str>>,
        remote_cluster: impl Into<Arc<str>>,
        topic: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            local_cluster: local_cluster.into(),
            remote_cluster: remote_cluster.into(),
            topic: topic.into(),
            limits: Limits::default(),
            poison: Poison::default(),
        }
    }

    /// Checks names and bounds.
    ///
    /// # Errors
    /// [`ConfigError`] names the first that is wrong.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let clusters =
            [("local_cluster", &self.local_cluster), ("remote_cluster", &self.remote_cluster)];
        for (field, name) in clusters {
            if !is_name(name) || name.contains('/') {
                return Err(ConfigError::Cluster { field, name: name.clone() });
            }
        }
        if !is_name(&self.topic) {
            return Err(ConfigError::Topic { name: self.topic.clone() });
        }
        Ok(self.limits.validate()?)
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nothing_are_refused_with_the_field_they_are_in() {
        let refused = |local: &str, remote: &str, topic: &str| {
            ReplicatorConfig::new(local, remote, topic).validate().unwrap_err().to_string()
        };
        for bad in ["", "eu/west", "we\nst", "\u{7f}"] {
            assert!(refused(bad, "east", "t").starts_with(&format!("local_cluster is {bad:?};")));
            assert!(refused("west", bad, "t").starts_with(&format!("remote_cluster is {bad:?};")));
        }
        for bad in ["", "persistent://acme/eu/or\0ders"] {
            assert!(refused("west", "east", bad).starts_with(&format!("topic is {bad:?};")));
        }
        let good = ReplicatorConfig::new("eu-west.1", "östlich", "persistent://acme/eu/a/b c");
        assert_eq!(good.validate(), Ok(()));
    }

    #[test]
    fn bounds_are_checked_with_the_names() {
        let mut config = ReplicatorConfig::new("west", "east", "t");
        config.limits.window_entries = 0;
        let error = config.validate().unwrap_err();
        assert_eq!(error.to_string(), "window_entries is 0; set it to at least 1");
        assert_eq!(error.advice(), Advice::GiveUp);
    }
}
