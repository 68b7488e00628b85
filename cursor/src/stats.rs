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
    /// When the newest ledger was created, in ISO 8601; absent once the topic is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ledger_created_timestamp: Option<String>,
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
    /// The topic's `entriesAddedCounter` less the backlog: below zero while entries that were there
    /// when the topic was opened are not acknowledged.
    pub messages_consumed_counter: i64,
    /// Single entries behind mark-delete that are acknowledged: the first hundred ranges of them.
    pub individually_deleted_messages: String,
    /// How many such ranges there are.
    pub total_non_contiguous_deleted_messages_range: u64,
    /// From the first entry that is not acknowledged up to and including the read position,
    /// which counts although there may be no entry yet.
    pub number_of_entries_since_first_not_acked_message: u64,
    /// Always `Open`: a cursor that is closed is not listed.
    pub state: String,
}

/// A moment in milliseconds since 1970-01-01 UTC, as ISO 8601 has it.
#[cfg(feature = "io")]
pub(crate) fn timestamp(ms: u64) -> String {
    let (days, ms) = (ms / DAY_MS, ms % DAY_MS);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
    // The calendar repeats every 400 years, of 146,097 days. Years are counted from March, so
    // that a leap day is the last of its year.
    let days = days + DAYS_FROM_MARCH_0000_TO_1970;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    let ms = ms % 1_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(feature = "io")]
const DAY_MS: u64 = 86_400_000;
#[cfg(feature = "io")]
const DAYS_FROM_MARCH_0000_TO_1970: u64 = 719_468;

#[cfg(all(test, feature = "io"))]
mod tests {
    use super::*;

    #[test]
    fn timestamps_follow_the_calendar_through_leap_years() {
        let known = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_690_701_430_137, "2023-07-30T07:17:10.137Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (ms, expected) in known {
            assert_eq!(timestamp(ms), expected);
        }
    }
}
