//! Which entries a remote does not get.

/// Why an entry is acknowledged without being published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PassReason {
    /// It came here by replication: sending it on would make a loop.
    AlreadyReplicated,
    /// Its publisher named the clusters it is for, and this remote is not among them.
    NotForThisRemote,
}
