//! The faults of west's bookies.
//!
//! One after the other, because with two bookies lost at once an ack quorum of 2 out of 3 copies
//! may be out of reach. All topics of west live through them.

use std::ops::Range;

use georepl::storage::bookie_rules::Mode;
use georepl::storage::fault::Fault;
use georepl::storage::{BookieId, Instance, LedgerId, RegisteredBookie};

use super::super::lane::{Lane, LaneError};
use super::super::ledgers;
use super::{POLL, drained, until, within};

/// A bookie that the topic is written to goes away in the middle of the traffic, and comes back
/// without anything it held.
pub(super) async fn kill(lane: &Lane, traffic: Range<u64>) -> Result<String, LaneError> {
    lane.let_through(traffic.start + (traffic.end - traffic.start) / 2);
    let some = || lane.west.ledger().end().get() > traffic.start;
    until(lane, "entries before the bookie is killed", some).await?;
    let west = &lane.regions.west;
    let member = Member::of_ensemble(lane).await?;
    let bookie = &member.bookie;
    west.bookies().down(bookie);
    west.registry().unregister(bookie);
    lane.let_through(traffic.end);
    member.until_done_without(lane).await?;
    let before = west.bookies().instance(bookie).expect("a member is one of the bookies");
    let instance = Instance(before.0 + 1);
    west.bookies().wipe(bookie, instance);
    let (id, mode) = (bookie.clone(), Mode::Writable);
    west.registry().register(RegisteredBookie { id, instance, mode });
    Ok(format!("killed {bookie} under load, and let it come back empty"))
}

/// A bookie that the topic is written to takes everything and answers nothing. It stays
/// registered, so that only its silence tells.
pub(super) async fn hang(lane: &Lane, traffic: Range<u64>) -> Result<String, LaneError> {
    drained(lane).await?;
    let west = &lane.regions.west;
    let member = Member::of_ensemble(lane).await?;
    let bookie = &member.bookie;
    west.transport().inject(bookie, Fault::LoseResponses);
    // Few, or the ledger may be full, and closed with the others' answers, before a request times
    // out.
    lane.let_through(traffic.end.min(traffic.start + HANG_MESSAGES));
    member.until_done_without(lane).await?;
    west.transport().heal(bookie);
    lane.let_through(traffic.end);
    Ok(format!("let {bookie} hang until its silence was noticed"))
}

/// A bookie that the topic is written to.
struct Member {
    ledger: LedgerId,
    bookie: BookieId,
}

impl Member {
    async fn of_ensemble(lane: &Lane) -> Result<Self, LaneError> {
        let last = ledgers::last_ensemble(&lane.regions.west, &lane.topic).await?;
        let (ledger, ensemble) = last.expect("an open topic has a ledger");
        let bookie = ensemble.into_iter().next().expect("an ensemble has members");
        Ok(Self { ledger, bookie })
    }

    /// Waits until its ledger is written to other bookies, or not at all any more because it was
    /// full.
    async fn until_done_without(&self, lane: &Lane) -> Result<(), LaneError> {
        let done_without = async {
            loop {
                match ledgers::last_ensemble(&lane.regions.west, &lane.topic).await? {
                    Some((ledger, ensemble))
                        if ledger == self.ledger && ensemble.contains(&self.bookie) => {}
                    _ => return Ok(()),
                }
                tokio::time::sleep(POLL).await;
            }
        };
        within(lane, "an ensemble without the bookie", done_without).await?
    }
}

/// A few batches, and a small part of a ledger.
const HANG_MESSAGES: u64 = 1_000;
