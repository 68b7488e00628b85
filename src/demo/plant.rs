//! Damage on purpose, so that one can see the audit catch it.
//!
//! It is done to every copy, well sealed, so that no other copy and no digest can tell.

use bytes::Bytes;
use georepl::cursor::Position;
use georepl::storage::{Entry, EntryId, MemoryBookies};

use crate::cli::Damage;

/// Damages the entry at `at`, and the one after it unless it is only lost. Says what was done.
///
/// # Panics
/// When one of them is not there.
pub(crate) fn plant(bookies: &MemoryBookies, at: Position, damage: Damage) -> String {
    let Position { ledger, entry } = at;
    let next = Position::new(ledger, entry.next());
    match damage {
        Damage::Lost => {
            for bookie in bookies.ids() {
                bookies.remove_entry(&bookie, ledger, entry);
            }
            format!("removed {at} from every bookie")
        }
        Damage::Doubled => {
            replace(bookies, next, &payload(bookies, at));
            format!("stored {at} again in the place of {next}")
        }
        Damage::Swapped => {
            let (first, second) = (payload(bookies, at), payload(bookies, next));
            replace(bookies, at, &second);
            replace(bookies, next, &first);
            format!("let {at} and {next} change places")
        }
    }
}

fn payload(bookies: &MemoryBookies, at: Position) -> Bytes {
    let mut copies =
        bookies.ids().filter_map(|bookie| copy(bookies.entries(&bookie, at.ledger), at.entry));
    copies.next().expect("the entry to damage is there").into_payload()
}

fn replace(bookies: &MemoryBookies, at: Position, payload: &Bytes) {
    let Position { ledger, entry } = at;
    for bookie in bookies.ids() {
        if let Some(old) = copy(bookies.entries(&bookie, ledger), entry) {
            let new = Entry::seal(ledger, entry, old.lac(), old.length(), payload.clone());
            bookies.replace_entry(&bookie, ledger, new);
        }
    }
}

fn copy(copies: Vec<Entry>, entry: EntryId) -> Option<Entry> {
    copies.into_iter().find(|copy| copy.entry() == entry)
}
