//! The faults of west's bookies.
//!
//! One after the other, because with two bookies lost at once an ack quorum of 2 out of 3 copies
//! may be out of reach. All topics of west live through them.

use std::ops::Range;

use georepl::Memory;
use georepl::storage::bookie_rules::Mode;
use georepl::storage::fault::Fault;
use georepl::storage::{BookieError, BookieId, Instance, LedgerId, RegisteredBookie};

use super::super::lane::{Lane, LaneError};
use super::super::ledgers;
use super::{POLL, drained, stalled, until, within};

/// A bookie that the topic is written to goes away in the middle of the traffic. In memory it comes
/// back without anything it held; on disk it has only been cut off, since its file is kept.
pub(super) async fn kill(lane: &Lane, traffic: Range<u64>) -> Result<String, LaneError> {
    lane.let_through(traffic.start + (traffic.end - traffic.start) / 2);
    let some = || lane.west.ledger().end().get() > traffic.start;
    until(lane, "entries before the bookie is killed", some).await?;
    let west = &lane.regions.west;
    match west.memory() {
        Some(Memory { bookies, registry }) => {
            let instance =
                |bookie: &BookieId| bookies.instance(bookie).expect("a member is a bookie of west");
            let come_back = |bookie: &BookieId| {
                let (id, instance, mode) = (bookie.clone(), instance(bookie), Mode::Writable);
                registry.register(RegisteredBookie { id, instance, mode });
            };
            let kill = |bookie: &BookieId| {
                bookies.down(bookie);
                registry.unregister(bookie);
            };
            let revive = |bookie: &BookieId| {
                bookies.up(bookie);
                come_back(bookie);
            };
            let bookie = until_noticed(lane, traffic.end, kill, revive).await?;
            bookies.wipe(&bookie, Instance(instance(&bookie).0 + 1));
            come_back(&bookie);
            lane.let_through(traffic.end);
            Ok(format!("killed {bookie} under load, and let it come back empty"))
        }
        None => {
            let unreachable = Fault::Answer(BookieError::Unreachable);
            let cut = |bookie: &BookieId| west.transport().inject(bookie, unreachable);
            let heal = |bookie: &BookieId| west.transport().heal(bookie);
            let bookie = until_noticed(lane, traffic.end, cut, heal).await?;
            heal(&bookie);
            lane.let_through(traffic.end);
            Ok(format!("cut {bookie} off under load, and let it come back with what it held"))
        }
    }
}

/// A bookie that the topic is written to takes everything and answers nothing. It stays
/// registered, so that only its silence tells.
pub(super) async fn hang(lane: &Lane, traffic: Range<u64>) -> Result<String, LaneError> {
    drained(lane).await?;
    let transport = lane.regions.west.transport();
    let hang = |bookie: &BookieId| transport.inject(bookie, Fault::LoseResponses);
    let heal = |bookie: &BookieId| transport.heal(bookie);
    let bookie = until_noticed(lane, traffic.end, hang, heal).await?;
    heal(&bookie);
    lane.let_through(traffic.end);
    Ok(format!("let {bookie} hang until its silence was noticed"))
}

/// Fails a bookie that the topic is written to, under a part of the traffic, until its ledger is
/// written to other bookies. A ledger may be full, and closed with the others' answers, before it
/// notices; then the bookie is mended, and one of the next ledger fails.
async fn until_noticed(
    lane: &Lane,
    traffic_end: u64,
    fail: impl Fn(&BookieId),
    mend: impl Fn(&BookieId),
) -> Result<BookieId, LaneError> {
    loop {
        let left = traffic_end - lane.allowed();
        if left == 0 {
            return Err(stalled(lane, "a ledger that notices that its bookie has failed").into());
        }
        let member = Member::of_ensemble(lane).await?;
        fail(&member.bookie);
        // Never all of it, so that there is some for the next ledger.
        lane.let_through(lane.allowed() + left.div_ceil(2).min(BURST_MESSAGES));
        match member.until_done_without(lane).await? {
            Done::EnsembleChanged => return Ok(member.bookie),
            Done::LedgerFull => mend(&member.bookie),
        }
    }
}

/// A bookie that the topic is written to.
struct Member {
    ledger: LedgerId,
    bookie: BookieId,
}

/// Why a ledger does without a bookie.
enum Done {
    EnsembleChanged,
    /// It is not written to any more.
    LedgerFull,
}

impl Member {
    async fn of_ensemble(lane: &Lane) -> Result<Self, LaneError> {
        let west = &lane.regions.west;
        let ledger = ledgers::last(west, &lane.topic).await?.expect("an open topic has a ledger");
        let ensemble = ledgers::last_ensemble(west, ledger).await?;
        let bookie = ensemble.into_iter().next().expect("an ensemble has members");
        Ok(Self { ledger, bookie })
    }

    async fn until_done_without(&self, lane: &Lane) -> Result<Done, LaneError> {
        let west = &lane.regions.west;
        let done_without = async {
            loop {
                // The list first: what is found in the record of a ledger that is over is final.
                let last = ledgers::last(west, &lane.topic).await?;
                if !ledgers::last_ensemble(west, self.ledger).await?.contains(&self.bookie) {
                    return Ok(Done::EnsembleChanged);
                }
                if last != Some(self.ledger) {
                    return Ok(Done::LedgerFull);
                }
                tokio::time::sleep(POLL).await;
            }
        };
        within(lane, "an ensemble without the bookie", done_without).await?
    }
}

/// A few batches, and a small part of a ledger.
const BURST_MESSAGES: u64 = 1_000;
