//! One writer with three bookies (E = WQ = 3, AQ = 2), in virtual time, judged by its outputs.

use super::*;
use crate::entry::Password;

const LEDGER: LedgerId = LedgerId(7);
const NAMES: [&str; 3] = ["b0", "b1", "b2"];
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const QUORUM_TIMEOUT: Duration = Duration::from_secs(20);

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn writer(add_quorum_timeout: Duration) -> Machine {
    Machine::new(Config {
        ledger: LEDGER,
        sizes: QuorumSizes::new(3, 3, 2).expect("valid sizes"),
        key: MasterKey::of(&Password::default()),
        ensemble: NAMES.map(BookieId::from).to_vec(),
        request_timeout: REQUEST_TIMEOUT,
        add_quorum_timeout,
    })
}

fn outputs(machine: &mut Machine) -> Vec<Output> {
    std::iter::from_fn(|| machine.poll_output()).collect()
}

/// Appends `count` entries of ten bytes each and returns what was sent, with its bookie.
fn append(machine: &mut Machine, now: Time, first: u64, count: usize) -> Vec<(BookieId, Request)> {
    let mut payloads = vec![Bytes::from_static(b"0123456789"); count];
    machine.handle(now, Input::Append { first: EntryId(first), payloads: &mut payloads });
    let mut sent = Vec::new();
    for output in outputs(machine) {
        let Output::Submit { bookie, requests } = output else {
            panic!("an append only sends, but there was {output:?}");
        };
        sent.extend(requests.into_iter().map(|request| (bookie.clone(), request)));
    }
    sent
}

fn answer(
    machine: &mut Machine,
    slot: usize,
    entry: u64,
    result: Result<ResponseBody, BookieError>,
) -> Vec<Output> {
    answer_as(machine, NAMES[slot], slot, entry, result)
}

fn answer_as(
    machine: &mut Machine,
    bookie: &str,
    slot: usize,
    entry: u64,
    result: Result<ResponseBody, BookieError>,
) -> Vec<Output> {
    let id = request_id(EntryId(entry), Slot::new(slot));
    let mut responses = vec![Response { id, bookie: bookie.into(), instance: None, result }];
    machine.handle(at(1), Input::Responses(&mut responses));
    outputs(machine)
}

fn ack(machine: &mut Machine, slot: usize, entry: u64) -> Vec<Output> {
    answer(machine, slot, entry, Ok(ResponseBody::Added))
}

fn confirmed(through: u64) -> Vec<Output> {
    vec![Output::Confirmed { through: EntryId(through) }]
}

#[test]
fn every_entry_is_sent_to_its_write_set_with_the_lac_and_length_of_that_moment() {
    let mut machine = writer(QUORUM_TIMEOUT);
    let first = append(&mut machine, at(0), 0, 1);
    assert_eq!(first.len(), 3);
    ack(&mut machine, 0, 0);
    ack(&mut machine, 1, 0);
    for (_, request) in append(&mut machine, at(1), 1, 2) {
        let RequestBody::Add { entry, kind: AddKind::Normal, .. } = request.body else {
            panic!("a writer sends normal adds");
        };
        assert_eq!(entry.verify(LEDGER, entry.entry()), Ok(()));
        assert_eq!(entry.lac(), Some(EntryId(0)));
        assert_eq!(entry.length(), (entry.entry().get() + 1) * 10);
    }
}

#[test]
fn acknowledgements_come_in_order_whatever_the_order_of_responses() {
    let mut machine = writer(QUORUM_TIMEOUT);
    append(&mut machine, at(0), 0, 3);
    for entry in [2, 1] {
        assert_eq!(ack(&mut machine, 0, entry), []);
        assert_eq!(ack(&mut machine, 1, entry), []);
    }
    assert_eq!(ack(&mut machine, 2, 0), []);
    assert_eq!(ack(&mut machine, 0, 0), confirmed(2));
    assert_eq!(machine.confirmed(), LedgerEnd { last_entry: Some(EntryId(2)), length: 30 });
}

#[test]
fn every_order_of_responses_confirms_every_entry_once_and_in_order() {
    // Two entries, three bookies: all 720 orders of the six acks.
    let mut acks: Vec<_> = (0..2).flat_map(|entry| (0..3).map(move |slot| (slot, entry))).collect();
    let mut orders = Vec::new();
    permutations(&mut acks, 0, &mut orders);
    assert_eq!(orders.len(), 720);
    for order in orders {
        let mut machine = writer(QUORUM_TIMEOUT);
        append(&mut machine, at(0), 0, 2);
        let mut counts = [0, 0];
        for (slot, entry) in order {
            let before = machine.last_add_confirmed();
            let said = ack(&mut machine, slot, entry);
            counts[entry as usize] += 1;
            let whole = counts.iter().take_while(|count| **count >= 2).count() as u64;
            let lac = EntryId(whole).checked_prev();
            assert_eq!(machine.last_add_confirmed(), lac);
            let expected = if lac == before { vec![] } else { confirmed(whole - 1) };
            assert_eq!(said, expected);
        }
        assert_eq!(machine.wake_at(), None, "nothing is outstanding and nothing is kept");
    }
}

fn permutations(items: &mut Vec<(usize, u64)>, from: usize, out: &mut Vec<Vec<(usize, u64)>>) {
    if from == items.len() {
        return out.push(items.clone());
    }
    for i in from..items.len() {
        items.swap(from, i);
        permutations(items, from + 1, out);
        items.swap(from, i);
    }
}

#[test]
fn repeated_late_and_foreign_responses_change_nothing() {
    let mut machine = writer(QUORUM_TIMEOUT);
    append(&mut machine, at(0), 0, 1);
    ack(&mut machine, 0, 0);
    assert_eq!(ack(&mut machine, 0, 0), [], "the same ack again");
    assert_eq!(answer_as(&mut machine, "b0", 1, 0, Ok(ResponseBody::Added)), [], "another slot's");
    assert_eq!(answer_as(&mut machine, "b9", 1, 0, Ok(ResponseBody::Added)), [], "a stranger's");
    assert_eq!(answer(&mut machine, 1, 0, Ok(ResponseBody::LastAddConfirmed { lac: None })), []);
    assert_eq!(ack(&mut machine, 1, 9), [], "of an entry never sent");
    assert_eq!(answer(&mut machine, 0, 0, Err(BookieError::Io)), [], "a failure after the ack");
    assert_eq!(machine.last_add_confirmed(), None);
    assert_eq!(ack(&mut machine, 1, 0), confirmed(0));
    assert_eq!(ack(&mut machine, 2, 0), []);
    assert_eq!(ack(&mut machine, 2, 0), [], "of an entry that is done with");
}

#[test]
fn one_failed_bookie_of_three_is_done_without() {
    let mut machine = writer(QUORUM_TIMEOUT);
    append(&mut machine, at(0), 0, 2);
    for entry in 0..2 {
        assert_eq!(answer(&mut machine, 0, entry, Err(BookieError::Unreachable)), []);
        assert_eq!(ack(&mut machine, 1, entry), []);
        assert_eq!(ack(&mut machine, 2, entry), confirmed(entry));
    }
}

#[test]
fn an_entry_without_its_quorum_ends_the_writer_and_names_the_bookies() {
    let mut machine = writer(QUORUM_TIMEOUT);
    append(&mut machine, at(0), 0, 2);
    answer(&mut machine, 0, 0, Err(BookieError::Unreachable));
    let failures =
        vec![("b0".into(), BookieError::Unreachable), ("b2".into(), BookieError::ReadOnly)];
    assert_eq!(
        answer(&mut machine, 2, 0, Err(BookieError::ReadOnly)),
        [Output::Failed(Error::QuorumLost { ledger: LEDGER, entry: EntryId(0), failures })]
    );
    for slot in 0..3 {
        assert_eq!(ack(&mut machine, slot, 1), [], "nothing is confirmed over the hole");
    }
    assert_eq!(append(&mut machine, at(2), 2, 1), []);
    assert_eq!(machine.wake_at(), None);
}

#[test]
fn a_fence_ends_the_writer_whoever_reports_it_and_for_whichever_entry() {
    for (bookie, entry) in [("b0", 1), ("b9", 1), ("b0", 0), ("b0", 77)] {
        let mut machine = writer(QUORUM_TIMEOUT);
        append(&mut machine, at(0), 0, 2);
        ack(&mut machine, 1, 0);
        assert_eq!(ack(&mut machine, 2, 0), confirmed(0));
        ack(&mut machine, 1, 1);
        assert_eq!(
            answer_as(&mut machine, bookie, 0, entry, Err(BookieError::Fenced)),
            [Output::Failed(Error::Fenced { ledger: LEDGER })]
        );
        assert_eq!(ack(&mut machine, 2, 1), [], "a fenced writer acknowledges nothing");
        assert_eq!(
            answer(&mut machine, 0, 1, Err(BookieError::Unauthorized)),
            [],
            "the first reason stays"
        );
    }
}

#[test]
fn a_refused_key_ends_the_writer() {
    let mut machine = writer(QUORUM_TIMEOUT);
    append(&mut machine, at(0), 0, 1);
    let error = Error::Unauthorized { ledger: LEDGER, bookie: "b1".into() };
    assert_eq!(answer(&mut machine, 1, 0, Err(BookieError::Unauthorized)), [Output::Failed(error)]);
}

#[test]
fn a_silent_bookie_is_given_up_after_the_request_timeout() {
    let mut machine = writer(QUORUM_TIMEOUT);
    assert_eq!(machine.wake_at(), None, "an idle writer has no timer");
    append(&mut machine, at(0), 0, 1);
    append(&mut machine, at(2), 1, 1);
    for entry in 0..2 {
        ack(&mut machine, 1, entry);
        ack(&mut machine, 2, entry);
    }
    assert_eq!(machine.wake_at(), Some(at(5)), "the oldest send, and one timer for all");
    machine.handle(at(5), Input::Wake);
    assert_eq!(outputs(&mut machine), []);
    assert_eq!(machine.wake_at(), Some(at(7)));
    machine.handle(at(7), Input::Wake);
    assert_eq!(machine.wake_at(), None);
    assert_eq!(ack(&mut machine, 0, 0), [], "it comes too late to matter");
}

#[test]
fn two_silent_bookies_end_the_writer() {
    let mut machine = writer(QUORUM_TIMEOUT);
    append(&mut machine, at(0), 0, 1);
    ack(&mut machine, 1, 0);
    machine.handle(at(5), Input::Wake);
    let failures = vec![("b0".into(), BookieError::Timeout), ("b2".into(), BookieError::Timeout)];
    let error = Error::QuorumLost { ledger: LEDGER, entry: EntryId(0), failures };
    assert_eq!(outputs(&mut machine), [Output::Failed(error)]);
}

#[test]
fn an_entry_too_long_without_its_quorum_ends_the_writer() {
    let mut machine = writer(Duration::from_secs(3));
    append(&mut machine, at(0), 0, 1);
    append(&mut machine, at(1), 1, 1);
    ack(&mut machine, 0, 0);
    ack(&mut machine, 1, 0);
    assert_eq!(machine.wake_at(), Some(at(4)), "the oldest entry without its quorum");
    machine.handle(at(4), Input::Wake);
    let error = Error::AddQuorumTimeout { ledger: LEDGER, entry: EntryId(1) };
    assert_eq!(outputs(&mut machine), [Output::Failed(error)]);
}

#[test]
fn a_close_waits_for_what_is_pending_and_then_names_the_end() {
    let mut machine = writer(QUORUM_TIMEOUT);
    append(&mut machine, at(0), 0, 2);
    machine.handle(at(1), Input::Close);
    assert_eq!(outputs(&mut machine), []);
    assert_eq!(append(&mut machine, at(1), 2, 1), [], "no entry after the close");
    ack(&mut machine, 0, 0);
    ack(&mut machine, 1, 0);
    ack(&mut machine, 0, 1);
    let end = LedgerEnd { last_entry: Some(EntryId(1)), length: 20 };
    let said = ack(&mut machine, 1, 1);
    assert_eq!(said, [Output::Confirmed { through: EntryId(1) }, Output::Settled(end)]);
}

#[test]
fn an_empty_ledger_closes_at_once() {
    let mut machine = writer(QUORUM_TIMEOUT);
    machine.handle(at(0), Input::Close);
    assert_eq!(outputs(&mut machine), [Output::Settled(LedgerEnd::default())]);
}
