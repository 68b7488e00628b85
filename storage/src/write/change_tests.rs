//! How the ensemble changes, judged by what is sent, said and stored.

use std::time::Duration;

use super::super::testing::{self, Bench, LEDGER, LIMITS, Said, at};
use super::super::{Error, Limits, WriterStats};
use crate::id::{EntryId, Instance};
use crate::metadata::{LedgerEnd, RecordRequest};
use crate::shortfall::Shortfall;
use crate::time::Time;
use crate::transport::{BookieError, RequestBody, Response, ResponseBody};
use Said::{Changed, Closed, Confirmed, Failed};

const DOWN: BookieError = BookieError::Unreachable;

#[test]
fn a_failed_bookie_is_replaced_and_its_pending_entries_go_to_the_new_one() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.ack_all("b1 b2 b3", [0]);
    bench.append(2);
    bench.refuse("b2", 1, DOWN);
    assert_eq!(bench.said(), [Confirmed(0)]);
    bench.ack_all("b1 b3", [1, 2]);
    assert_eq!(bench.said(), [], "nothing is confirmed while the record is being changed");
    bench.store();
    assert_eq!(bench.said(), [Confirmed(2), Changed(1, "b1 b4 b3")]);
    assert_eq!(bench.ensembles(), "0:b1 b2 b3, 1:b1 b4 b3");
    assert_eq!(bench.stored_record().instance_of(&"b4".into()), Some(Instance(1)));
    assert_eq!((bench.under_way(1), bench.under_way(2)), (vec!["b4"], vec!["b2", "b4"]));
    bench.ack_all("b4", [1, 2]);
    assert_eq!(bench.machine.wake_at(), None, "nothing is outstanding");
    assert_eq!(bench.machine.stats(), WriterStats { ensemble_changes: 1, ..Default::default() });
}

#[test]
fn a1_all_entries_are_switched_before_any_is_acknowledged() {
    let mut bench = Bench::new((4, 2, 2), "b0 b1 b2 b3 b4");
    bench.append(6);
    bench.ack_all("b1 b2", [1]);
    bench.ack_all("b2 b3", [2]);
    bench.ack("b1", 0);
    bench.refuse("b2", 5, DOWN);
    // The acknowledgement that completes entry 0 comes during the compare-and-set; entries 1 and 2 have theirs, but
    // half of them from the bookie that is being replaced.
    bench.ack("b0", 0);
    assert_eq!(bench.said(), []);
    bench.store();
    assert_eq!(bench.said(), [Confirmed(0), Changed(0, "b0 b1 b4 b3")]);
    bench.ack("b4", 1);
    assert_eq!(bench.said(), [Confirmed(1)]);
    bench.ack("b4", 2);
    assert_eq!(bench.said(), [Confirmed(2)]);
    assert_eq!(bench.holders(1), "b1 b2 b4");
}

#[test]
fn a2_acknowledgements_that_come_after_the_key_was_fixed_wait_for_the_new_ensemble() {
    let mut bench = Bench::new((2, 2, 2), "b1 b2 b3 b4");
    bench.append(5);
    bench.ack_all("b1 b2", 0..5);
    bench.append(3);
    let late: Vec<_> =
        [5, 6].into_iter().flat_map(|e| ["b1", "b2"].map(|b| (b, bench.deliver(b, e)))).collect();
    bench.refuse("b1", 7, DOWN);
    bench.refuse("b2", 7, DOWN);
    assert!(bench.said().ends_with(&[Confirmed(4)]));
    for (bookie, request) in late {
        bench.answer(bookie, &request, Ok(ResponseBody::Added));
    }
    bench.store_all();
    assert_eq!(bench.said(), [Changed(5, "b3 b4")]);
    for entry in 5..8 {
        bench.ack("b3", entry);
        assert_eq!(bench.said(), []);
        bench.ack("b4", entry);
        assert_eq!(bench.said(), [Confirmed(entry)]);
    }
    assert_eq!(bench.ensembles(), "0:b1 b2, 5:b3 b4");
}

#[test]
fn c1_nothing_is_acknowledged_on_bookies_that_the_store_does_not_name() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4 b5 b6");
    bench.append(1);
    bench.ack_all("b2 b3", [0]);
    bench.append(1);
    // The store stalls while one bookie after the other fails.
    bench.refuse("b1", 0, DOWN);
    bench.refuse("b2", 1, DOWN);
    bench.refuse("b3", 1, DOWN);
    assert_eq!(bench.said(), [Confirmed(0)]);
    assert_eq!(bench.under_way(1), ["b1"], "nobody new is sent anything yet");
    bench.store();
    assert_eq!(bench.said(), [], "failures during the change are dealt with before it ends");
    assert_eq!(bench.ensembles(), "0:b1 b2 b3, 1:b4 b2 b3");
    bench.store();
    assert_eq!(bench.said(), [Changed(1, "b4 b5 b6")]);
    assert_eq!(bench.ensembles(), "0:b1 b2 b3, 1:b4 b5 b6");
    bench.ack_all("b4 b5", [1]);
    assert_eq!(bench.said(), [Confirmed(1)]);
}

#[test]
fn c2_a_failure_after_the_acknowledgement_changes_the_ensemble_without_a_further_entry() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.ack_all("b1 b2", [0]);
    assert_eq!(bench.said(), [Confirmed(0)]);
    bench.refuse("b3", 0, BookieError::Io);
    bench.store();
    assert_eq!(bench.said(), [Changed(1, "b1 b2 b4")]);
    let stats = bench.machine.stats();
    assert_eq!((stats.ensemble_changes, stats.entries_below_write_quorum), (1, 1));
}

#[test]
fn a_silent_bookie_is_replaced_after_the_request_timeout() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    assert_eq!(bench.machine.wake_at(), None, "an idle writer has no timer");
    bench.append(1);
    bench.ack_all("b1 b2", [0]);
    assert_eq!(bench.machine.wake_at(), Some(at(5)));
    bench.pass_to(at(5));
    bench.store();
    assert_eq!(bench.said(), [Confirmed(0), Changed(1, "b1 b2 b4")]);
    assert_eq!(bench.machine.wake_at(), None, "the entry is done with");
}

#[test]
fn entries_that_are_sent_again_have_a_request_timeout_of_their_own() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4 b5");
    bench.append(1);
    bench.pass_to(at(4));
    bench.refuse("b1", 0, DOWN);
    bench.store();
    bench.ack_all("b2 b3", [0]);
    bench.pass_to(at(8));
    assert_eq!(bench.said(), [Changed(0, "b4 b2 b3"), Confirmed(0)]);
    assert_eq!(bench.question, None, "b4 has until 9 s");
    bench.pass_to(at(9));
    bench.store();
    assert_eq!(bench.said(), [Changed(1, "b5 b2 b3")]);
}

#[test]
fn c11_c16_changes_of_others_to_earlier_fragments_stay() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4 b5");
    bench.append(1);
    bench.ack_all("b1 b2 b3", [0]);
    bench.append(1);
    bench.refuse("b2", 1, DOWN);
    bench.store();
    bench.ack_all("b1 b3", [1]);
    bench.ack("b4", 1);
    // AutoRecovery moves fragment 0 from b2 to b9 before the next change, of which the writer knows nothing.
    bench.append(1);
    bench.said();
    let copy = bench.copy("b1", 0).clone();
    bench.store_copy("b9", copy);
    bench.change(|record| record.with_ensemble(EntryId(0), testing::members("b1 b9 b3")));
    bench.refuse("b3", 2, DOWN);
    bench.refuse("b4", 2, DOWN);
    bench.store();
    assert_eq!(bench.question, Some(RecordRequest::Read), "the version has moved on");
    bench.news("b1 b2 b3 b4 b5 b6");
    bench.store_all();
    assert_eq!(bench.ensembles(), "0:b1 b9 b3, 1:b1 b4 b3, 2:b1 b5 b6");
    assert_eq!(bench.said(), [Changed(2, "b1 b5 b6")]);
}

#[test]
fn c18_an_entry_that_does_not_use_the_replaced_slot_is_confirmed_at_the_end_of_the_change() {
    let mut bench = Bench::new((4, 2, 2), "b0 b1 b2 b3 b4");
    bench.append(3);
    bench.refuse("b3", 2, DOWN);
    bench.ack_all("b0 b1", [0]);
    assert_eq!(bench.said(), []);
    bench.store();
    assert_eq!(bench.said(), [Confirmed(0), Changed(0, "b0 b1 b2 b4")]);
}

#[test]
fn c19_acknowledgements_beyond_the_quorum_count_when_one_is_taken_back() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(2);
    // Entry 1 has all three, entry 0 holds it up.
    bench.ack_all("b1 b2 b3", [1]);
    bench.refuse("b1", 0, DOWN);
    bench.store();
    bench.ack_all("b2 b3", [0]);
    assert_eq!(bench.said(), [Changed(0, "b4 b2 b3"), Confirmed(1)]);
}

#[test]
fn c26_failures_of_every_bookie_in_every_order_leave_a_writer_that_goes_on() {
    // Three failures, each before, during or after the change for the one before.
    for order in 0..27 {
        let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4 b5 b6");
        bench.append(1);
        for (bookie, when) in [("b1", order % 3), ("b2", order / 3 % 3), ("b3", order / 9)] {
            if when == 0 {
                bench.store_all();
            }
            bench.refuse(bookie, 0, DOWN);
            if when == 2 {
                bench.store_all();
            }
        }
        bench.store_all();
        let (_, members) = bench.stored_record().last_ensemble();
        let members: Vec<_> = members.iter().map(|m| m.as_str().to_owned()).collect();
        assert!(members.iter().all(|m| ["b4", "b5", "b6"].contains(&m.as_str())), "{members:?}");
        bench.said();
        bench.ack(&members[0], 0);
        bench.ack(&members[1], 0);
        assert_eq!(bench.said(), [Confirmed(0)], "order {order}");
    }
}

#[test]
fn c26_a_fence_during_a_change_is_the_end_and_the_answer_of_the_store_changes_nothing() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.refuse("b1", 0, DOWN);
    bench.refuse("b2", 0, BookieError::Fenced);
    assert_eq!(bench.said(), [Failed(Error::Fenced { ledger: LEDGER })]);
    bench.store();
    bench.append(1);
    assert_eq!((bench.said(), bench.sent.len()), (vec![], 1), "only what was under way before");
    assert_eq!(bench.machine.wake_at(), None);
}

#[test]
fn d1_acknowledgements_and_failures_of_one_turn_are_decided_by_one_owner() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(2);
    let responses = [("b1", 0), ("b2", 0), ("b3", 1), ("b1", 1)].map(|(bookie, entry)| {
        let request = bench.deliver(bookie, entry);
        let failed = (bookie, entry) == ("b3", 1);
        let result = if failed { Err(DOWN) } else { Ok(ResponseBody::Added) };
        Response { id: request.id, bookie: bookie.into(), instance: None, result }
    });
    bench.respond(responses.into());
    bench.store();
    assert_eq!(bench.said(), [Confirmed(0), Changed(0, "b1 b2 b4")]);
    bench.ack("b2", 1);
    assert_eq!(bench.said(), [Confirmed(1)]);
}

#[test]
fn a14_an_entry_is_sent_again_with_the_same_bytes() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(3);
    bench.ack_all("b1 b2", [0]);
    bench.refuse("b3", 2, DOWN);
    bench.store();
    assert_eq!(bench.machine.last_add_confirmed(), Some(EntryId(0)));
    for entry in [1, 2] {
        bench.ack_all("b1 b4", [entry]);
        assert_eq!(bench.copy("b1", entry), bench.copy("b4", entry), "LAC and digest as well");
        assert_eq!(bench.copy("b4", entry).lac(), None);
    }
}

#[test]
fn a9_a_bookie_that_is_too_far_behind_is_replaced_and_what_was_kept_for_it_is_let_go() {
    let limits = Limits { bookie_backlog_bytes_max: 400, ..LIMITS };
    let mut bench = Bench::with((3, 3, 2), "b1 b2 b3 b4", limits);
    let size = 46;
    bench.append(400 / size);
    bench.ack_all("b1 b2", 0..8);
    assert_eq!((bench.said().last(), &bench.question), (Some(&Confirmed(7)), &None));
    bench.append(1);
    bench.ack_all("b1 b2", [8]);
    bench.store();
    assert_eq!(bench.said(), [Confirmed(8), Changed(9, "b1 b2 b4")]);
    assert_eq!(bench.machine.wake_at(), None, "nothing is kept");
    let stats = bench.machine.stats();
    assert_eq!(stats.entries_below_write_quorum, 9);
    let (first, last) = (EntryId(0), EntryId(8));
    assert_eq!(bench.machine.shortfalls(), [Shortfall { bookie: "b3".into(), first, last }]);
}

#[test]
fn a_bookie_that_catches_up_owes_nothing() {
    let limits = Limits { bookie_backlog_bytes_max: 100, ..LIMITS };
    let mut bench = Bench::with((3, 3, 2), "b1 b2 b3 b4", limits);
    for entry in 0..20 {
        bench.append(1);
        bench.ack_all("b1 b2 b3", [entry]);
    }
    assert_eq!((bench.question.take(), bench.machine.wake_at()), (None, None));
}

#[test]
fn an_overloaded_bookie_is_sent_its_entries_again_after_a_pause() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(2);
    bench.refuse("b3", 1, BookieError::TooManyRequests);
    bench.refuse("b3", 0, BookieError::TooManyRequests);
    bench.append(1);
    assert_eq!((bench.question.take(), bench.under_way(2)), (None, vec!["b1", "b2"]));
    bench.pass_to(bench.machine.wake_at().unwrap());
    assert!(bench.now < at(1));
    let to_b3: Vec<_> = bench.sent.iter().filter(|(to, _)| to == "b3").collect();
    let ids = to_b3.iter().map(|(_, request)| match &request.body {
        RequestBody::Add { entry, .. } => entry.entry().get(),
        other => panic!("only adds, not {other:?}"),
    });
    assert_eq!(ids.collect::<Vec<_>>(), [0, 1, 2], "in the order of their ids");
    bench.ack_all("b1 b2 b3", 0..3);
    assert_eq!(bench.said().last(), Some(&Confirmed(2)));
    assert_eq!(bench.machine.stats(), WriterStats::default());
}

#[test]
fn a_bookie_that_stays_overloaded_is_replaced_after_the_request_timeout() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(1);
    bench.ack_all("b1 b2", [0]);
    while bench.question.is_none() {
        bench.refuse("b3", 0, BookieError::TooManyRequests);
        bench.pass_to(bench.machine.wake_at().unwrap());
    }
    assert_eq!(bench.now, at(5));
}

#[test]
fn an_idle_ledger_whose_member_vanishes_tells_its_lac_and_then_moves() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(2);
    bench.ack_all("b1 b2 b3", 0..2);
    bench.said();
    bench.news("b1 b2 b4");
    let told = bench.asides();
    assert_eq!(told.len(), 3);
    for (_, request) in &told {
        assert!(
            matches!(request.body, RequestBody::WriteLac { lac: EntryId(1), .. }),
            "{request:?}"
        );
    }
    bench.store();
    assert_eq!(bench.said(), [Changed(2, "b1 b2 b4")]);
    assert_eq!(bench.machine.wake_at(), None);
}

#[test]
fn a_member_that_turns_read_only_is_replaced_when_somebody_can_take_over() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3");
    bench.news("b1 b2! b3");
    bench.append(1);
    assert_eq!(bench.under_way(0), ["b1", "b2", "b3"], "until it refuses it is as good as any");
    bench.news("b1 b2! b3 b4");
    bench.store();
    assert_eq!(bench.said(), [Changed(0, "b1 b4 b3")]);
}

#[test]
fn the_lac_of_a_ledger_without_further_entries_is_told_once() {
    let limits = Limits { explicit_lac_interval: Some(Duration::from_secs(1)), ..LIMITS };
    let mut bench = Bench::with((4, 2, 2), "b0 b1 b2 b3", limits);
    bench.append(2);
    bench.ack_all("b0 b1", [0]);
    bench.ack_all("b1 b2", [1]);
    bench.pass_to(at(1));
    let told: Vec<_> = bench.asides();
    let to: Vec<_> = told.iter().map(|(bookie, _)| &**bookie).collect();
    assert_eq!(to, ["b1", "b2"], "the write set of the entry");
    bench.answer("b1", &told[0].1, Err(BookieError::Io));
    assert_eq!((bench.machine.wake_at(), bench.asides()), (None, vec![]), "that it failed is fine");
    // A further entry carries it, so it is not told by itself.
    bench.append(1);
    assert_ne!(bench.machine.wake_at(), Some(at(2)));
    bench.ack_all("b2 b3", [2]);
    bench.append(1);
    bench.ack("b3", 3);
    bench.pass_to(at(3));
    assert_eq!(bench.asides(), []);
}

#[test]
fn too_many_changes_close_the_ledger() {
    let limits = Limits { ensemble_changes_max: 2, ..LIMITS };
    let mut bench = Bench::with((3, 3, 2), "b1 b2 b3 b4 b5 b6 b7", limits);
    bench.append(1);
    for bookie in ["b1", "b4", "b5"] {
        bench.refuse(bookie, 0, DOWN);
        bench.store();
    }
    let failure = Error::TooManyChanges { ledger: LEDGER, changes: 2 };
    let said = bench.said();
    assert_eq!(said[2..], [Closed(Ok(LedgerEnd::default())), Failed(failure)]);
}

#[test]
fn seed_001_an_entry_acknowledged_before_a_change_keeps_its_two_copies_and_is_listed() {
    let mut bench = Bench::new((3, 3, 2), "b1 b2 b3 b4");
    bench.append(101);
    bench.ack_all("b1 b2 b3", 0..100);
    bench.ack_all("b1 b2", [100]);
    assert_eq!(bench.said().last(), Some(&Confirmed(100)));
    bench.append(1);
    bench.ack_all("b1 b2", [101]);
    assert_eq!((bench.holders(100), bench.holders(101)), ("b1 b2".into(), "b1 b2".into()));

    bench.pass_to(at(5));
    bench.store();
    assert_eq!(bench.ensembles(), "0:b1 b2 b3, 102:b1 b2 b4");
    assert_eq!(bench.under_way(100), ["b3"], "not sent to b4: it lies in the fragment before");
    bench.append(1);
    bench.ack_all("b1 b2 b4", [102]);
    let copies = [99, 100, 101, 102].map(|entry| bench.holders(entry));
    assert_eq!(copies, ["b1 b2 b3", "b1 b2", "b1 b2", "b1 b2 b4"]);
    assert_eq!(bench.machine.stats().entries_below_write_quorum, 2);
    let (first, last) = (EntryId(100), EntryId(101));
    assert_eq!(bench.machine.shortfalls(), [Shortfall { bookie: "b3".into(), first, last }]);
}

#[test]
fn situations_that_differ_in_time_alone_are_equal_after_renumbering() {
    let run = |start| {
        let mut bench = Bench::new((3, 3, 2), "b1 b2 b3");
        bench.pass_to(at(start));
        bench.append(1);
        bench.pass_to(at(start + 2));
        bench.refuse("b2", 0, DOWN);
        bench.refuse("b3", 0, BookieError::TooManyRequests);
        bench.machine.renumber(bench.now);
        bench.machine
    };
    assert_eq!(run(0), run(1_000));
    assert_eq!(run(0).wake_at(), Some(Time::ZERO + Duration::from_millis(20)));
}
