//! One writer with three bookies (E = WQ = 3, AQ = 2), in virtual time, judged by its outputs.

use super::super::testing::{Bench, LEDGER, Said, end};
use super::*;
use crate::transport::AddKind;
use Said::{Confirmed, Failed};

fn bench() -> Bench {
    Bench::new((3, 3, 2), "b1 b2 b3")
}

#[test]
fn every_entry_is_sent_to_its_write_set_with_the_lac_and_length_of_that_moment() {
    let mut bench = bench();
    bench.append(1);
    bench.ack_all("b1 b2 b3", [0]);
    bench.append(2);
    assert_eq!((bench.under_way(1).len(), bench.under_way(2).len()), (3, 3));
    for (_, request) in &bench.sent {
        let RequestBody::Add { entry, kind: AddKind::Normal, .. } = &request.body else {
            panic!("a writer sends normal adds");
        };
        assert_eq!(entry.verify(LEDGER, entry.entry()), Ok(()));
        assert_eq!(entry.lac(), Some(EntryId(0)));
        assert_eq!(entry.length(), (entry.entry().get() + 1) * 10);
    }
}

#[test]
fn acknowledgements_come_in_order_whatever_the_order_of_responses() {
    let mut bench = bench();
    bench.append(3);
    bench.ack_all("b1 b2", [2, 1]);
    bench.ack("b3", 0);
    assert_eq!(bench.said(), []);
    bench.ack("b1", 0);
    assert_eq!(bench.said(), [Confirmed(2)]);
    assert_eq!(bench.machine.confirmed(), end(2));
}

#[test]
fn every_order_of_responses_confirms_every_entry_once_and_in_order() {
    // Two entries, three bookies: all 720 orders of the six acks.
    let names = ["b1", "b2", "b3"];
    let mut acks: Vec<_> = (0..2).flat_map(|entry| names.map(|bookie| (bookie, entry))).collect();
    let mut orders = Vec::new();
    permutations(&mut acks, 0, &mut orders);
    assert_eq!(orders.len(), 720);
    for order in orders {
        let mut bench = bench();
        bench.append(2);
        let mut counts = [0, 0];
        for (bookie, entry) in order {
            let before = bench.machine.last_add_confirmed();
            bench.ack(bookie, entry);
            counts[entry as usize] += 1;
            let whole = counts.iter().take_while(|count| **count >= 2).count() as u64;
            let lac = EntryId(whole).checked_prev();
            assert_eq!(bench.machine.last_add_confirmed(), lac);
            let expected = if lac == before { vec![] } else { vec![Confirmed(whole - 1)] };
            assert_eq!(bench.said(), expected);
        }
        assert_eq!(bench.machine.wake_at(), None, "nothing is outstanding and nothing is kept");
    }
}

fn permutations<T: Clone>(items: &mut Vec<T>, from: usize, out: &mut Vec<Vec<T>>) {
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
    let mut bench = bench();
    bench.append(1);
    let [b1, b2, b3] = ["b1", "b2", "b3"].map(|bookie| bench.deliver(bookie, 0));
    let added = || Ok(ResponseBody::Added);
    bench.answer("b1", &b1, added());
    bench.answer("b1", &b1, added());
    bench.answer("b1", &b2, added());
    bench.answer("b9", &b2, added());
    bench.answer("b2", &b2, Ok(ResponseBody::LastAddConfirmed { lac: None }));
    for id in [u64::MAX, 0, 1 << 40, b2.id.0 + (1 << 22), b2.id.0 + (1 << 6), b2.id.0 + 3] {
        let request = Request { id: crate::transport::RequestId(id), ..b2.clone() };
        bench.answer("b2", &request, added());
    }
    assert_eq!((bench.said(), bench.machine.last_add_confirmed()), (vec![], None));
    bench.answer("b2", &b2, added());
    bench.answer("b3", &b3, added());
    bench.answer("b3", &b3, added());
    assert_eq!(bench.said(), [Confirmed(0)]);
}

#[test]
fn a_fence_ends_the_writer_whoever_reports_it_and_for_whichever_entry() {
    for (bookie, entry) in [("b1", 1), ("b9", 1), ("b1", 0), ("b1", 77)] {
        let mut bench = bench();
        bench.append(2);
        bench.ack_all("b2 b3", [0]);
        bench.ack("b2", 1);
        let request = bench.deliver("b1", entry.min(1));
        let id = crate::transport::RequestId(entry << 22);
        let result = Err(BookieError::Fenced);
        bench.answer(bookie, &Request { id, ..request.clone() }, result);
        let fenced = Error::Fenced { ledger: LEDGER };
        assert_eq!(bench.said(), [Confirmed(0), Failed(fenced)]);
        bench.ack("b3", 1);
        bench.answer("b1", &request, Err(BookieError::Unauthorized));
        assert_eq!(bench.said(), [], "the first reason stays, and nothing is acknowledged");
        assert_eq!(bench.question, None);
    }
}
