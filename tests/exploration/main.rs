//! All interleavings of the shipped cursor, replicator and remote rules, within stated bounds.

#![expect(unreachable_pub, reason = "a test's modules are read here, not exported")]

mod cases;

mod world;

use std::io::Write as _;

use georepl_replicator::Poison;
use georepl_tests::explore::{Report, Violation, explore};
use world::{Bounds, Fault, Order, Persistence, Rules, World, mark};

const BOUNDS: Bounds = Bounds {
    entries: 4,
    present: 1,
    window: 2,
    window_bytes: u64::MAX,
    read_entries: 2,
    reads_in_flight: 1,
    faults: 2,
    stops: 0,
    filtered: [0, 0],
    unreadable: 0,
    slow_appends: false,
    late_answers: false,
    waits: 0,
    commands: &[],
    orders: 0,
    poison: Poison::Block,
    persistence: Persistence::AtOnce,
    kinds: &[],
    rules: Rules::All,
};

/// Reaching this many states is a failure: the exploration would no longer be complete.
const STATES_MAX: usize = 6_000_000;

/// The environment variable that, set to `safety`, leaves the rules of tidiness out.
const RULES: &str = "GEOREPL_EXPLORE";

fn check(mut bounds: Bounds, reached: u32) {
    if std::env::var(RULES).is_ok_and(|rules| rules == "safety") {
        bounds.rules = Rules::NoLossNoStall;
    }
    match explore(&World::new(bounds), STATES_MAX) {
        Ok(report) => show(&bounds, &report, reached),
        Err(violation) => fail(&bounds, &violation),
    }
}

fn show(bounds: &Bounds, report: &Report, reached: u32) {
    // Printed also when the test passes: what println! writes is then captured.
    writeln!(std::io::stderr(), "{report}; {bounds:?}").expect("standard error is open");
    assert_eq!(report.seen & reached, reached, "situations that must occur were not seen");
}

fn fail(bounds: &Bounds, violation: &Violation) -> ! {
    panic!("{bounds:?}\n{violation}");
}

#[test]
fn two_faults_and_a_stop_at_any_step_are_survived() {
    let kinds = &[
        Fault::Refuse,
        Fault::LinkLost,
        Fault::DuplicateReceipt,
        Fault::ReadError,
        Fault::HangingRead,
    ];
    let reached =
        mark::DRAINED | mark::REFUSED | mark::STOPPED | mark::STALE_READ | mark::LATE_SEND;
    let reached = reached | mark::WAITING | mark::READ_FAILED;
    check(Bounds { kinds, stops: 1, ..BOUNDS }, reached);
}

/// Small enough to be explored to its end in seconds, whatever it is built like.
#[test]
fn one_fault_of_each_kind_is_survived_by_two_entries() {
    let kinds = &[
        Fault::Refuse,
        Fault::LinkLost,
        Fault::HalfOpen,
        Fault::DuplicateReceipt,
        Fault::ReadError,
        Fault::ShortRead,
        Fault::HangingRead,
        Fault::EarlyTimeout,
        Fault::OpenFails,
    ];
    let small = Bounds { kinds, entries: 2, present: 2, faults: 1, ..BOUNDS };
    check(small, mark::DRAINED | mark::REFUSED | mark::LATE_SEND);
    let slow = Bounds { kinds: &[Fault::AppendFailed], slow_appends: true, ..small };
    check(slow, mark::DRAINED | mark::LATE_SEND);
}

#[test]
fn two_reads_in_flight_are_delivered_in_order_whatever_fails() {
    let kinds = &[
        Fault::Refuse,
        Fault::LinkLost,
        Fault::ReadError,
        Fault::ShortRead,
        Fault::HangingRead,
        Fault::EarlyTimeout,
    ];
    let reads = Bounds { read_entries: 1, reads_in_flight: 2, ..BOUNDS };
    check(Bounds { kinds, faults: 2, entries: 3, ..reads }, mark::STALE_READ | mark::READ_FAILED);
}

#[test]
fn filter_decisions_that_change_between_attempts_skip_nothing() {
    let kinds = &[Fault::Refuse, Fault::LinkLost, Fault::EarlyTimeout];
    // Only with three entries in the window can one that was sent stand behind one that was passed.
    let wide = Bounds { kinds, entries: 3, window: 3, read_entries: 3, ..BOUNDS };
    for filtered in [[0b010, 0b000], [0b000, 0b010], [0b011, 0b100], [0b001, 0b110]] {
        check(Bounds { filtered, ..wide }, mark::DRAINED | mark::LATE_SEND);
    }
}

#[test]
fn appends_that_take_time_or_fail_at_the_remote_are_settled() {
    let kinds = &[Fault::AppendFailed, Fault::LinkLost, Fault::Refuse];
    let slow = Bounds { kinds, slow_appends: true, entries: 3, ..BOUNDS };
    check(slow, mark::LATE_SEND);
    check(Bounds { faults: 1, stops: 1, filtered: [0b010, 0], window: 3, ..slow }, mark::LATE_SEND);
}

#[test]
fn entry_that_cannot_be_understood_is_named_and_holds_back_what_follows() {
    let kinds = &[Fault::Refuse, Fault::LinkLost, Fault::ReadError];
    for unreadable in [0b0001, 0b0010, 0b0110] {
        check(Bounds { kinds, unreadable, window: 3, ..BOUNDS }, mark::DRAINED | mark::UNREADABLE);
    }
}

#[test]
fn half_open_links_and_early_timeouts_are_survived() {
    let kinds = &[Fault::HalfOpen, Fault::EarlyTimeout, Fault::LinkLost, Fault::ShortRead];
    check(Bounds { kinds, stops: 1, ..BOUNDS }, mark::DRAINED | mark::LATE_SEND);
}

#[test]
fn answers_of_older_sessions_change_nothing() {
    let kinds = &[Fault::Refuse, Fault::LinkLost, Fault::HalfOpen];
    let late = Bounds { kinds, late_answers: true, entries: 3, ..BOUNDS };
    check(late, mark::DRAINED | mark::LATE_ANSWER | mark::LATE_SEND | mark::REFUSED);
}

#[test]
fn remote_that_lost_data_or_holds_other_data_blocks_until_an_operator_acts() {
    let kinds = &[Fault::LoseLog, Fault::Foreign, Fault::OpenFails, Fault::LinkLost];
    let reached = mark::DRAINED | mark::BEHIND | mark::AHEAD | mark::OPEN_FAILED | mark::STOPPED;
    check(Bounds { kinds, entries: 3, stops: 1, ..BOUNDS }, reached);
}

#[test]
fn replicator_ends_for_good_only_for_a_cause_and_never_with_a_backlog_as_drained() {
    let kinds =
        &[Fault::Terminate, Fault::Close, Fault::ShortRead, Fault::ReadError, Fault::LinkLost];
    let reads = Bounds { reads_in_flight: 2, entries: 3, window: 3, ..BOUNDS };
    let reached = mark::DRAINED | mark::DRAINED_FOR_GOOD | mark::CLOSED;
    check(Bounds { kinds, stops: 1, ..reads }, reached);
    let kinds = &[Fault::Terminate, Fault::OthersRead, Fault::OthersRewind, Fault::ShortRead];
    check(Bounds { kinds, entries: 2, ..reads }, mark::DRAINED_FOR_GOOD | mark::MOVED);
    let kinds = &[Fault::Takeover, Fault::LinkLost, Fault::Refuse, Fault::OpenFails];
    check(Bounds { kinds, stops: 1, entries: 3, ..BOUNDS }, mark::DRAINED | mark::LATER_OWNER);
}

#[test]
fn cursor_that_others_move_loses_and_repeats_nothing() {
    let kinds = &[Fault::Skip, Fault::OthersRewind, Fault::OthersRead, Fault::Refuse];
    let reads = Bounds { kinds, reads_in_flight: 2, read_entries: 1, entries: 3, ..BOUNDS };
    check(reads, mark::DRAINED | mark::MOVED | mark::REFUSED);
    check(Bounds { read_entries: 2, window: 3, ..reads }, mark::DRAINED | mark::MOVED);
}

#[test]
fn first_entry_without_a_receipt_has_one_timeout_whatever_else_is_answered() {
    let kinds = &[Fault::DuplicateReceipt, Fault::Refuse];
    let waits = Bounds { kinds, faults: 1, waits: 3, entries: 3, window: 3, ..BOUNDS };
    check(waits, mark::DRAINED | mark::RECEIPT_LATE);
}

#[test]
fn window_holds_no_more_bytes_than_its_bound_and_one_entry() {
    let kinds = &[Fault::Refuse, Fault::LinkLost, Fault::ReadError];
    let bytes = Bounds { kinds, window: 4, window_bytes: 3, reads_in_flight: 2, ..BOUNDS };
    check(bytes, mark::DRAINED | mark::REFUSED);
    check(Bounds { window_bytes: 5, ..bytes }, mark::DRAINED | mark::REFUSED);
}

/// A refusal is enough for the quarantine, and the source may crash between any two steps.
/// Two entries are enough for one to be passed over and one to overtake it.
const KEPT: Bounds = Bounds {
    poison: Poison::Quarantine { after: 1 },
    persistence: Persistence::Later,
    entries: 2,
    present: 2,
    ..BOUNDS
};

#[test]
fn what_is_passed_over_is_noted_first_and_comes_once_when_it_is_released() {
    let commands = &[Order::Release, Order::Discard];
    let kinds = &[Fault::Refuse, Fault::Crash, Fault::PersistFails];
    let reached = mark::DRAINED | mark::QUARANTINED | mark::RELEASED | mark::STORING;
    let reached = reached | mark::GIVEN_UP | mark::LATE_SEND;
    check(Bounds { kinds, commands, orders: 1, ..KEPT }, reached);
    let kinds = &[Fault::Refuse, Fault::LinkLost, Fault::AppendFailed];
    let slow = Bounds { slow_appends: true, persistence: Persistence::AtOnce, ..KEPT };
    check(Bounds { kinds, commands, orders: 1, ..slow }, mark::DRAINED | mark::RELEASED);
    check(
        Bounds { kinds: &[Fault::Crash], commands, orders: 2, unreadable: 0b010, ..KEPT },
        mark::DRAINED | mark::QUARANTINED,
    );
}

#[test]
fn skips_and_seeks_while_entries_are_sent_and_released_lose_nothing_else() {
    let commands = &[Order::Skip, Order::SeekBack, Order::SeekForward, Order::Release];
    let kinds = &[Fault::Refuse, Fault::Crash, Fault::LinkLost];
    let reached = mark::DRAINED | mark::QUARANTINED | mark::RELEASED | mark::STORING;
    check(Bounds { kinds, commands, orders: 2, faults: 1, ..KEPT }, reached);
    // A release whose receipt is lost, and then a seek over it, while another may be released.
    let commands = &[Order::Release, Order::SeekForward, Order::SeekToSecond];
    let kinds = &[Fault::Refuse, Fault::LinkLost];
    let at_once = Bounds { persistence: Persistence::AtOnce, ..KEPT };
    check(Bounds { kinds, commands, orders: 2, ..at_once }, reached);
}

#[test]
fn restored_copies_of_either_side_block_or_lose_nothing() {
    let commands = &[Order::SeekBack];
    let kinds = &[Fault::Crash, Fault::LoseLog];
    let reached = mark::DRAINED | mark::BEHIND | mark::STORING;
    check(Bounds { kinds, commands, orders: 1, ..KEPT }, reached);
}

#[test]
fn source_that_is_put_back_from_a_copy_blocks_by_name_or_loses_nothing() {
    let reached = mark::DRAINED | mark::AHEAD | mark::SET_BACK | mark::LATE_SEND;
    let kinds = &[Fault::PutBack, Fault::LinkLost, Fault::Refuse];
    let put_back = Bounds { kinds, entries: 3, ..BOUNDS };
    check(put_back, reached);
    // Its remote, too, or to before a seek.
    let kinds = &[Fault::PutBack, Fault::LoseLog, Fault::Crash];
    check(Bounds { kinds, ..put_back }, reached | mark::BEHIND);
    let (kinds, commands) = (&[Fault::PutBack], &[Order::SeekBack]);
    check(Bounds { kinds, commands, orders: 1, entries: 2, ..put_back }, reached | mark::STORING);
}

#[test]
fn cursor_that_is_put_back_to_before_it_passed_over_an_entry_blocks_by_name() {
    let reached = mark::DRAINED | mark::QUARANTINED | mark::CURSOR_BEHIND | mark::SET_BACK;
    check(Bounds { kinds: &[Fault::PutBack, Fault::Refuse], ..KEPT }, reached);
}

#[test]
fn acknowledgements_that_a_crash_forgets_are_made_again() {
    let kinds = &[Fault::Crash, Fault::LinkLost, Fault::Refuse];
    let later = Bounds { persistence: Persistence::Later, entries: 3, ..BOUNDS };
    check(Bounds { kinds, filtered: [0b010, 0b000], window: 3, ..later }, mark::DRAINED);
}
