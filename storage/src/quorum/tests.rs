//! The arithmetic against its definition, over every ensemble of up to five bookies and every set of answers.

use super::*;

fn all_sizes() -> impl Iterator<Item = QuorumSizes> {
    (1..=5).flat_map(|ensemble| {
        (1..=ensemble).flat_map(move |write| {
            (1..=write).map(move |ack| QuorumSizes::new(ensemble, write, ack).expect("valid sizes"))
        })
    })
}

/// What became of each slot: unanswered, answered or failed.
fn all_outcomes(slots: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..3_u32.pow(slots as u32))
        .map(move |code| (0..slots as u32).map(|slot| (code / 3_u32.pow(slot) % 3) as u8).collect())
}

const UNANSWERED: u8 = 0;
const ANSWERED: u8 = 1;
const FAILED: u8 = 2;

/// All AQ-subsets of a write set: whoever may together have acknowledged an entry.
fn ack_subsets(sizes: QuorumSizes, entry: EntryId) -> Vec<Vec<usize>> {
    let write_set: Vec<_> = sizes.write_set(entry).map(Slot::index).collect();
    (0..1_u32 << write_set.len())
        .filter(|mask| mask.count_ones() as usize == sizes.ack())
        .map(|mask| {
            let chosen = write_set.iter().enumerate().filter(|(i, _)| mask & (1 << i) != 0);
            chosen.map(|(_, slot)| *slot).collect()
        })
        .collect()
}

/// Every set of bookies that could have acknowledged something has a member among those that `counts`.
fn covered(sizes: QuorumSizes, counts: impl Fn(usize) -> bool) -> bool {
    (0..sizes.ensemble() as u64)
        .flat_map(|entry| ack_subsets(sizes, EntryId(entry)))
        .all(|subset| subset.into_iter().any(&counts))
}

#[test]
fn lac_coverage_is_what_its_definition_says() {
    for sizes in all_sizes() {
        for outcomes in all_outcomes(sizes.ensemble()) {
            let mut answers = LacAnswers::default();
            for slot in sizes.slots() {
                match outcomes[slot.index()] {
                    ANSWERED => answers.record(slot),
                    FAILED => answers.record_failure(slot),
                    _ => {}
                }
            }
            let expected = if covered(sizes, |slot| outcomes[slot] == ANSWERED) {
                Coverage::Reached(LacQuorum(()))
            } else if covered(sizes, |slot| outcomes[slot] != FAILED) {
                Coverage::Possible
            } else {
                Coverage::Impossible
            };
            assert_eq!(answers.coverage(sizes), expected, "{sizes:?} {outcomes:?}");
        }
    }
}

#[test]
fn ack_coverage_is_what_its_definition_says() {
    for sizes in all_sizes() {
        let entry = EntryId(3);
        let write_set: Vec<_> = sizes.write_set(entry).collect();
        for outcomes in all_outcomes(sizes.write()) {
            let mut acks = AckSet::default();
            for (slot, outcome) in write_set.iter().zip(&outcomes) {
                match *outcome {
                    ANSWERED => acks.record(*slot),
                    FAILED => acks.record_failure(*slot),
                    _ => {}
                }
            }
            let outcome = |slot: usize| {
                let at = write_set.iter().position(|member| member.index() == slot);
                outcomes[at.expect("a member of the write set")]
            };
            let any = |counts: &dyn Fn(usize) -> bool| {
                ack_subsets(sizes, entry)
                    .iter()
                    .any(|subset| subset.iter().all(|slot| counts(*slot)))
            };
            let expected = if any(&|slot| outcome(slot) == ANSWERED) {
                Coverage::Reached(AckQuorum(()))
            } else if any(&|slot| outcome(slot) != FAILED) {
                Coverage::Possible
            } else {
                Coverage::Impossible
            };
            assert_eq!(acks.coverage(sizes), expected, "{sizes:?} {outcomes:?}");
            let unanswered = outcomes.iter().filter(|outcome| **outcome == UNANSWERED).count();
            assert_eq!(acks.settled() + unanswered, sizes.write());
        }
    }
}

#[test]
fn write_sets_are_consecutive_slots_from_the_id_on() {
    for sizes in all_sizes() {
        for id in [0, 1, 6, (1 << 31) - 1, 1 << 31, (1 << 32) + 3, i64::MAX as u64] {
            let slots: Vec<_> =
                sizes.write_set(EntryId(id)).map(|slot| slot.index() as u64).collect();
            let ensemble = sizes.ensemble() as u64;
            let expected: Vec<_> =
                (0..sizes.write() as u64).map(|i| (id % ensemble + i) % ensemble).collect();
            assert_eq!(slots, expected, "{sizes:?} entry {id}");
            for slot in (0..ENSEMBLE_SIZE_MAX).map(Slot::new) {
                let stores = expected.contains(&(slot.index() as u64));
                assert_eq!(sizes.stores(slot, EntryId(id)), stores, "{sizes:?} entry {id}");
            }
        }
    }
}

#[test]
fn the_first_outcome_of_a_slot_stays() {
    let sizes = QuorumSizes::new(3, 3, 2).expect("valid sizes");
    let [a, b, c] = [0, 1, 2].map(Slot::new);
    let mut acks = AckSet::default();
    acks.record(a);
    acks.record(a);
    acks.record_failure(a);
    acks.record_failure(b);
    acks.record(b);
    assert_eq!((acks.acks(), acks.failed().len()), (1, 1));
    assert_eq!(acks.coverage(sizes), Coverage::Possible);
    acks.record(c);
    assert_eq!(acks.coverage(sizes), Coverage::Reached(AckQuorum(())));
}

#[test]
fn sizes_out_of_order_are_refused() {
    for (ensemble, write, ack) in [(3, 4, 2), (3, 2, 3), (3, 2, 0), (0, 0, 0), (65, 3, 2)] {
        let refused = Err(InvalidQuorumSizes { ensemble, write, ack });
        assert_eq!(QuorumSizes::new(ensemble, write, ack), refused);
    }
    assert!(QuorumSizes::new(64, 64, 64).is_ok());
}
