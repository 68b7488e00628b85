//! Writing back what was found, in ensembles of the recovery's own.

use super::*;

/// Three bookies, none of which is known to have confirmed anything, and `count` entries found on b1.
fn writing(count: u64, record: &LedgerMetadata, registry: &[RegisteredBookie]) -> Recovery {
    let mut recovery = Recovery::ahead(count as usize, record, registry);
    recovery.answer_all(Question::Fence, &lac(None));
    for id in 0..count {
        let reader = recovery.asked_for(exists(id))[0].to_owned();
        recovery.answer(&reader, exists(id), found(id));
    }
    recovery
}

/// Answers that nobody has `id`, which is then the end.
fn end_at(recovery: &mut Recovery, id: u64) {
    recovery.answer_all(exists(id), &NO_ENTRY);
}

/// The ensembles of the record that is to be written.
fn ensembles(recovery: &Recovery) -> Vec<(u64, Vec<BookieId>)> {
    let record = recovery.written();
    record.ensembles().iter().map(|(key, members)| (key.get(), members.clone())).collect()
}

/// Rule 6. A repair has rebuilt the header with a LAC above the entry itself.
#[test]
fn a_write_back_forwards_the_found_bytes_unchanged() {
    let repaired = Entry::seal(LEDGER, EntryId(0), Some(EntryId(5)), 10, "payload 00".into());
    let mut recovery = Recovery::fenced(&three(), &[], None);
    recovery.answer("b2", exists(0), Ok(ResponseBody::Entry(repaired.clone())));
    for bookie in ["b1", "b2", "b3"] {
        let kind = AddKind::Recovery;
        let add = RequestBody::Add { entry: repaired.clone(), key: key(), kind };
        assert_eq!(*recovery.request(bookie, write_back(0)), add);
    }
}

/// Rule 9.
#[test]
fn a_refusal_while_a_second_copy_is_on_its_way_is_no_failure() {
    let mut recovery = writing(1, &three(), &[]);
    recovery.answer("b1", write_back(0), ADDED);
    recovery.answer("b3", write_back(0), Err(BookieError::Io));
    assert_eq!(recovery.outcome, None);
    recovery.answer("b2", write_back(0), ADDED);
    end_at(&mut recovery, 1);
    assert_eq!(ensembles(&recovery), [(0, members("b1 b2 b3"))]);
    assert_eq!(recovery.closed(), LedgerEnd { last_entry: Some(EntryId(0)), length: 10 });
}

/// BK-150.
#[test]
fn c12_an_entry_that_cannot_get_its_copies_fails_the_recovery_and_cuts_nothing() {
    let mut recovery = writing(1, &three(), &[]);
    recovery.answer("b1", write_back(0), ADDED);
    recovery.answer("b2", write_back(0), Err(BookieError::Unreachable));
    recovery.answer("b3", write_back(0), Err(BookieError::Io));
    let Error::WriteBack { entry: EntryId(0), answers, .. } = recovery.error() else {
        panic!("one copy of two");
    };
    assert_eq!(named(answers), ["b2", "b3"]);
    assert_eq!(recovery.asked, None, "the record is left in recovery");
}

#[test]
fn a_silent_bookie_has_failed_after_the_request_timeout() {
    let mut recovery = writing(1, &three(), &[registered("b4", 1)]);
    recovery.answer("b1", write_back(0), ADDED);
    recovery.now = at(2);
    recovery.answer("b2", write_back(0), Err(BookieError::Io));
    assert_eq!(recovery.asked_for(write_back(0)), ["b3", "b4"]);
    assert_eq!(recovery.machine.wake_at(), Some(at(5)), "b3's");
    recovery.wake();
    assert_eq!(recovery.machine.wake_at(), Some(at(7)), "b4's; there is nobody for b3");
    recovery.wake();
    let Error::WriteBack { answers, .. } = recovery.error() else {
        panic!("one copy of two");
    };
    assert_eq!(named(answers), ["b3", "b4"]);
}

#[test]
fn a_failed_bookie_is_replaced_by_the_first_suitable_one_in_the_order_given() {
    let read_only = RegisteredBookie { mode: Mode::ReadOnly, ..registered("b5", 1) };
    let record = three().with_instances([("b6".into(), Instance(1))]);
    // A member, one that takes no new entries, one that was wiped since it was a member; then the one.
    let registry = [
        registered("b1", 1),
        read_only,
        registered("b6", 2),
        registered("b8", 4),
        registered("b7", 1),
    ];
    let mut recovery = writing(1, &record, &registry);
    recovery.answer("b1", write_back(0), ADDED);
    recovery.answer("b2", write_back(0), Err(BookieError::Io));
    assert_eq!(recovery.asked_for(write_back(0)), ["b3", "b8"]);
    recovery.answer("b8", write_back(0), ADDED);
    end_at(&mut recovery, 1);
    assert_eq!(ensembles(&recovery), [(0, members("b1 b8 b3"))]);
    let written = recovery.written();
    assert_eq!(written.instance_of(&"b8".into()), Some(Instance(4)), "it joined in this life");
    assert_eq!(written.instance_of(&"b7".into()), None);
}

#[test]
fn a_bookie_that_failed_replaces_nobody_and_late_answers_of_it_are_dropped() {
    let mut recovery = writing(2, &three(), &[registered("b4", 1), registered("b2", 1)]);
    recovery.answer("b2", write_back(0), Err(BookieError::Timeout));
    assert!(recovery.is_sent("b4", write_back(0)));
    recovery.answer("b3", write_back(0), Err(BookieError::Io));
    assert_eq!(recovery.asked_for(write_back(0)), ["b1", "b4"], "b2 is not asked in b3's place");
    // b2 has stored entry 1 after all; b4 speaks for the slot now.
    recovery.answer("b1", write_back(1), ADDED);
    recovery.answer("b2", write_back(1), ADDED);
    recovery.answer("b1", write_back(0), ADDED);
    recovery.answer("b4", write_back(0), ADDED);
    let recovered = |recovery: &Recovery| recovery.machine.progress().entries_written_back;
    assert_eq!(recovered(&recovery), 1);
    recovery.answer("b4", write_back(1), ADDED);
    assert_eq!(recovered(&recovery), 2);
}

/// A21: a bookie remembers "fenced and deleted" of a copy that was moved away from it.
#[test]
fn a21_a_fence_that_answers_a_write_back_is_that_bookies_failure() {
    let mut recovery = writing(1, &three(), &[registered("b4", 1)]);
    recovery.answer("b1", write_back(0), ADDED);
    recovery.answer("b2", write_back(0), Err(BookieError::Fenced));
    assert_eq!(recovery.outcome, None);
    assert_eq!(recovery.asked_for(write_back(0)), ["b3", "b4"]);
}

/// Rule 7.
#[test]
fn a_copy_on_another_life_of_a_member_does_not_count() {
    let record = three().with_instances([("b2".into(), Instance(1))]);
    let mut recovery = writing(1, &record, &[registered("b4", 1)]);
    recovery.answer("b1", write_back(0), ADDED);
    recovery.answer_as(Some(2), "b2", write_back(0), ADDED);
    assert_eq!(recovery.machine.progress().entries_written_back, 0);
    assert_eq!(recovery.asked_for(write_back(0)), ["b3", "b4"]);
    recovery.answer_as(Some(2), "b4", write_back(0), ADDED);
    assert_eq!(recovery.machine.progress().entries_written_back, 0, "b4 joined in its first life");
    recovery.answer("b3", write_back(0), ADDED);
    assert_eq!(recovery.machine.progress().entries_written_back, 1);
}

#[test]
fn a_bookie_that_is_registered_later_takes_the_place_of_a_failed_one() {
    let mut recovery = writing(1, &three(), &[]);
    recovery.answer("b2", write_back(0), Err(BookieError::Io));
    assert_eq!(recovery.asked_for(write_back(0)), ["b1", "b3"]);
    recovery.handle(Input::Registry([registered("b4", 1)].into()));
    assert_eq!(recovery.asked_for(write_back(0)), ["b1", "b3", "b4"]);
    recovery.answer("b4", write_back(0), ADDED);
    recovery.answer("b1", write_back(0), ADDED);
    end_at(&mut recovery, 1);
    assert_eq!(ensembles(&recovery), [(0, members("b1 b4 b3"))]);
}

/// X23, which is A1 in a recovery: E 4, WQ 2, AQ 2. Entry 1 has its copies on b2 and b3 and waits for entry 0; then b3
/// is replaced. Its copy there must not count any more when entry 0 gets its own.
#[test]
fn x23_a_replacement_switches_all_pending_entries_before_any_is_confirmed() {
    let record = open(2, 2, &[(0, "b1 b2 b3 b4")]);
    let mut recovery = writing(3, &record, &[registered("b5", 1)]);
    recovery.answer("b2", write_back(1), ADDED);
    recovery.answer("b3", write_back(1), ADDED);
    recovery.answer("b2", write_back(0), ADDED);
    recovery.answer("b3", write_back(2), Err(BookieError::Io));
    assert_eq!(recovery.asked_for(write_back(1)), ["b5"]);
    assert_eq!(recovery.asked_for(write_back(2)), ["b4", "b5"]);
    recovery.answer("b1", write_back(0), ADDED);
    assert_eq!(recovery.machine.progress().last_entry, Some(EntryId(0)));
    recovery.answer("b5", write_back(1), ADDED);
    assert_eq!(recovery.machine.progress().last_entry, Some(EntryId(1)));
    recovery.answer_all(write_back(2), &ADDED);
    end_at(&mut recovery, 3);
    assert_eq!(ensembles(&recovery), [(0, members("b1 b2 b5 b4"))]);
}

/// An acknowledgement and a failure that arrive in one batch: the key is behind what is confirmed, wherever that is.
#[test]
fn a_replacement_after_confirmed_entries_starts_behind_them() {
    let mut recovery = writing(2, &three(), &[registered("b4", 1)]);
    recovery.answer_all(write_back(0), &ADDED);
    recovery.answer("b1", write_back(1), ADDED);
    recovery.answer("b2", write_back(1), Err(BookieError::ReadOnly));
    recovery.answer("b4", write_back(1), ADDED);
    end_at(&mut recovery, 2);
    assert_eq!(ensembles(&recovery), [(0, members("b1 b2 b3")), (1, members("b1 b4 b3"))]);
}

#[test]
fn a_replacement_of_a_replacement_under_the_same_key_leaves_one_ensemble() {
    let mut recovery = writing(1, &three(), &[registered("b4", 1), registered("b5", 1)]);
    recovery.answer("b2", write_back(0), Err(BookieError::Io));
    recovery.answer("b4", write_back(0), Err(BookieError::Unreachable));
    recovery.answer("b5", write_back(0), ADDED);
    recovery.answer("b3", write_back(0), ADDED);
    end_at(&mut recovery, 1);
    assert_eq!(ensembles(&recovery), [(0, members("b1 b5 b3"))]);
}
