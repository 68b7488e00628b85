//! Requests that wait for a ledger's LAC.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use crate::id::{EntryId, LedgerId};
use crate::transport::{CompletionSink, RequestId};

/// How many waits for the LAC of one ledger a bookie keeps. One more, and the oldest is answered with what there is:
/// whoever lost interest in it says so to nobody, and who has not will ask again.
pub const LAC_WAITS_MAX: usize = 64;

/// A wait for a ledger's LAC, and who waits.
pub(super) struct LacWait {
    pub(super) id: RequestId,
    pub(super) beyond: Option<EntryId>,
    pub(super) sink: Arc<dyn CompletionSink>,
}

/// The waits at one bookie, of each ledger the oldest first. Ordered by ledger, so that they are always answered in the
/// same order.
#[derive(Debug, Default)]
pub(super) struct LacWaits(BTreeMap<LedgerId, VecDeque<LacWait>>);

impl LacWaits {
    /// Keeps a wait. If the ledger has too many now, the oldest is returned and must be answered.
    pub(super) fn push(&mut self, ledger: LedgerId, wait: LacWait) -> Option<LacWait> {
        let waits = self.0.entry(ledger).or_default();
        waits.push_back(wait);
        if waits.len() > LAC_WAITS_MAX { waits.pop_front() } else { None }
    }

    /// Whether somebody waits for this ledger.
    pub(super) fn contains(&self, ledger: LedgerId) -> bool {
        self.0.contains_key(&ledger)
    }

    /// Takes out the waits that a ledger's LAC has passed.
    pub(super) fn take_passed(&mut self, ledger: LedgerId, lac: Option<EntryId>) -> Vec<LacWait> {
        let (mut passed, mut left) = (Vec::new(), VecDeque::new());
        for wait in self.0.remove(&ledger).unwrap_or_default() {
            if lac > wait.beyond {
                passed.push(wait);
            } else {
                left.push_back(wait);
            }
        }
        if !left.is_empty() {
            self.0.insert(ledger, left);
        }
        passed
    }

    /// Takes out all waits.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = LacWait> + use<> {
        std::mem::take(&mut self.0).into_values().flatten()
    }
}

impl fmt::Debug for LacWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LacWait").field("beyond", &self.beyond).finish_non_exhaustive()
    }
}
