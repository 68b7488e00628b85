//! What operators and the poison policy change, and what a restored copy of either side shows.

use georepl_cursor::{Kept as Keeps, Retention};

use super::*;
use crate::change::{CommandRefused, Poison};

const AFTER_TWO: Poison = Poison::Quarantine { after: 2 };

impl Pair {
    /// The cursor and its replicator as after a restart of the source.
    async fn restarted(self, poison: Poison) -> Self {
        self.replicator.shutdown(Duration::from_secs(5)).await;
        self.cursor.close().await.unwrap();
        self.with(poison).await
    }

    async fn with(mut self, poison: Poison) -> Self {
        let name = self.cursor.name().to_owned();
        let cursor = ManagedCursor::open(self.west.ledger(), &name, StartAt::Earliest).await;
        self.cursor = cursor.unwrap();
        let remote = EmbeddedRemote::new(Arc::new(OneTopic(self.east.clone())));
        let remote = Arc::new(FaultyRemote::new(remote, self.faults.clone()));
        let config = ReplicatorConfig { poison, ..ReplicatorConfig::new("west", "east", TOPIC) };
        let cursor = Arc::clone(&self.cursor);
        self.replicator = Replicator::new(config, cursor, remote).await.unwrap();
        self
    }

    fn at(&self, n: u64) -> Position {
        self.west.ledger().position_of(Offset::new(n)).unwrap()
    }

    /// What arrived, each step of which is accounted for.
    async fn arrived(&self) -> Vec<u64> {
        assert!(self.replicator.accounting().balances());
        payloads(&self.east).await
    }
}

fn numbers(parts: &[std::ops::Range<u64>]) -> Vec<u64> {
    parts.iter().cloned().flatten().collect()
}

#[tokio::test(start_paused = true)]
async fn seek_back_sends_again_in_a_new_incarnation_that_lasts() {
    let pair = Pair::new().await;
    pair.replicator.start();
    publish(&pair.west, 0..5).await;
    pair.drained().await;
    assert_eq!(pair.cursor.progress().incarnation, 1);
    let to = StartAt::Position(pair.at(2));
    assert_eq!(pair.within(pair.replicator.seek(to)).await, Ok(0));
    pair.drained().await;
    assert_eq!(pair.arrived().await, numbers(&[0..5, 2..5]));
    let progress = pair.cursor.progress();
    assert_eq!((progress.incarnation, progress.last_published), (2, Some(pair.at(4))));

    let pair = pair.restarted(Poison::Block).await;
    publish(&pair.west, 5..8).await;
    pair.replicator.start();
    pair.drained().await;
    assert_eq!(pair.arrived().await, numbers(&[0..5, 2..8]), "it stays, and repeats nothing");
}

#[tokio::test(start_paused = true)]
async fn seek_forward_passes_over_and_counts_also_while_it_is_stopped() {
    let pair = Pair::new().await;
    publish(&pair.west, 0..6).await;
    let to = StartAt::Position(pair.at(4));
    assert_eq!(pair.within(pair.replicator.seek(to)).await, Ok(4));
    assert_eq!(pair.replicator.why().reason, Reason::Stopped(StopReason::NotStarted));
    pair.replicator.start();
    pair.drained().await;
    assert_eq!(pair.arrived().await, [4, 5]);
    assert_eq!(pair.replicator.accounting().skipped, 4);
}

#[tokio::test(start_paused = true)]
async fn skip_is_noticed_while_it_runs_and_is_counted() {
    let pair = Pair::new().await;
    publish(&pair.west, 0..3).await;
    pair.west.ledger().append(Bytes::from_static(b"\x0e\x01")).await.unwrap();
    publish(&pair.west, 4..8).await;
    pair.faults.refuse_position(pair.at(1));
    pair.replicator.start();
    let refused = || matches!(pair.replicator.why().reason, Reason::Refused { .. });
    until("a refusal", refused).await;
    assert_eq!(pair.within(pair.replicator.skip(1)).await, Ok(1));
    let unreadable = || matches!(pair.replicator.why().reason, Reason::Unreadable { .. });
    until("the unreadable entry", unreadable).await;
    assert_eq!(pair.within(pair.replicator.skip(1)).await, Ok(1));
    pair.drained().await;
    assert_eq!(pair.arrived().await, numbers(&[0..1, 2..3, 4..8]));
    assert_eq!(pair.replicator.accounting().skipped, 2);

    pair.replicator.stop();
    publish(&pair.west, 8..12).await;
    assert_eq!(pair.within(pair.replicator.clear()).await, Ok(4));
    assert_eq!(pair.cursor.backlog(), 0);
}

#[tokio::test(start_paused = true)]
async fn refused_entry_goes_to_quarantine_and_comes_when_it_is_released() {
    let pair = Pair::new().await.with(AFTER_TWO).await;
    publish(&pair.west, 0..5).await;
    let bad = pair.at(1);
    pair.faults.refuse_position(bad);
    pair.replicator.start();
    pair.drained().await;
    assert_eq!(pair.arrived().await, [0, 2, 3, 4]);
    let counts = pair.replicator.accounting();
    assert_eq!((counts.quarantined, counts.refusals), (1, 2));
    assert_eq!(pair.replicator.quarantine(), [(bad, Keeps::Quarantined)].into());

    // It is known again after a restart, and so is that it is to be released.
    let pair = pair.restarted(AFTER_TWO).await;
    assert_eq!(pair.replicator.quarantine(), [(bad, Keeps::Quarantined)].into());
    pair.within(pair.replicator.release(bad)).await.unwrap();
    let pair = pair.restarted(AFTER_TWO).await;
    assert_eq!(pair.replicator.quarantine(), [(bad, Keeps::Released)].into());
    pair.faults.allow_position(bad);
    publish(&pair.west, 5..7).await;
    pair.replicator.start();
    until("the release", || pair.replicator.quarantine().is_empty()).await;
    pair.drained().await;
    assert_eq!(pair.arrived().await, [0, 2, 3, 4, 1, 5, 6]);
    let progress = pair.cursor.progress();
    assert_eq!((progress.incarnation, progress.kept.len()), (2, 0));
    assert_eq!(pair.replicator.accounting().released, 1);
}

#[tokio::test(start_paused = true)]
async fn released_entry_that_is_refused_again_goes_back_to_quarantine() {
    let pair = Pair::new().await.with(AFTER_TWO).await;
    publish(&pair.west, 0..3).await;
    let bad = pair.at(0);
    pair.faults.refuse_position(bad);
    pair.replicator.start();
    pair.drained().await;
    pair.within(pair.replicator.release(bad)).await.unwrap();
    let back = || pair.replicator.quarantine().get(&bad) == Some(&Keeps::Quarantined);
    until("the quarantine", back).await;
    publish(&pair.west, 3..5).await;
    pair.drained().await;
    assert_eq!(pair.arrived().await, [1, 2, 3, 4]);

    pair.within(pair.replicator.discard(bad)).await.unwrap();
    assert!(pair.replicator.quarantine().is_empty() && pair.cursor.progress().kept.is_empty());
    let refused = pair.replicator.release(bad).await.unwrap_err();
    assert_eq!(refused, CommandRefused::NotQuarantined(bad));
    assert_eq!(refused.advice(), Advice::GiveUp);
}

#[tokio::test(start_paused = true)]
async fn entries_that_are_not_readable_go_to_quarantine_at_once() {
    let pair = Pair::new().await.with(AFTER_TWO).await;
    publish(&pair.west, 0..2).await;
    let bad = pair.west.ledger().append(Bytes::from_static(b"\x0e\x01")).await.unwrap();
    publish(&pair.west, 3..5).await;
    pair.replicator.start();
    pair.drained().await;
    assert_eq!(pair.arrived().await, [0, 1, 3, 4]);
    pair.within(pair.replicator.release(bad)).await.unwrap();
    let tried = || pair.cursor.progress().incarnation == 2;
    until("an incarnation for it", tried).await;
    let back = || pair.replicator.quarantine().get(&bad) == Some(&Keeps::Quarantined);
    until("the quarantine", back).await;
    publish(&pair.west, 5..6).await;
    pair.drained().await;
    assert_eq!(pair.arrived().await, [0, 1, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn seek_ends_a_block_by_a_remote_that_was_restored_from_an_older_copy() {
    let pair = Pair::new().await;
    publish(&pair.west, 0..3).await;
    // What the copy has, an earlier replicator had sent there.
    let copy = topic().await;
    let to = ("east", &copy);
    let earlier = link(("west", &pair.west), to, RemoteFaults::new(), Limits::default()).await;
    earlier.1.start();
    pair.within(earlier.1.drained()).await.unwrap();
    let mut pair = pair.restarted(Poison::Block).await;
    pair.within(pair.replicator.seek(StartAt::Earliest)).await.unwrap();
    publish(&pair.west, 3..6).await;
    pair.replicator.start();
    pair.drained().await;
    let incarnation = pair.cursor.progress().incarnation;
    pair.east = copy;
    let pair = pair.restarted(Poison::Block).await;
    publish(&pair.west, 6..7).await;
    pair.replicator.start();
    let behind = || matches!(pair.replicator.why().reason, Reason::RemoteBehind { .. });
    until("a block", behind).await;
    let to = StartAt::Position(pair.at(3));
    pair.within(pair.replicator.seek(to)).await.unwrap();
    pair.drained().await;
    assert_eq!(pair.arrived().await, (0..7).collect::<Vec<_>>());
    assert_eq!(pair.cursor.progress().incarnation, incarnation + 1);
}

#[tokio::test(start_paused = true)]
async fn source_that_was_restored_from_an_older_copy_blocks_by_name_until_a_seek() {
    for entries in [1, 5] {
        let mut pair = Pair::new().await;
        pair.replicator.start();
        publish(&pair.west, 0..3).await;
        pair.drained().await;
        // Its positions are used again for other entries, or are not there any more.
        pair.west = topic().await;
        publish(&pair.west, 10..10 + entries).await;
        let pair = pair.with(Poison::Block).await;
        // So that its sessions are newer, as those of a restored cursor become by and by.
        for _ in 0..20 {
            pair.cursor.take_ownership().await.unwrap();
        }
        let pair = pair.with(Poison::Block).await;
        pair.replicator.start();
        let ahead = || matches!(pair.replicator.why().reason, Reason::RemoteAhead { .. });
        until("a block", ahead).await;
        assert_eq!(pair.arrived().await, [0, 1, 2]);
        pair.within(pair.replicator.seek(StartAt::Earliest)).await.unwrap();
        pair.drained().await;
        assert_eq!(pair.arrived().await, numbers(&[0..3, 10..10 + entries]));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_replicated_and_then_deleted_at_the_source_is_no_lost_data() {
    let config = ManagedLedgerConfig {
        ledger_entries_max: 2,
        retention: Retention::NONE,
        ..ManagedLedgerConfig::default()
    };
    let mut pair = Pair::new().await;
    pair.west = topic_with(config).await.0;
    let pair = pair.with(Poison::Block).await;
    pair.replicator.start();
    publish(&pair.west, 0..2).await;
    pair.drained().await;
    pair.cursor.persist().await.unwrap();
    pair.west.ledger().trim().await.unwrap();
    assert_eq!(pair.west.ledger().start(), Offset::new(2));
    let pair = pair.restarted(Poison::Block).await;
    publish(&pair.west, 2..3).await;
    pair.replicator.start();
    pair.drained().await;
    assert_eq!(pair.arrived().await, [0, 1, 2]);
}
