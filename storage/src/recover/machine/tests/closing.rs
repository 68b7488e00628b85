//! The length and the closing compare-and-set.

use super::*;

/// A recovery that has found nothing behind entry `confirmed` and asks for the record to look for its length.
fn nothing_behind(record: &LedgerMetadata, confirmed: u64) -> Recovery {
    let mut recovery = Recovery::fenced(record, &[], Some(confirmed));
    recovery.answer_all(exists(confirmed + 1), &NO_ENTRY);
    recovery
}

fn in_recovery(record: &LedgerMetadata) -> LedgerMetadata {
    record.in_recovery().expect("not closed")
}

/// A recovery of three bookies that is about to close the ledger behind entry 0.
fn about_to_close() -> Recovery {
    let mut recovery = Recovery::fenced(&three(), &[], None);
    recovery.answer("b1", exists(0), found(0));
    recovery.answer_all(write_back(0), &ADDED);
    recovery.answer_all(exists(1), &NO_ENTRY);
    recovery
}

const END: LedgerEnd = LedgerEnd { last_entry: Some(EntryId(0)), length: 10 };

/// X4, the zero: the last ensemble is empty, and nobody asked knows a length.
#[test]
fn x4_an_empty_last_fragment_does_not_make_the_length_zero() {
    let record = open(3, 2, &[(0, "b1 b2 b3"), (320, "b4 b5 b6")]);
    let mut recovery = Recovery::fenced(&record, &[], None);
    recovery.answer_all(exists(320), &NO_ENTRY);
    recovery.find(&in_recovery(&record), Version(4));
    assert_eq!(recovery.asked_for(length_of(319)), ["b1", "b2", "b3"]);
    let read = RequestBody::Read { entry: EntryId(319), fence: None };
    assert_eq!(
        *recovery.request("b3", length_of(319)),
        read,
        "it decides nothing and fences nobody"
    );
    recovery.answer("b2", length_of(319), found(319));
    assert_eq!(recovery.closed(), LedgerEnd { last_entry: Some(EntryId(319)), length: 3200 });
}

/// X4, too long: the answer to the LAC read came with an entry that is cut.
#[test]
fn x4_an_entry_behind_the_end_does_not_lend_its_length() {
    let mut recovery = Recovery::of(&three(), &[]);
    recovery.answer("b1", Question::Fence, lac(Some(4)));
    recovery.answer("b2", Question::Fence, lac(Some(3)));
    recovery.answer("b1", exists(5), Err(BookieError::Unreachable));
    recovery.answer("b2", exists(5), NO_ENTRY);
    recovery.answer("b3", exists(5), NO_ENTRY);
    recovery.find(&in_recovery(&three()), VERSION);
    recovery.answer("b3", length_of(4), found(4));
    assert_eq!(recovery.closed(), LedgerEnd { last_entry: Some(EntryId(4)), length: 50 });
}

/// Rule 11.
#[test]
fn a_length_is_looked_for_where_the_newest_record_says() {
    let record = open(3, 2, &[(0, "b1 b2 b3"), (5, "b4 b5 b6")]);
    let moved = open(3, 2, &[(0, "b7 b2 b3"), (5, "b4 b5 b6")]);
    let mut recovery = Recovery::fenced(&record, &[], None);
    recovery.answer_all(exists(5), &NO_ENTRY);
    recovery.find(&in_recovery(&record), VERSION);
    recovery.answer_all(length_of(4), &NO_LEDGER);
    recovery.find(&in_recovery(&moved), Version(8));
    assert_eq!(recovery.asked_for(length_of(4)), ["b2", "b3", "b7"]);
    recovery.answer("b7", length_of(4), found(4));
    let Some(RecordRequest::Write { record, expected: Version(8) }) = &recovery.asked else {
        panic!("the record that was read last is replaced");
    };
    assert_eq!(record.ensemble_of(EntryId(0)), members("b7 b2 b3"), "a repair is not undone");
    assert_eq!(recovery.closed(), LedgerEnd { last_entry: Some(EntryId(4)), length: 50 });
}

#[test]
fn a_last_entry_that_nobody_can_read_does_not_keep_the_ledger_open() {
    let mut recovery = nothing_behind(&three(), 4);
    for attempt in 0..LENGTH_ATTEMPTS_MAX {
        recovery.find(&in_recovery(&three()), VERSION);
        recovery.answer("b1", length_of(4), Err(BookieError::Io));
        recovery.answer("b2", length_of(4), found(5));
        recovery.wake();
        assert_eq!(recovery.now, at(5 * u64::from(attempt + 1)));
        recovery.sent.clear();
    }
    assert_eq!(recovery.closed(), LedgerEnd { last_entry: Some(EntryId(4)), length: 0 });
    let Some(Ok(recovered)) = &recovery.outcome else {
        panic!("it is closed");
    };
    let length = LengthIs::LowerBound;
    assert_eq!(recovered.closed_by, ClosedBy::ThisRecovery { length });
    assert_eq!(recovered.record.length_is(), length, "the record says so to whoever reads it");
}

#[test]
fn a_repair_during_the_recovery_is_merged_into_the_closing_record() {
    let record = open(3, 2, &[(0, "b1 b2 b3"), (1, "b1 b2 b4")]);
    let moved = open(3, 2, &[(0, "b9 b2 b3"), (1, "b1 b2 b4")]);
    let mut recovery = Recovery::fenced(&record, &[registered("b5", 1)], None);
    recovery.answer("b1", exists(1), found(1));
    recovery.answer("b4", write_back(1), Err(BookieError::Io));
    recovery.answer_all(write_back(1), &ADDED);
    recovery.answer_all(exists(2), &NO_ENTRY);
    recovery.record(RecordAnswer::Conflict);
    recovery.find(&in_recovery(&moved), Version(6));
    let written = recovery.written();
    assert_eq!(written.ensemble_of(EntryId(0)), members("b9 b2 b3"));
    assert_eq!(written.ensemble_of(EntryId(1)), members("b1 b2 b5"));
    assert_eq!(recovery.closed(), LedgerEnd { last_entry: Some(EntryId(1)), length: 20 });
}

#[test]
fn the_first_close_wins_and_is_adopted() {
    let elsewhere = three().closed(None, 0).expect("an open ledger");
    for answer in [RecordAnswer::Conflict, RecordAnswer::Unknown("lost".into())] {
        let mut recovery = about_to_close();
        assert_eq!(recovery.written().state(), LedgerState::Closed(END));
        recovery.record(answer);
        recovery.find(&elsewhere, Version(8));
        let record = Arc::new(elsewhere.clone());
        let adopted = Recovered { record, version: Version(8), closed_by: ClosedBy::Another };
        assert_eq!(recovery.outcome, Some(Ok(adopted)));
    }
    // Also when it is met while the length is looked for.
    let mut recovery = nothing_behind(&three(), 4);
    recovery.find(&elsewhere, Version(8));
    assert!(matches!(&recovery.outcome, Some(Ok(found)) if *found.record == elsewhere));
}

#[test]
fn a_close_whose_answer_was_lost_is_recognised_or_repeated_with_the_same_end() {
    let mut recovery = about_to_close();
    let ours = recovery.written();
    recovery.record(RecordAnswer::Unknown("lost".into()));
    recovery.find(&ours, Version(9));
    assert!(matches!(&recovery.outcome, Some(Ok(found)) if *found.record == ours));

    let mut recovery = about_to_close();
    recovery.record(RecordAnswer::Unknown("lost".into()));
    recovery.find(&in_recovery(&three()), VERSION);
    assert_eq!(recovery.written(), ours);
    assert_eq!(recovery.closed(), END);
}

#[test]
fn a_record_that_has_gone_or_left_recovery_ends_it_without_a_write() {
    let mut recovery = about_to_close();
    recovery.record(RecordAnswer::Missing);
    recovery.wait_to_ask();
    assert_eq!(recovery.asked, Some(RecordRequest::Read), "it was there a moment ago");
    recovery.record(RecordAnswer::Missing);
    assert_eq!(*recovery.error(), Error::NoSuchLedger { ledger: LEDGER });
    let grown = open(3, 2, &[(0, "b1 b2 b3"), (5, "b1 b2 b4")]);
    for strange in [three(), in_recovery(&grown)] {
        let mut recovery = about_to_close();
        recovery.record(RecordAnswer::Conflict);
        recovery.find(&strange, Version(8));
        assert!(matches!(recovery.error(), Error::Tampered { .. }), "{:?}", recovery.outcome);
        assert_eq!(recovery.asked, None);
    }
}

/// D5.
#[test]
fn d5_a_store_that_fails_at_the_end_is_said_once_and_nothing_is_asked_after() {
    let mut recovery = about_to_close();
    while recovery.outcome.is_none() {
        recovery.wait_to_ask();
        recovery.record(RecordAnswer::Unknown("gone".into()));
    }
    assert!(matches!(recovery.error(), Error::Metadata { .. }));
    assert_eq!((recovery.machine.wake_at(), &recovery.asked), (None, &None));
    recovery.machine.handle(at(99), Input::Record(RecordAnswer::Written(Version(9))));
    recovery.machine.handle(at(99), Input::Wake);
    assert_eq!(recovery.machine.poll_output(), None);
}
