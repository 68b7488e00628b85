//! Which entries are for a remote.

use crate::message::Facts;

/// Why an entry is not sent. In the order in which the protocol looks at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PassReason {
    /// It came here by replication. Only the cluster where it was published sends it on, so that
    /// in any mesh each cluster stores it once.
    AlreadyReplicated,
    /// Its producer named the clusters it is meant for, and the remote is not among them.
    NotForThisRemote,
}

impl PassReason {
    /// All reasons, in order.
    pub const ALL: [Self; 2] = [Self::AlreadyReplicated, Self::NotForThisRemote];

    /// The reason's name in stats and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AlreadyReplicated => "already_replicated",
            Self::NotForThisRemote => "not_for_this_remote",
        }
    }
}

/// What is to be done with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is for the remote.
    Send,
    /// It is not.
    Pass(PassReason),
}

/// Decides whether an entry is for the cluster `remote`.
pub fn decide(facts: &Facts<'_>, remote: &str) -> Verdict {
    if facts.replicated_from().is_some() {
        Verdict::Pass(PassReason::AlreadyReplicated)
    } else if facts.is_meant_for(remote) {
        Verdict::Send
    } else {
        Verdict::Pass(PassReason::NotForThisRemote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Frame, MessageMetadata, compose};

    #[test]
    fn entries_go_to_the_remotes_they_are_meant_for_unless_they_came_by_replication() {
        use PassReason::{AlreadyReplicated, NotForThisRemote};
        use Verdict::{Pass, Send};
        let table: [(Option<&str>, &[&str], Verdict); 9] = [
            (None, &[], Send),
            (None, &["east"], Send),
            (None, &["north", "east"], Send),
            (None, &["north"], Pass(NotForThisRemote)),
            (None, &["eas", "eastern"], Pass(NotForThisRemote)),
            (None, &["__local__"], Pass(NotForThisRemote)),
            (Some("east"), &[], Pass(AlreadyReplicated)),
            (Some("north"), &["east"], Pass(AlreadyReplicated)),
            (Some("north"), &["north"], Pass(AlreadyReplicated)),
        ];
        for (from, to, expected) in table {
            let metadata = MessageMetadata {
                replicated_from: from.map(str::to_owned),
                replicate_to: to.iter().map(|&cluster| cluster.to_owned()).collect(),
                ..MessageMetadata::default()
            };
            let frame = Frame::parse(compose(&metadata, b"")).unwrap();
            assert_eq!(decide(&frame.facts().unwrap(), "east"), expected, "{from:?} {to:?}");
        }
    }
}
