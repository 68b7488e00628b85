//! Deciding which entries exist.

use super::*;

/// What a bookie does when it is asked for an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Member {
    Ok,
    NoSuch,
    Unknown,
    Silent,
}

fn permutations(items: &mut Vec<usize>, from: usize, out: &mut Vec<Vec<usize>>) {
    if from == items.len() {
        return out.push(items.clone());
    }
    for i in from..items.len() {
        items.swap(from, i);
        permutations(items, from + 1, out);
        items.swap(from, i);
    }
}

/// Seed 001, second half: what the answers are decides, and never their order.
#[test]
fn ok_no_such_and_unknown_in_every_order_for_wq_3_aq_2() {
    let kinds = [Member::Ok, Member::NoSuch, Member::Unknown, Member::Silent];
    let mut orders = Vec::new();
    permutations(&mut vec![0, 1, 2], 0, &mut orders);
    let (mut existing, mut ended, mut doubted) = (0, 0, 0);
    for code in 0..64 {
        let said = [kinds[code % 4], kinds[code / 4 % 4], kinds[code / 16]];
        for order in &orders {
            let mut recovery = Recovery::fenced(&three(), &[], None);
            for &member in order {
                let bookie = ["b1", "b2", "b3"][member];
                let answer = match said[member] {
                    Member::Ok => found(0),
                    Member::NoSuch => NO_ENTRY,
                    Member::Unknown => Err(BookieError::Io),
                    Member::Silent => continue,
                };
                if recovery.outcome.is_none() && recovery.asked.is_none() {
                    recovery.answer(bookie, exists(0), answer);
                }
            }
            let is_open = recovery.outcome.is_none() && recovery.asked.is_none();
            let count = |kind| said.iter().filter(|said| **said == kind).count();
            if is_open && !recovery.is_sent("b1", write_back(0)) {
                assert_eq!(count(Member::Ok), 0);
                recovery.wake();
                assert_eq!(recovery.now, at(5), "a silent member costs one request timeout");
            }
            if count(Member::Ok) > 0 {
                existing += 1;
                assert!(recovery.is_sent("b1", write_back(0)), "{said:?} {order:?}");
            } else if count(Member::NoSuch) >= 2 {
                ended += 1;
                assert_eq!(recovery.closed(), LedgerEnd::default(), "{said:?} {order:?}");
            } else {
                doubted += 1;
                let Error::Doubt { entry: EntryId(0), answers, .. } = recovery.error() else {
                    panic!("{said:?} {order:?} is doubt, not {:?}", recovery.outcome);
                };
                assert_eq!(answers.0.len(), count(Member::Unknown) + count(Member::Silent));
            }
        }
    }
    assert_eq!((existing, ended, doubted), (37 * 6, 7 * 6, 20 * 6));
}

/// Rule 10: the reads of the end fence as well.
#[test]
fn c3_every_recovery_read_fences() {
    let mut recovery = Recovery::ahead(3, &three(), &[]);
    recovery.answer("b1", Question::Fence, lac(None));
    recovery.answer("b2", Question::Fence, lac(None));
    for id in 0..3 {
        for bookie in ["b1", "b2", "b3"] {
            let read = RequestBody::Read { entry: EntryId(id), fence: Some(key()) };
            assert_eq!(*recovery.request(bookie, exists(id)), read);
        }
    }
}

/// Rule 10, with every size.
#[test]
fn absence_takes_so_many_negatives_that_no_ack_quorum_is_left() {
    let names = ["b1", "b2", "b3", "b4", "b5"];
    for write in 1..=5 {
        for ack in 1..=write {
            for negatives in 0..=write {
                let record = open(write, ack, &[(0, &names[..write].join(" "))]);
                let mut recovery = Recovery::fenced(&record, &[], None);
                for (at, bookie) in names[..write].iter().enumerate() {
                    let unknown = Err(BookieError::TooManyRequests);
                    let answer = if at < negatives { NO_ENTRY } else { unknown };
                    recovery.answer(bookie, exists(0), answer);
                }
                // Whoever is unknown may hold it: AQ of them may have acknowledged it.
                if write - negatives < ack {
                    assert_eq!(recovery.closed(), LedgerEnd::default());
                } else {
                    assert!(matches!(recovery.error(), Error::Doubt { .. }));
                }
            }
        }
    }
}

#[test]
fn a_bookie_that_stands_twice_in_an_old_record_counts_once() {
    let mut recovery = Recovery::fenced(&open(3, 2, &[(0, "b1 b1 b2")]), &[], None);
    recovery.answer("b1", exists(0), NO_ENTRY);
    recovery.answer("b1", exists(0), NO_ENTRY);
    recovery.answer("b2", exists(0), Err(BookieError::Unreachable));
    assert!(matches!(recovery.error(), Error::Doubt { .. }));
}

/// A5, C7: what one has lost another may have kept.
#[test]
fn a5_c7_a_copy_counts_whoever_has_it_and_however_many_have_not() {
    let mut recovery = Recovery::fenced(&three(), &[], None);
    recovery.answer("b3", exists(0), NO_LEDGER);
    recovery.answer("b2", exists(0), NO_ENTRY);
    assert_eq!(recovery.asked, None, "b1 may still answer");
    recovery.answer("b1", exists(0), found(0));
    assert_eq!(recovery.asked_for(write_back(0)), ["b1", "b2", "b3"]);
    // Also from a life that is not the recorded one: a digest cannot be invented.
    let record = three().with_instances([("b1".into(), Instance(1))]);
    let mut recovery = Recovery::fenced(&record, &[], None);
    recovery.answer_as(Some(2), "b1", exists(0), found(0));
    assert!(recovery.is_sent("b1", write_back(0)));
}

#[test]
fn a_copy_that_is_damaged_or_of_another_entry_is_doubt_and_not_a_negative() {
    let mut recovery = Recovery::fenced(&three(), &[], None);
    recovery.answer("b1", exists(0), found(1));
    recovery.answer("b2", exists(0), lac(None));
    recovery.answer("b3", exists(0), NO_ENTRY);
    let Error::Doubt { answers, .. } = recovery.error() else {
        panic!("one negative is not enough");
    };
    assert_eq!(named(answers), ["b1", "b2"]);
}

/// C14, and C8: lost packets.
#[test]
fn c14_a_hanging_bookie_does_not_hold_up_recovery() {
    let mut recovery = Recovery::of(&three(), &[]);
    recovery.answer("b2", Question::Fence, lac(None));
    recovery.answer("b3", Question::Fence, lac(None));
    recovery.answer("b2", exists(0), NO_ENTRY);
    recovery.answer("b3", exists(0), NO_ENTRY);
    assert_eq!(recovery.asked, None, "b1 may still answer");
    assert_eq!(recovery.machine.wake_at(), Some(at(5)), "one request timeout in all");
    recovery.wake();
    assert_eq!(recovery.closed(), LedgerEnd::default());
}

#[test]
fn a_bookie_that_hangs_does_not_slow_down_what_others_have() {
    let mut recovery = Recovery::of(&three(), &[]);
    recovery.answer("b2", Question::Fence, lac(None));
    recovery.answer("b3", Question::Fence, lac(None));
    for id in 0..4 {
        recovery.answer("b2", exists(id), found(id));
        recovery.answer("b2", write_back(id), ADDED);
        recovery.answer("b3", write_back(id), ADDED);
    }
    let progress = Progress { last_entry: Some(EntryId(3)), entries_written_back: 4 };
    assert_eq!(recovery.machine.progress(), progress);
    assert_eq!(recovery.now, at(0));
}

#[test]
fn an_answer_that_comes_after_its_time_still_counts_while_the_entry_is_undecided() {
    let mut recovery = Recovery::ahead(2, &three(), &[]);
    recovery.answer_all(Question::Fence, &lac(None));
    recovery.now = at(1);
    recovery.answer("b1", exists(0), found(0));
    recovery.answer("b1", write_back(0), ADDED);
    recovery.answer("b2", write_back(0), ADDED);
    assert!(recovery.is_sent("b1", exists(2)), "sent later than the read of entry 1");
    for bookie in ["b1", "b2"] {
        recovery.answer(bookie, exists(1), Err(BookieError::Io));
    }
    recovery.answer("b3", exists(1), found(1));
    assert!(recovery.is_sent("b3", write_back(1)));
}

/// The answers of the pipelined reads come in any order, decisions do not.
#[test]
fn reads_ahead_are_decided_in_order_and_nothing_behind_the_end_is_written_back() {
    let mut orders = Vec::new();
    permutations(&mut vec![0, 1, 2, 3], 0, &mut orders);
    for order in orders {
        let mut recovery = Recovery::ahead(4, &three(), &[]);
        recovery.answer_all(Question::Fence, &lac(None));
        // Entry 2 was never acknowledged, but somebody has entry 3.
        for id in order.into_iter().map(|id| id as u64) {
            for bookie in ["b1", "b2", "b3"] {
                if recovery.is_sent(bookie, exists(id)) {
                    let answer = if id == 2 { NO_ENTRY } else { found(id) };
                    recovery.answer(bookie, exists(id), answer);
                }
            }
        }
        assert!(recovery.asked_for(write_back(3)).is_empty());
        recovery.answer_all(write_back(0), &ADDED);
        assert_eq!(recovery.asked, None, "entry 1 has no ack quorum yet");
        recovery.answer_all(write_back(1), &ADDED);
        assert_eq!(recovery.closed(), LedgerEnd { last_entry: Some(EntryId(1)), length: 20 });
    }
}

#[test]
fn no_more_entries_are_in_flight_than_allowed() {
    let mut recovery = Recovery::ahead(2, &three(), &[]);
    recovery.answer_all(Question::Fence, &lac(None));
    recovery.answer("b1", exists(0), found(0));
    assert!(recovery.is_sent("b1", exists(1)));
    assert!(recovery.asked_for(exists(2)).is_empty(), "entry 0 is on its way back");
    recovery.answer_all(write_back(0), &ADDED);
    assert_eq!(recovery.asked_for(exists(2)), ["b1", "b2", "b3"]);
}

/// C9, C10: private replacements never make an entry look absent.
#[test]
fn c9_c10_reads_stay_with_the_frozen_ensemble_after_a_replacement() {
    let mut recovery = Recovery::fenced(&three(), &[registered("b4", 1)], None);
    recovery.answer("b1", exists(0), found(0));
    recovery.answer("b1", write_back(0), ADDED);
    recovery.answer("b2", write_back(0), Err(BookieError::Io));
    recovery.answer("b4", write_back(0), ADDED);
    assert_eq!(recovery.asked_for(exists(1)), ["b1", "b2", "b3"]);
    recovery.answer("b1", exists(1), NO_ENTRY);
    recovery.answer("b3", exists(1), NO_ENTRY);
    assert_eq!(recovery.asked, None, "b2 may have entry 1");
    recovery.answer("b2", exists(1), found(1));
    assert_eq!(recovery.asked_for(write_back(1)), ["b1", "b3", "b4"]);
}

/// X18.
#[test]
fn x18_whoever_has_not_answered_a_fence_is_fenced_once_more_after_the_decision() {
    let mut recovery = Recovery::of(&three(), &[]);
    recovery.answer("b1", Question::Fence, lac(None));
    recovery.answer("b2", Question::Fence, lac(None));
    recovery.answer("b3", Question::Fence, Err(BookieError::Unreachable));
    recovery.answer("b1", exists(0), NO_ENTRY);
    recovery.answer("b2", exists(0), NO_ENTRY);
    recovery.answer("b3", exists(0), Err(BookieError::Unreachable));
    assert_eq!(recovery.asked_for(Question::Fence), ["b3"]);
    let fence = RequestBody::ReadLac { fence: Some(key()) };
    assert_eq!(*recovery.request("b3", Question::Fence), fence);
    assert_eq!(recovery.closed(), LedgerEnd::default(), "nobody waits for it");
}

#[test]
fn a_doubt_leaves_the_ledger_in_recovery_and_the_next_attempt_finds_the_entry() {
    let mut recovery = Recovery::fenced(&three(), &[], None);
    recovery.answer("b1", exists(0), Err(BookieError::Unreachable));
    recovery.answer("b2", exists(0), Err(BookieError::Unreachable));
    recovery.answer("b3", exists(0), NO_ENTRY);
    assert!(matches!(recovery.error(), Error::Doubt { entry: EntryId(0), .. }));
    assert_eq!(recovery.asked, None, "the record is left alone");
    assert_eq!(recovery.error().advice(), crate::Advice::Retry);
    let mut again = Recovery::fenced(&three(), &[], None);
    again.answer("b1", exists(0), found(0));
    assert!(again.is_sent("b3", write_back(0)));
}

#[test]
fn recoveries_that_differ_by_the_time_of_day_alone_are_equal_after_renumbering() {
    let run = |start| {
        let mut recovery = Recovery::new(2, &[]);
        recovery.now = at(start);
        recovery.find(&three().in_recovery().expect("an open ledger"), VERSION);
        recovery.answer("b1", Question::Fence, lac(None));
        recovery.answer("b2", Question::Fence, lac(None));
        recovery.now = at(start + 1);
        recovery.answer("b1", exists(0), found(0));
        recovery.machine.renumber(recovery.now);
        recovery.machine
    };
    assert_eq!(run(0), run(1000));
}
