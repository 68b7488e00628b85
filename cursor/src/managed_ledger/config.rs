//! The settings of a topic.

use georepl_storage::{Password, QuorumSizes};

use super::trimming::{BacklogQuota, Retention};

/// Settings of a topic. The defaults are those of Apache Pulsar, but for three copies.
#[derive(Clone, Debug)]
pub struct ManagedLedgerConfig {
    /// Ensemble, write quorum and ack quorum of new ledgers. Default 3, 3, 2: an append is
    /// acknowledged on two bookies and survives the loss of one.
    pub sizes: QuorumSizes,
    /// The password of the topic's ledgers; whoever opens one must know it. Default empty.
    pub password: Password,
    /// Entries after which the next ledger is begun, at least 1; exact. More: fewer records in
    /// the metadata store. Fewer: space is given back in smaller pieces. Default 50,000.
    pub ledger_entries_max: u64,
    /// Bytes of payload after which the next ledger is begun; the entry that reaches it still
    /// belongs to the ledger. Default 2 GiB.
    pub ledger_bytes_max: u64,
    /// Bytes of payload that may be reserved or unconfirmed at once. This bounds the memory of
    /// appends; who finds it used up waits. More: longer pauses of the storage pass unnoticed.
    /// Default 64 MiB.
    pub append_bytes_in_flight_max: u32,
    /// The largest entry, in bytes. Default 5 MiB - 16 KiB: with what the bookies' protocol puts
    /// around it, it fits their frame of 5 MiB.
    pub entry_bytes_max: usize,
    /// For how long entries stay that every cursor has acknowledged, in topics without a retention of
    /// their own ([`ManagedLedger::set_retention`](crate::ManagedLedger::set_retention)). Default for
    /// ever.
    pub retention: Retention,
    /// How much may wait for the slowest cursor. Default as much as the disks take.
    pub backlog_quota: Option<BacklogQuota>,
}

impl Default for ManagedLedgerConfig {
    fn default() -> Self {
        Self {
            sizes: QuorumSizes::new(3, 3, 2).expect("3, 3, 2 are valid sizes"),
            password: Password::default(),
            ledger_entries_max: 50_000,
            ledger_bytes_max: 2 << 30,
            append_bytes_in_flight_max: 64 << 20,
            entry_bytes_max: (5 << 20) - (16 << 10),
            retention: Retention::FOREVER,
            backlog_quota: None,
        }
    }
}
