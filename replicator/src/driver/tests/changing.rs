//! What operators and the poison policy change, and what a restored copy of either side shows.

use georepl_cursor::{Kept as Keeps, Progress, Retention};

use super::*;
use crate::change::{Change, CommandRefused, Poison};

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
    assert!(pair.cursor.progress().incarnation > incarnation);
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

/// What is stored of a cursor at one time.
struct Snapshot {
    mark_delete: Offset,
    progress: Progress,
}

impl Pair {
    async fn snapshot(&self) -> Snapshot {
        self.cursor.persist().await.unwrap();
        let mark_delete = self.cursor.mark_delete_offset();
        Snapshot { mark_delete, progress: self.cursor.progress() }
    }

    /// The cursor is as it was then, and has another owner; the log is whole.
    async fn put_back(self, Snapshot { mark_delete, progress }: Snapshot) -> Self {
        self.replicator.shutdown(Duration::from_secs(5)).await;
        let to = StartAt::Position(self.at(mark_delete.get()));
        self.cursor.reset(to, |now| *now = progress).await.unwrap();
        self.with(AFTER_TWO).await
    }

    async fn blocks_as_put_back(&self) {
        self.replicator.start();
        let behind = || matches!(self.replicator.why().reason, Reason::CursorBehind { .. });
        until("a block", behind).await;
    }

    async fn released(&self, position: Position) {
        self.within(self.replicator.release(position)).await.unwrap();
        until("the release", || self.replicator.quarantine().is_empty()).await;
        self.drained().await;
    }
}

/// East has 0, 2, 3 and 4, and 1 lies in quarantine; the state before that.
async fn with_one_in_quarantine() -> (Pair, Snapshot) {
    let pair = Pair::new().await.with(AFTER_TWO).await;
    publish(&pair.west, 0..1).await;
    pair.replicator.start();
    pair.drained().await;
    pair.replicator.stop();
    let before = pair.snapshot().await;
    publish(&pair.west, 1..5).await;
    pair.faults.refuse_position(pair.at(1));
    pair.replicator.start();
    pair.drained().await;
    assert_eq!(pair.arrived().await, [0, 2, 3, 4]);
    (pair, before)
}

#[tokio::test(start_paused = true)]
async fn entry_in_quarantine_is_not_lost_with_its_note_when_the_cursor_is_put_back() {
    // Also when the sessions that are forgotten seem newer, which is noticed first.
    for ahead in [0, 1_000] {
        let (pair, before) = with_one_in_quarantine().await;
        let pair = pair.put_back(before).await;
        if ahead > 0 {
            let gone =
                SessionId { owner: *pair.replicator.shared().taken.lock() + ahead, counter: 1 };
            let source = Source { cluster: "west".into(), topic: TOPIC.into() };
            let (incarnation, revision) = (Incarnation(1), Revision(1));
            let opening = Opening { source, session: gone, incarnation, revision };
            let remote = EmbeddedRemote::new(Arc::new(OneTopic(pair.east.clone())));
            let events = SessionEvents::new(gone, Arc::new(super::Nobody));
            drop(remote.open(opening, events).await.map_err(|error| error.to_string()).unwrap());
        }
        pair.blocks_as_put_back().await;
        assert_eq!(pair.cursor.backlog(), 4, "nothing is taken for stored");
        // So does whoever has the cursor next, until somebody seeks.
        let pair = pair.restarted(AFTER_TWO).await;
        pair.blocks_as_put_back().await;
        pair.within(pair.replicator.seek(StartAt::Position(pair.at(1)))).await.unwrap();
        pair.faults.allow_position(pair.at(1));
        pair.drained().await;
        assert_eq!(pair.arrived().await, [0, 2, 3, 4, 1, 2, 3, 4], "as it was told to");
    }
}

#[tokio::test(start_paused = true)]
async fn cursor_that_lost_acknowledgements_alone_goes_on_and_repeats_nothing() {
    let (pair, _) = with_one_in_quarantine().await;
    let noted = pair.snapshot().await;
    publish(&pair.west, 5..8).await;
    pair.drained().await;
    // As a crash leaves it: the note is durable, and nothing that was acknowledged since.
    let pair = pair.put_back(Snapshot { mark_delete: Offset::ZERO, ..noted }).await;
    publish(&pair.west, 8..9).await;
    pair.replicator.start();
    pair.drained().await;
    assert_eq!(pair.arrived().await, [0, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(pair.replicator.quarantine(), [(pair.at(1), Keeps::Quarantined)].into());
}

#[tokio::test(start_paused = true)]
async fn forgotten_seeks_and_releases_are_noticed() {
    // Before a seek that passed over entries, and before a release.
    for released in [false, true] {
        let (pair, _) = with_one_in_quarantine().await;
        let before = pair.snapshot().await;
        if released {
            pair.faults.allow_position(pair.at(1));
            pair.released(pair.at(1)).await;
        } else {
            pair.replicator.stop();
            publish(&pair.west, 5..7).await;
            pair.within(pair.replicator.seek(StartAt::Latest)).await.unwrap();
            pair.replicator.start();
        }
        publish(&pair.west, 7..8).await;
        pair.drained().await;
        let arrived = pair.arrived().await;
        let pair = pair.put_back(before).await;
        pair.replicator.start();
        let ended = || {
            let stopped = Reason::Stopped(StopReason::LaterIncarnation(Incarnation(2)));
            pair.replicator.why().reason == stopped
        };
        until("its end", ended).await;
        assert_eq!(pair.arrived().await, arrived, "nothing is sent");
    }
}

#[tokio::test(start_paused = true)]
async fn cursor_put_back_into_a_release_blocks_when_more_than_that_entry_has_arrived() {
    for given_up in [false, true] {
        let (pair, _) = with_one_in_quarantine().await;
        let bad = pair.at(1);
        // The incarnation has begun, and the entry is refused again.
        pair.within(pair.replicator.release(bad)).await.unwrap();
        let sending = || pair.cursor.progress().kept.get(&bad) == Some(&Keeps::Sending);
        until("the incarnation", sending).await;
        let sending = pair.snapshot().await;
        if given_up {
            pair.within(pair.replicator.discard(bad)).await.unwrap();
        } else {
            pair.faults.allow_position(bad);
            until("the release", || pair.replicator.quarantine().is_empty()).await;
        }
        publish(&pair.west, 5..7).await;
        pair.drained().await;
        let arrived = pair.arrived().await;
        let pair = pair.put_back(sending).await;
        pair.blocks_as_put_back().await;
        assert_eq!(pair.arrived().await, arrived, "nothing is sent");

        // Somebody seeks where no replicator runs: over the release, in another incarnation.
        pair.replicator.shutdown(Duration::from_secs(5)).await;
        let seek = Change::seek(StartAt::Latest, &pair.cursor.progress());
        pair.cursor.reset(StartAt::Latest, |progress| seek.apply(progress)).await.unwrap();
        let pair = pair.restarted(AFTER_TWO).await;
        publish(&pair.west, 7..8).await;
        pair.replicator.start();
        pair.drained().await;
        assert_eq!(pair.arrived().await, [arrived, vec![7]].concat());
        assert_eq!(pair.replicator.quarantine(), [(bad, Keeps::InDoubt)].into());
    }
}
