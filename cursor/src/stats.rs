//! The state of a topic and its cursors as operators of Apache Pulsar know it from
//! `topics stats-internal`: the same names in JSON, and only fields whose values are true here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedLedgerInternalStats {
    /// Entries confirmed since the topic was opened.
    pub entries_added_counter: u64,
    /// Entries in the topic.
    pub number_of_entries: u64,
    /// Bytes of payload in the topic.
    pub total_size: u64,
    /// Entries in the newest ledger.
    pub current_ledger_entries: u64,
    /// Bytes of payload in the newest ledger.
    pub current_ledger_size: u64,
    /// Cursors with a read that waits for an entry.
    pub waiting_cursors_count: usize,
    /// Entries that were accepted and are not confirmed.
    pub pending_add_entries_count: usize,
    /// `ledger:entry`; entry -1 while the topic is empty.
    pub last_confirmed_entry: String,
    /// What the topic does with appends, in Pulsar's words.
    pub state: String,
    /// Oldest first. As in Pulsar, the open ledger shows no entries here.
    pub ledgers: Vec<LedgerInternalStats>,
    /// By name.
    pub cursors: BTreeMap<String, CursorInternalStats>,
}

/// One ledger of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerInternalStats {
    /// The ledger.
    pub ledger_id: u64,
    /// Entries, once it is closed.
    pub entries: u64,
    /// Bytes of payload, once it is closed.
    pub size: u64,
}

/// One cursor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CursorInternalStats {
    /// Everything up to here is acknowledged; entry -1 when nothing is.
    pub mark_delete_position: String,
    /// The next entry to be delivered.
    pub read_position: String,
    /// Whether a read waits for an entry.
    pub waiting_read_op: bool,
    /// Reads in storage.
    pub pending_read_ops: usize,
    /// Acknowledged entries behind mark-delete. There are no individual acknowledgements, so
    /// there are none: always `[]`.
    pub individually_deleted_messages: String,
    /// Holes in what is acknowledged: always 0, for the same reason.
    pub total_non_contiguous_deleted_messages_range: u64,
    /// From the first entry that is not acknowledged up to and including the read position,
    /// which counts although there may be no entry yet.
    pub number_of_entries_since_first_not_acked_message: u64,
    /// `Open` or `Closed`.
    pub state: String,
}
