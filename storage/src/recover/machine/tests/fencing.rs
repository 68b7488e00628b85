//! Putting the record in recovery, and fencing.

use super::*;

#[test]
fn an_open_ledger_is_put_in_recovery_before_any_bookie_is_asked() {
    let mut recovery = Recovery::new(1, &[]);
    recovery.find(&three(), VERSION);
    assert_eq!(recovery.sent, []);
    let marked = three().in_recovery().expect("an open ledger");
    let write = RecordRequest::Write { record: Arc::new(marked), expected: VERSION };
    assert_eq!(recovery.asked, Some(write));
    recovery.record(RecordAnswer::Written(Version(4)));
    assert_eq!(recovery.asked_for(Question::Fence), ["b1", "b2", "b3"]);
}

#[test]
fn a_dead_recoverer_blocks_nobody() {
    let mut recovery = Recovery::new(1, &[]);
    recovery.find(&three().in_recovery().expect("an open ledger"), VERSION);
    assert_eq!(recovery.asked, None, "the record is in recovery already");
    assert_eq!(recovery.asked_for(Question::Fence), ["b1", "b2", "b3"]);
}

#[test]
fn a_closed_ledger_is_adopted_without_asking_a_bookie() {
    let closed = three().closed(Some(EntryId(4)), 50).expect("an open ledger");
    let mut recovery = Recovery::new(1, &[]);
    recovery.find(&closed, VERSION);
    let record = Arc::new(closed);
    let adopted = Recovered { record, version: VERSION, closed_by: ClosedBy::Another };
    assert_eq!((recovery.outcome, recovery.sent), (Some(Ok(adopted)), vec![]));
}

#[test]
fn another_password_or_an_unusable_record_ends_it_before_anything_is_changed() {
    let strange = LedgerMetadata::created(
        three().sizes(),
        Password::from("other"),
        members("b1 b2 b3"),
        7,
        BTreeMap::new(),
    );
    let mut recovery = Recovery::new(1, &[]);
    recovery.find(&strange.expect("valid"), VERSION);
    assert_eq!(*recovery.error(), Error::WrongPassword { ledger: LEDGER });
    let mut recovery = Recovery::new(1, &[]);
    recovery.record(RecordAnswer::Unusable("a new format".into()));
    let reason = "a new format".into();
    assert_eq!(*recovery.error(), Error::Unusable { ledger: LEDGER, reason });
}

/// A store may answer with what was there earlier, also with nothing.
#[test]
fn that_there_is_no_record_is_believed_at_the_second_answer_in_a_row() {
    let mut recovery = Recovery::new(1, &[]);
    recovery.record(RecordAnswer::Missing);
    assert_eq!((&recovery.outcome, &recovery.asked), (&None, &None), "a pause");
    recovery.wait_to_ask();
    recovery.record(RecordAnswer::Missing);
    assert_eq!(*recovery.error(), Error::NoSuchLedger { ledger: LEDGER });

    let mut recovery = Recovery::new(1, &[]);
    recovery.record(RecordAnswer::Missing);
    recovery.wait_to_ask();
    recovery.find(&three(), VERSION);
    recovery.record(RecordAnswer::Missing);
    recovery.wait_to_ask();
    recovery.find(&three().in_recovery().expect("an open ledger"), Version(4));
    assert_eq!(recovery.asked_for(Question::Fence), ["b1", "b2", "b3"]);
    assert_eq!(recovery.outcome, None);
}

#[test]
fn a_mark_with_a_conflict_or_a_lost_answer_is_decided_by_reading() {
    let in_recovery = three().in_recovery().expect("an open ledger");
    for answer in [RecordAnswer::Conflict, RecordAnswer::Unknown("lost".into())] {
        let mut recovery = Recovery::new(1, &[]);
        recovery.find(&three(), VERSION);
        recovery.record(answer.clone());
        recovery.find(&three(), Version(4));
        assert_eq!(recovery.written(), in_recovery, "it is still open: again");
        recovery.record(answer);
        assert_eq!(recovery.asked, None, "not in a loop");
        recovery.wait_to_ask();
        recovery.find(&in_recovery, Version(5));
        assert_eq!(recovery.asked_for(Question::Fence).len(), 3, "somebody has done it");
    }
}

#[test]
fn a_store_that_never_answers_ends_it_with_an_unknown_outcome() {
    let mut recovery = Recovery::new(1, &[]);
    let reason: Arc<str> = "no answer".into();
    let mut questions = 0;
    while recovery.outcome.is_none() {
        recovery.wait_to_ask();
        recovery.record(RecordAnswer::Unknown(reason.clone()));
        questions += 1;
    }
    let seconds = recovery.now.as_nanos() / 1_000_000_000;
    assert!((5..20).contains(&seconds), "the store is given {seconds} s to come back");
    assert_eq!(*recovery.error(), Error::Metadata { ledger: LEDGER, reason });
    assert_eq!(questions, u32::from(RECORD_ATTEMPTS_MAX) + 1);
}

#[test]
fn c21_every_fence_shows_the_key_and_a_refused_one_ends_it() {
    let mut recovery = Recovery::of(&three(), &[]);
    for bookie in ["b1", "b2", "b3"] {
        let fence = RequestBody::ReadLac { fence: Some(key()) };
        assert_eq!(*recovery.request(bookie, Question::Fence), fence);
    }
    recovery.answer("b2", Question::Fence, Err(BookieError::Unauthorized));
    let refused = Error::Unauthorized { ledger: LEDGER, bookie: "b2".into() };
    assert_eq!(*recovery.error(), refused);
}

#[test]
fn c13_it_goes_on_at_coverage_and_no_earlier() {
    let mut recovery = Recovery::of(&three(), &[]);
    recovery.answer("b3", Question::Fence, lac(None));
    assert_eq!(recovery.asked_for(exists(0)), [""; 0], "two of three may have acknowledged");
    recovery.answer("b1", Question::Fence, NO_LEDGER);
    assert_eq!(recovery.asked_for(exists(0)), ["b1", "b2", "b3"]);
    // E 4, WQ 2, AQ 2: one of each two neighbours.
    let mut recovery = Recovery::of(&open(2, 2, &[(0, "b1 b2 b3 b4")]), &[]);
    recovery.answer("b1", Question::Fence, NO_LEDGER);
    recovery.answer("b2", Question::Fence, NO_LEDGER);
    assert!(recovery.asked_for(exists(0)).is_empty(), "b3 and b4 share entries");
    recovery.answer("b3", Question::Fence, NO_LEDGER);
    assert_eq!(recovery.asked_for(exists(0)), ["b1", "b2"]);
}

#[test]
fn c13_errors_are_no_answers_and_too_many_of_them_are_named() {
    let mut recovery = Recovery::of(&three(), &[]);
    recovery.answer("b1", Question::Fence, Err(BookieError::Io));
    assert_eq!(recovery.outcome, None, "two may still answer");
    recovery.answer("b3", Question::Fence, Err(BookieError::UnknownLedgerState));
    let Error::Fencing { answers, .. } = recovery.error() else {
        panic!("fencing failed, not {:?}", recovery.error());
    };
    assert_eq!(named(answers), ["b1", "b3"]);
    assert_eq!(recovery.error().advice(), crate::Advice::Retry);
}

#[test]
fn a17_an_empty_ledger_with_a_bookie_gone_for_ever_is_closed_if_the_quorums_allow() {
    let mut recovery = Recovery::of(&open(2, 2, &[(0, "b1 b2")]), &[]);
    recovery.answer("b1", Question::Fence, Err(BookieError::Unreachable));
    recovery.answer("b2", Question::Fence, NO_LEDGER);
    recovery.answer("b1", exists(0), Err(BookieError::Unreachable));
    recovery.answer("b2", exists(0), NO_ENTRY);
    assert_eq!(recovery.closed(), LedgerEnd::default());

    let mut recovery = Recovery::of(&open(2, 1, &[(0, "b1 b2")]), &[]);
    recovery.answer("b2", Question::Fence, NO_LEDGER);
    recovery.answer("b1", Question::Fence, Err(BookieError::Unreachable));
    let Error::Fencing { answers, .. } = recovery.error() else {
        panic!("b1 alone may have acknowledged anything");
    };
    assert_eq!(named(answers), ["b1"]);
}

#[test]
fn silent_bookies_are_not_waited_for_longer_than_a_request_may_take() {
    let mut recovery = Recovery::of(&three(), &[]);
    recovery.answer("b1", Question::Fence, lac(None));
    assert_eq!(recovery.machine.wake_at(), Some(at(5)));
    recovery.wake();
    let Error::Fencing { answers, .. } = recovery.error() else {
        panic!("b2 and b3 may have acknowledged anything");
    };
    assert_eq!(named(answers), ["b2", "b3"]);
    assert_eq!(recovery.machine.wake_at(), None);
}

#[test]
fn c4_it_begins_behind_whatever_the_record_proves() {
    // Seed 000: entry 14 is confirmed, the bookies know of 13.
    let record = open(3, 2, &[(0, "b1 b2 b3"), (15, "b1 b2 b4")]);
    let mut recovery = Recovery::of(&record, &[]);
    assert_eq!(recovery.asked_for(Question::Fence), ["b1", "b2", "b4"]);
    recovery.answer("b1", Question::Fence, lac(Some(13)));
    recovery.answer("b4", Question::Fence, NO_LEDGER);
    assert_eq!(recovery.asked_for(exists(15)), ["b1", "b2", "b4"]);
    assert!(recovery.asked_for(exists(14)).is_empty(), "no older ensemble is read or rewritten");
}

#[test]
fn the_highest_lac_of_those_who_answered_counts() {
    let mut recovery = Recovery::of(&three(), &[]);
    recovery.answer("b1", Question::Fence, lac(Some(4)));
    recovery.answer("b2", Question::Fence, lac(Some(7)));
    assert_eq!(recovery.asked_for(exists(8)), ["b1", "b2", "b3"]);
}

/// Rule 7.
#[test]
fn a_bookie_in_another_life_than_its_recorded_one_says_nothing() {
    let lives = |instance| [("b1".into(), Instance(instance)), ("b2".into(), Instance(instance))];
    let record = three().with_instances(lives(1));
    // As the transport tells it, or as the registry does.
    for (answered, listed) in [(Some(2), vec![]), (None, vec![registered("b1", 2)])] {
        let mut recovery = Recovery::of(&record, &listed);
        recovery.answer_as(answered, "b1", Question::Fence, NO_LEDGER);
        recovery.answer_as(Some(1), "b2", Question::Fence, NO_LEDGER);
        assert!(recovery.asked_for(exists(0)).is_empty(), "one of three answered in its life");
        recovery.answer_as(Some(9), "b3", Question::Fence, NO_LEDGER);
        assert_eq!(recovery.asked_for(exists(0)).len(), 3, "what is not recorded counts");
        recovery.answer_as(answered, "b1", exists(0), NO_ENTRY);
        recovery.answer_as(Some(1), "b2", exists(0), NO_ENTRY);
        recovery.answer("b3", exists(0), Err(BookieError::Io));
        let Error::Doubt { answers, .. } = recovery.error() else {
            panic!("one negative is not enough");
        };
        assert_eq!(answers.0[0], ("b1".into(), crate::ReplicaError::OtherInstance));
        assert_eq!(named(answers), ["b1", "b3"]);
    }
}

#[test]
fn d8_repeated_late_and_foreign_answers_change_nothing() {
    let mut recovery = Recovery::of(&three(), &[]);
    let fence = |slot| request_id(Question::Fence, Slot::new(slot));
    let mut responses = Vec::new();
    for (bookie, slot) in [("b1", 0), ("b1", 0), ("b1", 1), ("b9", 2), ("b2", 7)] {
        responses.push(Response {
            id: fence(slot),
            bookie: bookie.into(),
            instance: None,
            result: NO_LEDGER,
        });
    }
    recovery.handle(Input::Responses(&mut responses));
    assert!(recovery.asked_for(exists(0)).is_empty(), "one bookie has answered");

    let mut recovery = Recovery::of(&three(), &[]);
    recovery.answer_all(Question::Fence, &NO_LEDGER);
    recovery.answer_all(exists(0), &NO_ENTRY);
    assert_eq!(recovery.closed(), LedgerEnd::default());
    let mut late =
        vec![Response { id: fence(1), bookie: "b2".into(), instance: None, result: NO_LEDGER }];
    recovery.machine.handle(at(9), Input::Responses(&mut late));
    assert_eq!(recovery.machine.poll_output(), None, "the end is said once");
}

/// Java recoveries rewrite headers, so that a LAC at a bookie may be above what they close at.
#[test]
fn in_a_mixed_cluster_it_begins_at_the_last_key_whatever_bookies_answer() {
    let record = open(3, 2, &[(0, "b1 b2 b3"), (2, "b1 b2 b4")]);
    let mut recovery = Recovery::starting(RecoveryStart::LastKey);
    recovery.find(&record.in_recovery().expect("not closed"), VERSION);
    recovery.answer_all(Question::Fence, &lac(Some(5)));
    assert_eq!(recovery.asked_for(exists(2)).len(), 3);
    assert_eq!(recovery.asked_for(exists(6)), [""; 0]);
}
