//! The rules of ledger safety that a writer keeps, by their numbers, and what happens without them.

use super::super::testing::{Bench, LEDGER, Said, at, end};
use super::super::{CloseError, ClosedElsewhere, Error, Failure};
use crate::id::{EntryId, Instance};
use crate::metadata::{LedgerEnd, LedgerState, RecordAnswer, RecordRequest, Version};
use crate::shortfall::Shortfall;
use crate::transport::{BookieError, RequestBody, Response, ResponseBody};
use Said::{Changed, Closed, Confirmed, Failed};

const DOWN: BookieError = BookieError::Unreachable;

fn quorum_lost(entry: u64, failures: &[(&str, Failure)]) -> Said {
    let failures = failures.iter().map(|(bookie, why)| ((*bookie).into(), *why)).collect();
    Failed(Error::QuorumLost { ledger: LEDGER, entry: EntryId(entry), failures })
}

#[test]
fn rule_1_a_change_that_lands_late_finds_another_version() {
    // The counterexample: the spare dies after the compare-and-set has timed out, the writer goes on with the old
    // ensemble, acknowledges, and then the change lands.
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.ack("b1", 0);
    bench.refuse("b3", 0, DOWN);
    bench.ack("b2", 0);
    bench.store_late();
    bench.news("b1 b2 b3");
    let version = bench.stored_version();
    bench.store();
    let Some(RecordRequest::Write { record, expected }) = &bench.question else {
        panic!("the record is rewritten, not {:?}", bench.question);
    };
    assert_eq!((&**record, *expected), (bench.stored_record(), version), "unchanged");
    assert_eq!(bench.said(), [], "and until then nothing is confirmed");
    bench.store();
    assert_eq!(bench.said(), [Confirmed(0)]);
    assert_eq!(bench.land(), RecordAnswer::Conflict);
    assert_eq!(bench.ensembles(), "0:b1 b2 b3");
}

#[test]
fn rule_1_a_change_that_landed_without_an_answer_is_recognised() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4 b5");
    bench.append(1);
    bench.refuse("b3", 0, DOWN);
    bench.store_unheard();
    bench.store();
    assert_eq!(bench.said(), [Changed(0, "b1 b2 b4")]);
    assert_eq!((bench.question.take(), bench.stored_version()), (None, Version(2)));
}

#[test]
fn rule_1_a_change_that_lands_between_the_read_and_the_rewriting_is_recognised() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.refuse("b3", 0, DOWN);
    bench.store_late();
    bench.store();
    assert_eq!(bench.land(), RecordAnswer::Written(Version(2)));
    bench.store();
    bench.store();
    assert_eq!(bench.said(), [Changed(0, "b1 b2 b4")]);
    bench.ack_all("b1 b4", [0]);
    assert_eq!(bench.said(), [Confirmed(0)]);
}

#[test]
fn a_store_that_does_not_answer_is_asked_again_after_a_pause_until_the_quorum_timeout() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.ack_all("b1 b2", [0]);
    bench.append(1);
    bench.refuse("b3", 1, DOWN);
    bench.ack_all("b1 b2", [1]);
    let mut questions = 0;
    while bench.now < at(30) {
        while bench.question.is_some() {
            questions += 1;
            bench.store_late();
        }
        match bench.machine.wake_at() {
            Some(wake_at) => bench.pass_to(wake_at),
            None => break,
        }
    }
    assert!(bench.now < at(21), "it ends a little after the quorum timeout");
    assert!(questions < 100);
    let timeout = Error::AddQuorumTimeout { ledger: LEDGER, entry: EntryId(1) };
    let said = bench.said();
    let [Confirmed(0), Closed(Err(CloseError::Unknown { .. })), Failed(failure)] = &said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(*failure, timeout);
}

#[test]
fn rule_2_without_a_spare_the_writer_goes_on_and_repairs_when_one_comes() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3");
    bench.append(1);
    bench.refuse("b2", 0, DOWN);
    assert_eq!(bench.question, None);
    bench.ack_all("b1 b3", [0]);
    bench.append(2);
    assert_eq!(bench.under_way(1), ["b1", "b3"], "the lost one is sent nothing");
    bench.ack_all("b1 b3", [1]);
    assert_eq!(bench.said(), [Confirmed(0), Confirmed(1)]);
    assert_eq!(bench.machine.stats().entries_below_write_quorum, 2);
    bench.news("b1 b2 b3 b4");
    bench.store();
    assert_eq!(bench.said(), [Changed(2, "b1 b4 b3")]);
    bench.ack_all("b1 b3 b4", [2]);
    assert_eq!(bench.said(), [Confirmed(2)]);
    let stats = bench.machine.stats();
    assert_eq!((stats.entries_below_write_quorum, stats.lost_members), (2, 0));
    let (first, last) = (EntryId(0), EntryId(1));
    assert_eq!(bench.machine.shortfalls(), [Shortfall { bookie: "b2".into(), first, last }]);
    assert_eq!(bench.machine.wake_at(), None);
}

#[test]
fn rule_2_model_c4_beyond_the_reach_of_a_recovery_the_ledger_is_closed_at_its_lac() {
    let mut bench = Bench::new((2, 2, 1), "b1 b2");
    bench.append(1);
    bench.ack("b1", 0);
    bench.ack("b2", 0);
    bench.append(1);
    let ack = bench.deliver("b2", 1);
    let refusal = bench.deliver("b1", 1);
    let response = |bookie: &str, request: &crate::transport::Request, result| Response {
        id: request.id,
        bookie: bookie.into(),
        instance: None,
        result,
    };
    // In one turn: with AQ 1 the entry has its quorum, on the only bookie that is left. Nobody could ever close that.
    bench.respond(vec![
        response("b1", &refusal, Err(DOWN)),
        response("b2", &ack, Ok(ResponseBody::Added)),
    ]);
    assert_eq!(bench.said(), [Confirmed(0)]);
    bench.store();
    let lost = quorum_lost(1, &[("b1", DOWN.into())]);
    assert_eq!(bench.said(), [Closed(Ok(end(0))), lost]);
    assert_eq!(bench.stored_record().state(), LedgerState::Closed(end(0)));
}

#[test]
fn rule_2_two_of_three_lost_close_the_ledger_and_name_the_bookies() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3");
    bench.append(2);
    bench.ack_all("b1 b3", [0]);
    bench.refuse("b1", 1, DOWN);
    bench.refuse("b3", 1, BookieError::ReadOnly);
    bench.ack("b2", 1);
    bench.store();
    let lost = quorum_lost(1, &[("b1", DOWN.into()), ("b3", BookieError::ReadOnly.into())]);
    assert_eq!(bench.said(), [Confirmed(0), Closed(Ok(end(0))), lost]);
    bench.append(1);
    assert_eq!((bench.said(), bench.machine.wake_at()), (vec![], None));
}

#[test]
fn rule_2_lost_slots_far_apart_do_not_end_a_wide_ensemble() {
    let mut bench = Bench::new((6, 3, 2), "b1 b2 b3 b4 b5 b6");
    bench.append(6);
    bench.refuse("b1", 0, DOWN);
    bench.refuse("b4", 1, DOWN);
    assert_eq!((bench.question.clone(), bench.said()), (None, vec![]));
    bench.refuse("b5", 2, DOWN);
    assert!(bench.question.is_some(), "b4 and b5 are neighbours: the ledger is closed");
}

#[test]
fn rule_2_an_entry_whose_quorum_needs_the_lost_slot_waits_for_a_repair() {
    let mut bench = Bench::new((3, 3, 3), "b1 b2 b3");
    bench.append(1);
    bench.refuse("b3", 0, DOWN);
    bench.ack_all("b1 b2", [0]);
    assert_eq!(bench.said(), []);
    bench.pass_to(at(19));
    bench.news("b1 b2 b3 b4");
    bench.store();
    bench.ack("b4", 0);
    assert_eq!(bench.said(), [Changed(0, "b1 b2 b4"), Confirmed(0)]);
}

#[test]
fn rule_2_an_entry_that_waits_in_vain_ends_the_writer_and_names_the_lost_bookie() {
    let mut bench = Bench::new((3, 3, 3), "b1 b2 b3");
    bench.append(1);
    bench.refuse("b3", 0, DOWN);
    bench.ack_all("b1 b2", [0]);
    bench.pass_to(at(20));
    bench.store();
    let lost = quorum_lost(0, &[("b3", DOWN.into())]);
    assert_eq!(bench.said(), [Closed(Ok(LedgerEnd::default())), lost]);
}

#[test]
fn rule_3_model_c5_a_bookie_that_comes_back_is_used_again_in_its_slot() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3");
    bench.append(1);
    bench.refuse("b2", 0, DOWN);
    bench.ack_all("b1 b3", [0]);
    bench.pass_to(at(4));
    bench.append(1);
    bench.ack("b1", 1);
    bench.said();
    // It is up again, and says so when it is asked.
    bench.pass_to(at(5));
    let probes = bench.asides();
    let [(bookie, probe)] = &probes[..] else { panic!("one probe, not {probes:?}") };
    assert_eq!((&**bookie, &probe.body), ("b2", &RequestBody::ReadLac { fence: None }));
    bench.answer("b2", probe, Err(BookieError::NoSuchLedger));
    assert_eq!(bench.under_way(1), ["b3", "b2"]);
    bench.refuse("b3", 1, DOWN);
    bench.ack("b2", 1);
    assert_eq!(bench.said(), [Confirmed(1)]);
    assert_eq!(bench.ensembles(), "0:b1 b2 b3", "the record has not changed");
}

#[test]
fn rule_3_answers_from_before_a_restart_no_longer_count() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3");
    bench.append(1);
    let before = bench.deliver("b2", 0);
    bench.news("b1 b3");
    bench.news("b1 b2 b3");
    bench.answer("b2", &before, Ok(ResponseBody::Added));
    bench.ack("b1", 0);
    assert_eq!(bench.said(), [], "it may have lost what it had not yet synced");
    bench.ack("b2", 0);
    assert_eq!(bench.said(), [Confirmed(0)]);
}

#[test]
fn rule_3_an_acknowledgement_from_before_a_restart_is_taken_back() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3");
    bench.append(1);
    bench.ack("b2", 0);
    bench.news("b1 b3");
    bench.news("b1 b2 b3");
    bench.ack("b1", 0);
    assert_eq!((bench.said(), bench.under_way(0)), (vec![], vec!["b3", "b2"]));
}

#[test]
fn rule_3_another_instance_is_replaced_and_never_sent_anything() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    let old = bench.deliver("b2", 0);
    bench.wipe("b2");
    bench.news("b1 b2:2 b3 b4");
    bench.answer("b2", &old, Ok(ResponseBody::Added));
    bench.ack("b1", 0);
    bench.store();
    assert_eq!(bench.said(), [Changed(0, "b1 b4 b3")]);
    bench.ack("b4", 0);
    assert_eq!(bench.said(), [Confirmed(0)]);
    // It is no candidate either, though it is writable, answers and nobody else is there.
    bench.append(1);
    bench.ack_all("b1 b4", [1]);
    bench.refuse("b3", 1, DOWN);
    bench.pass_to(at(5));
    assert_eq!(bench.question, None);
    let asked: Vec<_> = bench.asides().into_iter().map(|(bookie, _)| bookie).collect();
    assert_eq!(asked, ["b3"]);
}

#[test]
fn rule_3_an_answer_of_another_instance_than_the_recorded_one_is_not_counted() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3");
    bench.append(1);
    let request = bench.deliver("b2", 0);
    bench.wipe("b2");
    let (id, instance, result) = (request.id, Some(Instance(2)), Ok(ResponseBody::Added));
    bench.respond(vec![Response { id, bookie: "b2".into(), instance, result }]);
    bench.ack("b1", 0);
    assert_eq!(bench.said(), []);
    // The registry has not heard of it yet; a probe is answered by the stranger as well.
    bench.pass_to(at(4));
    bench.ack("b3", 0);
    assert_eq!(bench.said(), [Confirmed(0)]);
    bench.pass_to(at(5));
    let (_, probe) = bench.asides().pop().expect("a probe of b2");
    let result = Err(BookieError::NoSuchLedger);
    bench.respond(vec![Response { id: probe.id, bookie: "b2".into(), instance, result }]);
    bench.append(1);
    assert_eq!(bench.under_way(1), ["b1", "b3"]);
}

#[test]
fn a4_a_wiped_member_shows_a_writer_whose_ledger_was_closed_that_it_is() {
    let mut bench = Bench::new((2, 2, 2), "b2 b3 b4");
    bench.append(1);
    bench.ack_all("b2 b3", [0]);
    bench.change(|record| record.closed(Some(EntryId(0)), 10).unwrap());
    bench.wipe("b2");
    let copy = bench.copy("b3", 0).clone();
    bench.store_copy("b2", copy);
    bench.news("b2:2 b3 b4");
    bench.store_all();
    let said = bench.said();
    assert_eq!(said, [Confirmed(0), Closed(Ok(end(0))), Failed(Error::Fenced { ledger: LEDGER })]);
}

#[test]
fn rule_4_model_c6_e7_two_dead_bookies_that_stay_registered_are_each_tried_once() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4 b5");
    bench.append(2);
    bench.refuse("b1", 0, DOWN);
    bench.store();
    bench.refuse("b4", 0, DOWN);
    bench.store();
    bench.refuse("b5", 0, DOWN);
    assert_eq!(bench.ensembles(), "0:b5 b2 b3");
    // Days later: nobody is named again who has not answered.
    for second in (5..300_000).step_by(5) {
        bench.ack_all("b2 b3", if second == 5 { 0..2 } else { 0..0 });
        bench.pass_to(at(second));
        for (bookie, probe) in bench.asides() {
            bench.answer(&bookie, &probe, Err(DOWN));
        }
        assert_eq!(bench.question, None, "no change after {second} s");
    }
    assert_eq!(bench.machine.stats().ensemble_changes, 2);
}

#[test]
fn rule_4_a_failed_bookie_that_answers_is_a_candidate_again() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.refuse("b1", 0, DOWN);
    bench.store();
    bench.ack_all("b2 b3", [0]);
    bench.append(1);
    bench.ack_all("b2 b3", [1]);
    bench.refuse("b4", 1, DOWN);
    bench.said();
    bench.pass_to(at(5));
    let mut probes = bench.asides();
    probes.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(probes.iter().map(|(bookie, _)| &**bookie).collect::<Vec<_>>(), ["b1", "b4"]);
    bench.answer("b1", &probes[0].1, Ok(ResponseBody::LastAddConfirmed { lac: None }));
    bench.store();
    assert_eq!(bench.said(), [Changed(2, "b1 b2 b3")]);
    assert_eq!(bench.ensembles(), "0:b4 b2 b3, 2:b1 b2 b3");
}

#[test]
fn a_failed_bookie_that_registers_again_is_asked_at_once() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3");
    bench.append(1);
    bench.refuse("b2", 0, DOWN);
    bench.news("b1 b3");
    assert_eq!(bench.asides(), []);
    bench.news("b1 b2 b3");
    let (_, probe) = bench.asides().pop().expect("a probe");
    bench.answer("b2", &probe, Ok(ResponseBody::LastAddConfirmed { lac: None }));
    assert_eq!(bench.under_way(0), ["b1", "b3", "b2"]);
    assert_eq!(bench.machine.stats().lost_members, 0);
}

#[test]
fn neighbouring_ensembles_differ_also_when_the_first_members_come_back() {
    let mut bench = Bench::new((2, 2, 2), "b1 b2 b3");
    bench.append(1);
    bench.ack_all("b1 b2", [0]);
    bench.append(1);
    bench.refuse("b1", 1, DOWN);
    bench.store();
    assert_eq!(bench.ensembles(), "0:b1 b2, 1:b3 b2");
    bench.news("b2 b3");
    bench.news("b1 b2 b3");
    let (_, probe) = bench.asides().pop().expect("a probe of b1");
    bench.answer("b1", &probe, Ok(ResponseBody::LastAddConfirmed { lac: None }));
    bench.refuse("b3", 1, DOWN);
    bench.store();
    assert_eq!(bench.ensembles(), "0:b1 b2, 1:b2 b1", "the same two, in other places");
    bench.said();
    bench.ack("b1", 1);
    assert_eq!(bench.said(), []);
    assert_eq!(bench.under_way(1), ["b2", "b2"], "before the change, and again after it");
    bench.ack("b2", 1);
    bench.ack("b2", 1);
    assert_eq!(bench.said(), [Confirmed(1)]);
}

#[test]
fn rule_5_a_fence_counts_from_a_replaced_bookie_and_nothing_else_does() {
    for (error, fenced) in [
        (BookieError::Fenced, true),
        (BookieError::Unauthorized, false),
        (BookieError::Io, false),
        (BookieError::TooManyRequests, false),
    ] {
        let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4 b5");
        bench.append(2);
        let (first, late) = (bench.deliver("b1", 0), bench.deliver("b1", 1));
        bench.answer("b1", &first, Err(DOWN));
        bench.store();
        bench.said();
        bench.answer("b1", &late, Ok(ResponseBody::Added));
        bench.answer("b1", &late, Err(error));
        bench.ack("b2", 0);
        let said = if fenced { vec![Failed(Error::Fenced { ledger: LEDGER })] } else { vec![] };
        assert_eq!(bench.said(), said, "{error:?}");
        assert_eq!(bench.question, None);
    }
}

#[test]
fn rule_5_a_writer_that_meets_a_recovery_withdraws_without_a_write() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.change(|record| record.in_recovery().unwrap());
    bench.refuse("b1", 0, DOWN);
    bench.store();
    bench.store();
    assert_eq!(bench.said(), [Failed(Error::Fenced { ledger: LEDGER })]);
    bench.ack_all("b2 b3", [0]);
    assert_eq!((bench.said(), bench.question.take()), (vec![], None));
    assert_eq!(bench.stored_version(), Version(2), "that of the recovery");
}

#[test]
fn acknowledged_entries_beyond_somebody_elses_end_are_named_as_lost() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(4);
    bench.ack_all("b1 b2", 0..3);
    bench.said();
    let found = end(0);
    bench.change(|record| record.closed(found.last_entry, found.length).unwrap());
    bench.refuse("b1", 3, DOWN);
    bench.store();
    bench.store();
    let elsewhere = ClosedElsewhere { ledger: LEDGER, found, confirmed: end(2) };
    assert_eq!(elsewhere.lost(), Some(EntryId(1)..=EntryId(2)));
    assert!(elsewhere.to_string().contains("entries 1 to 2, which were acknowledged, are lost"));
    assert_eq!(bench.said(), [Closed(Err(elsewhere.into())), Failed(elsewhere.into())]);
}
