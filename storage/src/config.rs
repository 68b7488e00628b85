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
    /// How long one operation of the metadata store may take before its outcome counts as unknown.
    pub metadata_timeout: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(5),
            speculative_read_delay: Duration::from_secs(2),
            tail_check_interval: Duration::from_secs(5),
            add_quorum_timeout: Duration::from_secs(20),
            metadata_timeout: Duration::from_secs(10),
        }
    }
}
