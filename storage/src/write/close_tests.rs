//! How a writer ends its ledger, and what it says of that.

use super::super::testing::{Bench, LEDGER, LIMITS, Said, at, end};
use super::super::{CloseError, ClosedElsewhere, Error, Input, Limits};
use crate::id::EntryId;
use crate::metadata::{LedgerEnd, LedgerState, RecordAnswer, RecordRequest, Version};
use crate::transport::{BookieError, ResponseBody};
use Said::{Changed, Closed, Confirmed, Failed};

const DOWN: BookieError = BookieError::Unreachable;
const FENCED: CloseError = CloseError::Fenced { ledger: LEDGER };

/// A writer with this many confirmed entries, about to write the end.
fn closing(entries: u64) -> Bench {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(entries as usize);
    bench.ack_all("b1 b2", 0..entries);
    bench.feed(Input::Close);
    bench.said();
    bench
}

#[test]
fn a_close_waits_for_what_is_pending_and_writes_the_exact_end() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(2);
    bench.feed(Input::Close);
    assert_eq!((bench.said(), bench.question.take()), (vec![], None));
    bench.append(1);
    assert_eq!(bench.under_way(2), [""; 0], "no entry after the close");
    bench.ack_all("b1 b2", [0]);
    bench.ack_all("b1 b2", [1]);
    assert_eq!(bench.said(), [Confirmed(0), Confirmed(1)]);
    bench.store();
    assert_eq!(bench.said(), [Closed(Ok(end(1)))]);
    assert_eq!(bench.stored_record().state(), LedgerState::Closed(end(1)));
    assert_eq!(bench.machine.wake_at(), None);
    bench.feed(Input::Close);
    assert_eq!(bench.said(), [Closed(Ok(end(1)))], "again the same");
}

#[test]
fn an_empty_ledger_closes_at_once() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3");
    bench.feed(Input::Close);
    bench.store();
    assert_eq!(bench.said(), [Closed(Ok(LedgerEnd::default()))]);
}

#[test]
fn a_change_under_way_is_finished_before_the_close() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.refuse("b1", 0, DOWN);
    bench.feed(Input::Close);
    bench.store();
    assert_eq!(bench.said(), [Changed(0, "b4 b2 b3")]);
    bench.ack_all("b4 b2", [0]);
    bench.store();
    assert_eq!(bench.said(), [Confirmed(0), Closed(Ok(end(0)))]);
}

#[test]
fn a_change_that_nobody_needs_any_more_is_abandoned_and_its_late_landing_does_no_harm() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.ack_all("b1 b2", [0]);
    bench.refuse("b3", 0, DOWN);
    bench.feed(Input::Close);
    bench.store_late();
    bench.store();
    assert!(matches!(bench.question, Some(RecordRequest::Write { .. })), "the record, unchanged");
    assert_eq!(bench.land(), RecordAnswer::Written(Version(2)));
    bench.store();
    assert_eq!(bench.ensembles(), "0:b1 b2 b3, 1:b1 b2 b4");
    bench.store_all();
    assert_eq!(bench.said(), [Confirmed(0), Closed(Ok(end(0)))]);
    assert_eq!(bench.stored_record().state(), LedgerState::Closed(end(0)));
}

#[test]
fn a_conflict_with_a_change_of_somebody_else_is_read_and_the_end_written_again() {
    let mut bench = closing(2);
    let names = super::super::testing::members("b1 b2 b9");
    bench.change(|record| record.with_ensemble(EntryId(0), names));
    bench.store_all();
    assert_eq!(bench.said(), [Closed(Ok(end(1)))]);
    assert_eq!(bench.ensembles(), "0:b1 b2 b9");
}

#[test]
fn a_close_whose_answer_was_lost_is_recognised() {
    let mut bench = closing(2);
    bench.store_unheard();
    bench.store();
    assert_eq!((bench.said(), bench.stored_version()), (vec![Closed(Ok(end(1)))], Version(2)));
}

#[test]
fn a_recoverer_that_found_the_same_end_is_agreed_with() {
    let mut bench = closing(2);
    bench.change(|record| record.in_recovery().unwrap().closed(Some(EntryId(1)), 20).unwrap());
    bench.store_all();
    assert_eq!(bench.said(), [Closed(Ok(end(1)))]);
}

#[test]
fn a_recovery_under_way_is_left_alone() {
    let mut bench = closing(2);
    bench.change(|record| record.in_recovery().unwrap());
    bench.store_all();
    assert_eq!((bench.said(), bench.stored_version()), (vec![Closed(Err(FENCED))], Version(2)));
    // Later its end can be learnt.
    bench.change(|record| record.closed(Some(EntryId(1)), 20).unwrap());
    bench.feed(Input::Close);
    bench.store_all();
    assert_eq!(bench.said(), [Closed(Ok(end(1)))]);
}

#[test]
fn an_end_of_somebody_else_is_an_error_that_names_what_was_lost() {
    for (last, lost) in [(0, Some(EntryId(1)..=EntryId(2))), (3, None)] {
        let mut bench = closing(3);
        let found = end(last);
        bench.change(|record| record.closed(found.last_entry, found.length).unwrap());
        bench.store_all();
        let elsewhere = ClosedElsewhere { ledger: LEDGER, found, confirmed: end(2) };
        assert_eq!(bench.said(), [Closed(Err(elsewhere.into()))]);
        assert_eq!(elsewhere.lost(), lost);
    }
}

#[test]
fn a_close_of_a_fenced_writer_writes_nothing_and_reports_the_end_or_the_loss() {
    let ends = [
        (None, Closed(Err(FENCED))),
        (Some(end(1)), Closed(Ok(end(1)))),
        (Some(end(2)), Closed(Err(FENCED))),
        (
            Some(end(0)),
            Closed(
                Err(ClosedElsewhere { ledger: LEDGER, found: end(0), confirmed: end(1) }.into()),
            ),
        ),
    ];
    for (found, expected) in ends {
        let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
        bench.append(3);
        bench.ack_all("b1 b2", 0..2);
        bench.refuse("b1", 2, BookieError::Fenced);
        bench.said();
        bench.change(|record| {
            let recovering = record.in_recovery().unwrap();
            found.map_or_else(
                || recovering.clone(),
                |end| recovering.closed(end.last_entry, end.length).unwrap(),
            )
        });
        bench.feed(Input::Close);
        assert_eq!(bench.question, Some(RecordRequest::Read));
        bench.store_all();
        assert_eq!((bench.said(), bench.stored_version()), (vec![expected], Version(2)));
    }
}

#[test]
fn a_fence_while_a_close_waits_answers_the_close() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.feed(Input::Close);
    bench.refuse("b1", 0, BookieError::Fenced);
    bench.store_all();
    let fenced = Error::Fenced { ledger: LEDGER };
    assert_eq!(bench.said(), [Failed(fenced), Closed(Err(FENCED))]);
    assert_eq!(bench.stored_version(), Version(1));
}

#[test]
fn a_fenced_writer_in_doubt_about_its_own_change_only_looks_at_the_record() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.refuse("b1", 0, DOWN);
    bench.store_late();
    bench.refuse("b2", 0, BookieError::Fenced);
    bench.store();
    assert_eq!(bench.question, None, "it does not matter any more whether the change lands");
    bench.feed(Input::Close);
    bench.store_all();
    let fenced = Error::Fenced { ledger: LEDGER };
    assert_eq!(bench.said(), [Failed(fenced), Closed(Err(FENCED))]);
    assert_eq!(bench.stored_version(), Version(1));
}

#[test]
fn a_close_gives_up_on_a_silent_store_and_may_be_asked_for_again() {
    let mut bench = closing(1);
    bench.store_late();
    while bench.said_nothing() {
        match bench.question {
            Some(_) => bench.feed_unknown(),
            None => bench.pass_to(bench.machine.wake_at().unwrap()),
        }
    }
    assert_eq!((bench.question.clone(), bench.machine.wake_at()), (None, None));
    assert!(bench.now < at(2));
    let said = bench.said();
    assert!(matches!(said[..], [Closed(Err(CloseError::Unknown { .. }))]), "{said:?}");
    bench.feed(Input::Close);
    bench.store_all();
    assert_eq!(bench.said(), [Closed(Ok(end(0)))]);
    assert_eq!(bench.land(), RecordAnswer::Conflict, "the first attempt comes too late");
}

#[test]
fn a_failed_writer_closes_its_ledger_by_itself_and_then_says_why() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(2);
    bench.ack_all("b1 b2", [0]);
    bench.refuse("b3", 1, BookieError::Unauthorized);
    for bookie in ["b1", "b2"] {
        let request = bench.deliver(bookie, 1);
        bench.answer(bookie, &request, Ok(ResponseBody::Added));
    }
    assert_eq!(bench.said(), [Confirmed(0)], "nothing is confirmed after a failure");
    bench.store();
    let failure = Error::Unauthorized { ledger: LEDGER, bookie: "b3".into() };
    assert_eq!(bench.said(), [Closed(Ok(end(0))), Failed(failure)]);
    bench.feed(Input::Close);
    assert_eq!(bench.said(), [Closed(Ok(end(0)))]);
}

#[test]
fn an_entry_too_long_without_its_quorum_ends_the_writer() {
    let limits = Limits { add_quorum_timeout: std::time::Duration::from_secs(3), ..LIMITS };
    let mut bench = Bench::with((3, 3, 2), "b1 b2 b3", limits);
    bench.append(1);
    bench.pass_to(at(1));
    bench.append(1);
    bench.ack_all("b1 b2", [0]);
    assert_eq!(bench.machine.wake_at(), Some(at(4)), "the oldest entry without its quorum");
    bench.pass_to(at(4));
    bench.store();
    let failure = Error::AddQuorumTimeout { ledger: LEDGER, entry: EntryId(1) };
    assert_eq!(bench.said(), [Confirmed(0), Closed(Ok(end(0))), Failed(failure)]);
}

#[test]
fn a_failing_writer_that_meets_a_recovery_is_fenced() {
    let mut bench = Bench::new((2, 2, 1), "b1 b2");
    bench.append(1);
    bench.refuse("b1", 0, DOWN);
    bench.change(|record| record.in_recovery().unwrap());
    bench.store_all();
    let fenced = Error::Fenced { ledger: LEDGER };
    assert_eq!(bench.said(), [Closed(Err(FENCED)), Failed(fenced)]);
    assert_eq!(bench.stored_version(), Version(2), "that of the recovery");
}

#[test]
fn a_record_that_was_deleted_ends_the_writer_and_the_close() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.refuse("b1", 0, DOWN);
    bench.question.take();
    bench.feed(Input::Record(RecordAnswer::Missing));
    let said = bench.said();
    let [Closed(Err(CloseError::Record { .. })), Failed(Error::Record { .. })] = &said[..] else {
        panic!("{said:?}");
    };
    let mut bench = closing(1);
    bench.question.take();
    bench.feed(Input::Record(RecordAnswer::Missing));
    let said = bench.said();
    assert!(matches!(said[..], [Closed(Err(CloseError::Record { .. }))]), "{said:?}");
}

#[test]
fn a_read_that_misses_the_record_is_repeated_once() {
    let mut bench = closing(2);
    bench.store_unheard();
    assert_eq!(bench.question.take(), Some(RecordRequest::Read));
    bench.feed(Input::Record(RecordAnswer::Missing));
    assert!(bench.said_nothing(), "the store may have answered with what was there before");
    bench.pass_to(at(1));
    bench.store();
    assert_eq!(bench.said(), [Closed(Ok(end(1)))]);

    let mut bench = closing(2);
    bench.store_unheard();
    bench.question.take();
    bench.feed(Input::Record(RecordAnswer::Missing));
    bench.pass_to(at(1));
    bench.question.take().expect("it is read again");
    bench.feed(Input::Record(RecordAnswer::Missing));
    let said = bench.said();
    assert!(matches!(said[..], [Closed(Err(CloseError::Record { .. }))]), "{said:?}");
}
