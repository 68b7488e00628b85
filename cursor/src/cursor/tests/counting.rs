//! The backlog is what would be delivered, whatever was done and whoever crashed.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;

use super::topic::{TOPIC, config};
use super::*;
use crate::managed_ledger::Retention;

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    MarkDelete(Index),
    Delete(Vec<Index>),
    /// Acknowledges an entry without waiting until it is durable.
    Accept(Index),
    /// As `MarkDelete`, while no bookie can be reached.
    MarkDeleteWithoutBookies(Index),
    /// As that, and the metadata store does not answer for the record.
    MarkDeleteUnanswered(Index, Silence),
    Skip(u64),
    Clear,
    Seek(Index),
    Reset(Index),
    Trim,
    /// As `MarkDelete`, and the metadata store does not answer for the record of the topic from which ledgers are deleted
    /// then. That may land when the owner has crashed.
    TrimUnanswered(Index),
    /// The cursor alone.
    CloseCursor,
    /// The topic and its cursor, one after the other.
    Close,
    /// Both are gone without a word.
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let at = any::<Index>;
    prop_oneof![
        4 => (1..6_usize).prop_map(Step::Append),
        2 => at().prop_map(Step::MarkDelete),
        4 => prop::collection::vec(at(), 1..4).prop_map(Step::Delete),
        3 => at().prop_map(Step::Accept),
        1 => at().prop_map(Step::MarkDeleteWithoutBookies),
        1 => at().prop_map(|at| Step::MarkDeleteUnanswered(at, Silence::Made)),
        1 => at().prop_map(|at| Step::MarkDeleteUnanswered(at, Silence::Late)),
        1 => (0..5_u64).prop_map(Step::Skip),
        1 => Just(Step::Clear),
        2 => at().prop_map(Step::Seek),
        2 => at().prop_map(Step::Reset),
        1 => Just(Step::Trim),
        2 => at().prop_map(Step::TrimUnanswered),
        1 => Just(Step::CloseCursor),
        2 => Just(Step::Close),
        3 => Just(Step::Crash),
    ]
}

/// A topic that lets go of what is acknowledged, its only cursor, and what is to be expected of it.
struct World {
    region: Region,
    topic: ManagedLedger,
    cursor: Arc<ManagedCursor>,
    appended: Vec<Position>,
    /// What is not acknowledged.
    left: BTreeSet<Position>,
    /// What was not acknowledged when everything was last durable.
    left_durably: BTreeSet<Position>,
}

impl World {
    async fn new() -> Self {
        let region = Region::new();
        let topic = region.topic_with(config(Retention::NONE)).await;
        let cursor = cursor(&topic).await;
        let (left, left_durably) = (BTreeSet::new(), BTreeSet::new());
        Self { region, topic, cursor, appended: Vec::new(), left, left_durably }
    }

    async fn take(&mut self, step: &Step) {
        if let Step::Append(entries) = step {
            let appended = append(&self.topic, *entries).await;
            self.left.extend(&appended);
            self.left_durably.extend(&appended);
            self.appended.extend(appended);
            return;
        }
        if self.appended.is_empty() {
            return;
        }
        match step {
            Step::Append(_) => unreachable!("it was taken before"),
            Step::MarkDelete(at) => self.mark_delete(*at.get(&self.appended)).await,
            Step::MarkDeleteWithoutBookies(at) => self.mark_delete_without_bookies(at).await,
            Step::MarkDeleteUnanswered(at, silence) => {
                self.region.store.keep_silent(&self.cursor.key, *silence);
                self.mark_delete_without_bookies(at).await;
                self.region.store.answer();
            }
            Step::Delete(list) => {
                let list: Vec<_> = list.iter().map(|at| *at.get(&self.appended)).collect();
                self.cursor.delete(&list).await.unwrap();
                self.left.retain(|left| !list.contains(left));
                self.durable();
            }
            Step::Accept(at) => {
                let at = *at.get(&self.appended);
                self.cursor.accept_delete(&[at]).unwrap();
                self.left.remove(&at);
            }
            Step::Skip(entries) => self.skip(*entries).await,
            Step::Clear => self.skip(u64::MAX).await,
            Step::Seek(at) => {
                let at = *at.get(&self.appended);
                self.cursor.seek(StartAt::Position(at));
                let expected: Vec<_> = self.left.range(at..).copied().collect();
                assert_eq!(self.delivered().await, expected, "from {at} on");
            }
            Step::Reset(at) => {
                let at = *at.get(&self.appended);
                self.cursor.reset(StartAt::Position(at), |_| ()).await.unwrap();
                let behind = self.appended.iter().filter(|behind| **behind >= at);
                self.left = behind.filter(|at| !self.topic.is_trimmed(**at)).copied().collect();
                self.durable();
            }
            Step::Trim => drop(self.topic.trim().await.unwrap()),
            Step::TrimUnanswered(at) => {
                // A rollover may be under way: its record is answered for.
                others_run().await;
                self.region.store.keep_silent(TOPIC, Silence::Late);
                self.mark_delete(*at.get(&self.appended)).await;
                // Longer than the store is waited for.
                tokio::time::sleep(Duration::from_secs(11)).await;
                self.region.store.answer();
            }
            Step::CloseCursor => {
                self.cursor.close().await.unwrap();
                self.cursor = cursor(&self.topic).await;
                self.durable();
            }
            Step::Close => {
                self.topic.close().await.unwrap();
                self.reopen().await;
                self.durable();
            }
            Step::Crash => {
                if self.region.store.is_late() {
                    // Unless another was written since.
                    let _ = self.region.store.make_late().await;
                }
                self.reopen().await;
                let found: BTreeSet<_> = self.rest().await.into_iter().collect();
                assert!(found.is_superset(&self.left), "nothing was acknowledged by itself");
                assert!(found.is_subset(&self.left_durably), "what was durable is found");
                self.left = found;
                self.durable();
            }
        }
    }

    /// Acknowledges everything up to an entry; it may be acknowledged already, and even deleted.
    async fn mark_delete(&mut self, at: Position) {
        match self.cursor.mark_delete(at).await {
            Ok(()) => {}
            Err(MarkDeleteError::NoSuchEntry(gone)) => assert!(self.topic.is_trimmed(gone)),
            Err(MarkDeleteError::Refused(MarkDeleteRefused::Backwards { .. })) => {
                assert!(!self.left.contains(&at));
            }
            // It is made all the same.
            Err(MarkDeleteError::NotStored(_)) => {}
            Err(error) => panic!("{error}"),
        }
        self.left.retain(|left| *left > at);
        self.cursor.persist().await.unwrap();
        self.durable();
    }

    async fn mark_delete_without_bookies(&mut self, at: &Index) {
        let bookies = self.region.bookies.clone();
        bookies.iter().for_each(|bookie| self.region.memory.down(bookie));
        self.mark_delete(*at.get(&self.appended)).await;
        bookies.iter().for_each(|bookie| self.region.memory.up(bookie));
    }

    async fn skip(&mut self, entries: u64) {
        let skipped = self.cursor.skip(entries).await.unwrap();
        assert_eq!(skipped, entries.min(self.left.len() as u64));
        self.left = self.left.iter().skip(skipped as usize).copied().collect();
        self.durable();
    }

    async fn reopen(&mut self) {
        self.topic = self.region.topic_with(config(Retention::NONE)).await;
        self.cursor = cursor(&self.topic).await;
    }

    fn durable(&mut self) {
        self.left_durably = self.left.clone();
    }

    /// What is delivered from the read position on.
    async fn delivered(&self) -> Vec<Position> {
        let mut delivered = Vec::new();
        loop {
            let read = self.cursor.read_entries(LIMITS).await.unwrap();
            if read.is_empty() {
                return delivered;
            }
            delivered.extend(read.into_iter().map(|entry| entry.position));
        }
    }

    /// What is delivered from the first unacknowledged entry on.
    async fn rest(&self) -> Vec<Position> {
        self.cursor.rewind();
        self.delivered().await
    }

    async fn check(&self) {
        let rest = self.rest().await;
        assert_eq!(rest, self.left.iter().copied().collect::<Vec<_>>());
        assert_eq!(self.cursor.backlog(), rest.len() as u64);
        let stats = self.topic.internal_stats();
        let consumed = stats.cursors["c"].messages_consumed_counter;
        assert_eq!(stats.entries_added_counter as i64 - consumed, rest.len() as i64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn backlog_is_what_would_be_delivered_whatever_was_done(
        steps in prop::collection::vec(step(), 1..24)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            for step in &steps {
                world.take(step).await;
                world.check().await;
            }
        });
    }
}
