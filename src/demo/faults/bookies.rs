//! The faults of west's bookies.
//!
//! One after the other, because with two bookies lost at once an ack quorum of 2 out of 3 copies
//! may be out of reach. All topics of west live through them.

use std::ops::Range;

use georepl::storage::bookie_rules::Mode;
use georepl::storage::fault::Fault;
use georepl::storage::{BookieId, Instance, RegisteredBookie};

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
    let bookie = member(lane).await?;
    west.bookies().down(&bookie);
    west.registry().unregister(&bookie);
    lane.let_through(traffic.end);
    written_without(lane, &bookie).await?;
    let before = west.bookies().instance(&bookie).expect("a member is one of the bookies");
    let instance = Instance(before.0 + 1);
    west.bookies().wipe(&bookie, instance);
    let (id, mode) = (bookie.clone(), Mode::Writable);
    west.registry().register(RegisteredBookie { id, instance, mode });
    Ok(format!("killed {bookie} under load, and let it come back empty"))
}

/// A bookie that the topic is written to takes everything and answers nothing. It stays
/// registered, so that only its silence tells.
pub(super) async fn hang(lane: &Lane, traffic: Range<u64>) -> Result<String, LaneError> {
    drained(lane).await?;
    let west = &lane.regions.west;
    let bookie = member(lane).await?;
    west.transport().inject(&bookie, Fault::LoseResponses);
    lane.let_through(traffic.end);
    written_without(lane, &bookie).await?;
    west.transport().heal(&bookie);
    Ok(format!("let {bookie} hang under load until it was written without"))
}

/// A bookie that the topic is written to.
async fn member(lane: &Lane) -> Result<BookieId, LaneError> {
    let ensemble = ledgers::last_ensemble(&lane.regions.west, &lane.topic).await?;
    Ok(ensemble.into_iter().next().expect("an open topic has a ledger"))
}

/// Waits until the topic is written to other bookies. That the ensemble changed would be too much
/// to wait for: if the ledger is full just now, the next one may do without the bookie anyway.
async fn written_without(lane: &Lane, bookie: &BookieId) -> Result<(), LaneError> {
    let written_without = async {
        loop {
            let ensemble = ledgers::last_ensemble(&lane.regions.west, &lane.topic).await?;
            if !ensemble.contains(bookie) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    };
    within(lane, "an ensemble without the bookie", written_without).await?
}
