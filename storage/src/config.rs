//! The settings of the client.

use std::time::Duration;

/// Settings of a ledger client. The defaults assume bookies within one data centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// How long one bookie may take to answer one add, read or LAC read before it counts as failed for it.
    /// Longer: a hung bookie holds up reads and memory for longer. Shorter: a pause of a bookie's disk fails adds.
    pub request_timeout: Duration,
    /// How long a read waits for a replica before it asks the next one as well. Longer: a slow bookie holds up reads.
    /// Shorter: an ordinary pause makes bookies read entries for nothing.
    pub speculative_read_delay: Duration,
    /// How often a reader that waits for more entries looks whether the ledger was closed or has moved to other
    /// bookies. Longer: it learns of an end later. Shorter: idle ledgers load the metadata store.
    pub tail_check_interval: Duration,
    /// How long an entry may wait for its acknowledgement before the ledger's handle gives up.
    /// It must exceed `request_timeout`, or slow bookies end ledgers that would have gone on.
    pub add_quorum_timeout: Duration,
    /// How many bytes of acknowledged entries a ledger keeps for the sake of one bookie that has yet to answer. Beyond
    /// that the bookie is done without, as if it had failed. More: a slow bookie costs memory. Less: a pause of one
    /// bookie's disk, at full speed, changes the ensemble.
    pub bookie_backlog_bytes_max: u64,
    /// How often one ledger may change its ensemble before its handle gives up. It bounds the record when bookies come
    /// and go all the time; a new ledger starts with a short one.
    pub ensemble_changes_max: u64,
    /// How long after an acknowledgement the bookies are told of it by itself, if no further entry has done so; none
    /// for never. Readers that are not the writer's own see the last entry of an idle ledger after that. Shorter: more
    /// requests for ledgers with pauses between entries. Once told, an idle ledger has no timer.
    pub explicit_lac_interval: Option<Duration>,
    /// Where the recovery of a ledger begins to look for entries.
    pub recovery_start: RecoveryStart,
    /// How long one operation of the metadata store may take before its outcome counts as unknown.
    pub metadata_timeout: Duration,
}

/// Where the recovery of a ledger begins to look for entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RecoveryStart {
    /// Behind the last entry that the bookies or the record prove to be confirmed. Few entries are read and written
    /// back. Right where all who recover the cluster's ledgers write back the bytes that they found.
    #[default]
    LastAddConfirmed,
    /// At the first entry of the last ensemble, whatever bookies answer. For clusters in which Java clients recover
    /// ledgers as well: they write entries back under a header of their own, with a LAC that other recoveries may cut,
    /// so that a LAC found at a bookie proves nothing. The whole last fragment is read and written back.
    LastKey,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(5),
            speculative_read_delay: Duration::from_secs(2),
            tail_check_interval: Duration::from_secs(5),
            add_quorum_timeout: Duration::from_secs(20),
            bookie_backlog_bytes_max: 64 << 20,
            ensemble_changes_max: 1_000,
            explicit_lac_interval: Some(Duration::from_secs(1)),
            recovery_start: RecoveryStart::LastAddConfirmed,
            metadata_timeout: Duration::from_secs(10),
        }
    }
}
