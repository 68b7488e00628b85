//! The faults, one after the other, each under traffic that is let through for it.
//!
//! A fault waits for its own condition and never for a time, so that it happens on any machine.

mod bookies;

use std::ops::Range;
use std::time::Duration;

use georepl::cursor::Offset;
use georepl::replicator::{Accounting, Reason, ReleaseOrder, State};
use serde::Serialize;

use super::lane::{Lane, LaneError};
use super::ledgers;
use super::wire::{Refused, Repeat};

/// What was done, and how it was survived.
#[derive(Debug, Serialize)]
pub(crate) struct Survived {
    pub(crate) fault: String,
    pub(crate) rewinds: u64,
    /// Without those that the watermark of the next session answered for.
    pub(crate) sent_again: u64,
    pub(crate) refused: Refused,
    /// Of the topic's ledgers in both regions, by their records.
    pub(crate) ensemble_changes: u64,
}

/// Something did not happen in [`STALL`].
#[derive(Debug, thiserror::Error)]
#[error("{topic}: waited {} s for {what}; {why}", STALL.as_secs())]
pub(crate) struct Stalled {
    topic: String,
    what: &'static str,
    why: String,
}

/// What the faults of a script are done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The topic's link and its replicator.
    Topic,
    /// Those, and the bookies of west, which it shares with all other topics.
    Region,
}

/// The faults in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    CutLink,
    RefuseHead,
    LateReceipts,
    StopWhileWaiting,
    RepeatSends,
    CutLinkAgain,
    HangBookie,
    KillBookie,
}

impl Fault {
    const ALL: [Self; 8] = [
        Self::CutLink,
        Self::RefuseHead,
        Self::LateReceipts,
        Self::StopWhileWaiting,
        Self::RepeatSends,
        Self::CutLinkAgain,
        Self::HangBookie,
        Self::KillBookie,
    ];

    fn is_in(self, scope: Scope) -> bool {
        match self {
            Self::CutLink
            | Self::RefuseHead
            | Self::LateReceipts
            | Self::StopWhileWaiting
            | Self::RepeatSends
            | Self::CutLinkAgain => true,
            Self::HangBookie | Self::KillBookie => scope == Scope::Region,
        }
    }
}

/// Fewer messages in a topic leave too little traffic for each fault.
pub(crate) const MESSAGES_MIN: u64 = 10 * SEGMENTS;

/// Traffic before the faults, and for each of them. A topic that is spared some of them has their
/// traffic at its end.
const SEGMENTS: u64 = Fault::ALL.len() as u64 + 1;

/// Lets the traffic through piece by piece, with a fault in each.
pub(crate) async fn run(lane: &Lane, seed: u64, scope: Scope) -> Result<Vec<Survived>, LaneError> {
    let mut segments = segments(lane.messages, seed).into_iter();
    let warm_up = segments.next().expect("there is a segment before the faults");
    lane.let_through(warm_up.end);
    // The rewind of the start belongs to no fault.
    let begun = || lane.cursor.mark_delete_offset() > Offset::ZERO;
    until(lane, "the first acknowledgement", begun).await?;
    let mut survived = Vec::new();
    let faults = Fault::ALL.into_iter().filter(|fault| fault.is_in(scope));
    for (fault, traffic) in faults.zip(segments) {
        let before = Counts::of(lane).await?;
        let fault = inject(lane, fault, traffic).await?;
        let end = lane.west.ledger().end();
        let acknowledged = || lane.cursor.mark_delete_offset() >= end;
        until(lane, "what was published until the fault to be acknowledged", acknowledged).await?;
        let after = Counts::of(lane).await?;
        survived.push(Survived::new(fault, &before, &after));
        lane.tell(survived.last().expect("it was just pushed"));
    }
    Ok(survived)
}

async fn inject(lane: &Lane, fault: Fault, traffic: Range<u64>) -> Result<String, LaneError> {
    let through = traffic.end;
    Ok(match fault {
        Fault::CutLink => cut_link(lane, through).await?,
        Fault::RefuseHead => refuse_head(lane, through).await?,
        Fault::LateReceipts => late_receipts(lane, traffic).await?,
        Fault::StopWhileWaiting => stop_while_waiting(lane, traffic).await?,
        Fault::RepeatSends => repeat_sends(lane, through).await?,
        Fault::CutLinkAgain => cut_link_again(lane, through).await?,
        Fault::KillBookie => bookies::kill(lane, traffic).await?,
        Fault::HangBookie => bookies::hang(lane, traffic).await?,
    })
}

async fn cut_link(lane: &Lane, through: u64) -> Result<String, Stalled> {
    let lost = cut(lane, through).await?;
    Ok(format!("cut the link with {lost} receipts in flight"))
}

/// Receipts are held back first, so that some are certainly lost with the link.
async fn cut(lane: &Lane, through: u64) -> Result<u64, Stalled> {
    let before = lane.faults.counts();
    lane.faults.hold_receipts();
    lane.let_through(through);
    let held = lane.faults.until(|counts| counts.receipts_held > before.receipts_held);
    within(lane, "receipts in flight", held).await?;
    lane.faults.cut_link();
    lane.faults.release_receipts(ReleaseOrder::Given);
    Ok(lane.faults.counts().receipts_lost - before.receipts_lost)
}

/// The window is empty first, so that what is sent next is its head.
async fn refuse_head(lane: &Lane, through: u64) -> Result<String, Stalled> {
    drained(lane).await?;
    let before = lane.faults.counts().entries_refused;
    lane.faults.refuse_next(1);
    lane.let_through(through);
    let refused = lane.faults.until(|counts| counts.entries_refused > before);
    within(lane, "a refusal", refused).await?;
    Ok("refused the entry at the head of the pipeline".to_owned())
}

async fn late_receipts(lane: &Lane, traffic: Range<u64>) -> Result<String, Stalled> {
    drained(lane).await?;
    let before = lane.faults.counts().receipts_held;
    lane.faults.hold_receipts();
    let some = (traffic.end - traffic.start).min(LATE_RECEIPTS);
    lane.let_through(traffic.end);
    let held = lane.faults.until(|counts| counts.receipts_held >= before + some);
    let held = within(lane, "receipts to hold back", held).await?.receipts_held - before;
    lane.faults.release_receipts(ReleaseOrder::Reversed);
    Ok(format!("held at least {held} receipts back and gave them in reverse"))
}

/// The publisher has paused at the end of its segment, so the read really waits.
async fn stop_while_waiting(lane: &Lane, traffic: Range<u64>) -> Result<String, Stalled> {
    drained(lane).await?;
    let waiting = || lane.replicator.why().reason == Reason::WaitingForEntries;
    until(lane, "a waiting read", waiting).await?;
    let mut state = lane.replicator.watch();
    lane.replicator.stop();
    let stopped = state.wait_for(|state| *state == State::Stopped);
    within(lane, "the stop", stopped).await?.expect("the replicator outlives its lane");
    // Entries come while it is stopped, as they would have woken the read.
    lane.let_through(traffic.end);
    let more = || lane.west.ledger().end().get() > traffic.start;
    until(lane, "entries while it is stopped", more).await?;
    lane.replicator.start();
    Ok("stopped the replicator while a read was waiting, and started it again".to_owned())
}

/// The network delivers a batch twice.
async fn repeat_sends(lane: &Lane, through: u64) -> Result<String, Stalled> {
    let before = lane.wire.refused().duplicates;
    lane.wire.repeat_next(Repeat::AtOnce);
    lane.let_through(through);
    let refused = lane.wire.until(|refused| refused.duplicates > before);
    within(lane, "duplicates that east refuses", refused).await?;
    Ok("delivered a batch of sends twice".to_owned())
}

/// The window is empty first, so that something is sent before the link is cut.
async fn cut_link_again(lane: &Lane, through: u64) -> Result<String, Stalled> {
    drained(lane).await?;
    let (opens, late) = (lane.faults.counts().opens_failed, lane.wire.refused().late);
    lane.wire.repeat_next(Repeat::InNextSession);
    lane.faults.fail_opens(1);
    let lost = cut(lane, through).await?;
    let reopened = lane.faults.until(|counts| counts.opens_failed > opens);
    within(lane, "the attempt to connect that fails", reopened).await?;
    let refused = lane.wire.until(|refused| refused.late > late);
    within(lane, "late sends that east refuses", refused).await?;
    Ok(format!(
        "cut the link with {lost} receipts in flight, failed an attempt to reconnect, and \
         delivered old sends once the new session was open"
    ))
}

/// Everything that may be published by now is published and acknowledged.
pub(crate) async fn drained(lane: &Lane) -> Result<(), Stalled> {
    let allowed = lane.allowed();
    let done = || lane.cursor.mark_delete_offset().get() >= allowed;
    until(lane, "an empty backlog", done).await
}

/// What a fault may move.
struct Counts {
    accounting: Accounting,
    refused: Refused,
    ensemble_changes: u64,
}

impl Counts {
    async fn of(lane: &Lane) -> Result<Self, LaneError> {
        let ensemble_changes = ledgers::ensemble_changes(&lane.regions, &lane.topic).await?;
        let (accounting, refused) = (lane.replicator.accounting(), lane.wire.refused());
        Ok(Self { accounting, refused, ensemble_changes })
    }
}

impl Survived {
    fn new(fault: String, before: &Counts, after: &Counts) -> Self {
        Self {
            fault,
            rewinds: after.accounting.rewinds - before.accounting.rewinds,
            sent_again: after.accounting.sent_again - before.accounting.sent_again,
            refused: Refused {
                duplicates: after.refused.duplicates - before.refused.duplicates,
                late: after.refused.late - before.refused.late,
            },
            ensemble_changes: after.ensemble_changes - before.ensemble_changes,
        }
    }
}

impl std::fmt::Display for Survived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { fault, rewinds, sent_again, refused, ensemble_changes } = self;
        let Refused { duplicates, late } = refused;
        write!(f, "{fault}; survived: rewinds {rewinds}, sent again {sent_again}")?;
        if *duplicates > 0 {
            write!(f, ", {duplicates} duplicates refused by east")?;
        }
        if *late > 0 {
            write!(f, ", {late} late sends refused by east")?;
        }
        if *ensemble_changes > 0 {
            write!(f, ", ensemble changes {ensemble_changes}")?;
        }
        Ok(())
    }
}

/// Cuts `messages` into segments of random, similar sizes, none of them empty.
fn segments(messages: u64, seed: u64) -> Vec<Range<u64>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let equal = messages / SEGMENTS;
    let shift = equal / 4;
    let mut begin = 0;
    let mut segment = |n| {
        let jitter = if n == SEGMENTS { 0 } else { random.u64(0..=shift) };
        let end = if n == SEGMENTS { messages } else { n * equal + jitter };
        let segment = begin..end;
        begin = end;
        segment
    };
    (1..=SEGMENTS).map(&mut segment).collect()
}

/// Waits for a condition that nobody announces.
async fn until(
    lane: &Lane,
    what: &'static str,
    condition: impl Fn() -> bool,
) -> Result<(), Stalled> {
    // Counted in polls, because a process that was stopped and continued has waited for nothing.
    let (mut last, mut waited) = (lane.progress(), Duration::ZERO);
    while !condition() {
        let progress = lane.progress();
        if progress != last {
            (last, waited) = (progress, Duration::ZERO);
        } else if waited > STALL {
            return Err(stalled(lane, what));
        }
        tokio::time::sleep(POLL).await;
        waited += POLL;
    }
    Ok(())
}

async fn within<T>(
    lane: &Lane,
    what: &'static str,
    future: impl Future<Output = T>,
) -> Result<T, Stalled> {
    let patience = async {
        for _ in 0..STALL.as_secs() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        result = future => Ok(result),
        () = patience => Err(stalled(lane, what)),
    }
}

fn stalled(lane: &Lane, what: &'static str) -> Stalled {
    Stalled { topic: lane.topic.clone(), what, why: lane.replicator.why().to_string() }
}

/// Enough to be out of order, and few enough for the window even at the largest message.
const LATE_RECEIPTS: u64 = 10;
/// Nothing that is waited for takes longer without progress, unless it is broken.
const STALL: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_all_messages_and_move_with_the_seed() {
        for messages in MESSAGES_MIN..MESSAGES_MIN + 100 {
            let segments = segments(messages, messages);
            assert_eq!(segments.len() as u64, SEGMENTS);
            assert!(segments.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(segments.iter().all(|segment| segment.start < segment.end));
            assert_eq!((segments[0].start, segments.last().unwrap().end), (0, messages));
        }
        assert_eq!(segments(10_000, 1), segments(10_000, 1));
        assert_ne!(segments(10_000, 1), segments(10_000, 2));
    }
}
