//! All interleavings of a ledger's shipped writer and recoveries, within stated bounds.

#![expect(unreachable_pub, reason = "a test's modules are read here, not exported")]

mod world;

use std::io::Write as _;

use georepl_tests::explore::{Extent, Report, Violation, explore, explore_within};
use world::{Bounds, World, Writer, mark};

const BOUNDS: Bounds = Bounds {
    sizes: (3, 3, 2),
    entries: 1,
    bookies: 4,
    recoverers: 0,
    restarts: 0,
    writer: Writer::Lives,
    down: 0,
    dead: 0,
    wipes: 0,
    losses: 0,
    delays: 0,
    record_faults: 0,
    zombies: false,
    repairs: 0,
};

/// Reaching this many states is a failure: the exploration would no longer be complete.
const STATES_MAX: usize = 30_000_000;

fn check(bounds: Bounds, reached: u32) {
    judge(&bounds, explore(&World::new(bounds), STATES_MAX), Extent::Whole, reached);
}

/// Looks no further than so many steps, where there is too much to look at it all.
fn check_within(steps: usize, bounds: Bounds, reached: u32) {
    let outcome = explore_within(&World::new(bounds), steps, STATES_MAX);
    judge(&bounds, outcome, Extent::Steps(steps), reached);
}

fn judge(bounds: &Bounds, outcome: Result<Report, Violation>, extent: Extent, reached: u32) {
    match outcome {
        Ok(report) => {
            // Not by `eprintln!`, which a passing test would swallow.
            writeln!(std::io::stderr(), "{report}; {bounds:?}").expect("standard error is open");
            // One that ends sooner than its bound is to be told so.
            assert_eq!(report.extent, extent);
            assert_eq!(report.seen & reached, reached, "situations that must occur were not seen");
        }
        Err(violation) => panic!("{bounds:?}\n{violation}"),
    }
}

/// One writer that may crash, and one recovery.
const RECOVERY: Bounds = Bounds { recoverers: 1, writer: Writer::MayCrash, ..BOUNDS };

/// A writer that has crashed with everything on its way, and two recoveries.
const COMPETING: Bounds = Bounds { writer: Writer::HasCrashed, recoverers: 2, ..BOUNDS };

/// An ensemble that is larger than the write quorum, a bookie that dies, and an AutoRecovery that replaces it.
const REPAIRED: Bounds = Bounds { sizes: (3, 2, 2), entries: 2, dead: 1, repairs: 1, ..BOUNDS };

const WRITTEN: u32 = mark::CHANGED | mark::ACKNOWLEDGED;
const RECOVERED: u32 = mark::CLOSED_FULL | mark::CLOSED_SHORT | mark::ACKNOWLEDGED;

#[test]
fn writer_acknowledges_nothing_of_bookies_that_the_record_does_not_name() {
    check(Bounds { entries: 2, down: 1, delays: 1, ..BOUNDS }, WRITTEN);
    check(Bounds { entries: 2, dead: 1, losses: 1, ..BOUNDS }, WRITTEN);
}

#[test]
fn change_that_lands_after_its_timeout_loses_nothing() {
    check(Bounds { down: 2, record_faults: 2, ..BOUNDS }, WRITTEN | mark::LATE_WRITE);
}

#[test]
fn bookie_that_comes_back_as_it_was_is_used_again() {
    check(Bounds { entries: 2, bookies: 3, down: 2, ..BOUNDS }, mark::ACKNOWLEDGED);
}

#[test]
fn bookie_that_comes_back_empty_counts_no_more() {
    check(Bounds { down: 2, wipes: 1, ..BOUNDS }, WRITTEN);
    check(Bounds { entries: 2, bookies: 3, down: 1, wipes: 1, ..BOUNDS }, mark::ACKNOWLEDGED);
    check(Bounds { down: 1, wipes: 1, bookies: 3, ..RECOVERY }, RECOVERED);
}

#[test]
fn dead_bookies_that_stay_registered_are_not_tried_in_turn() {
    check(Bounds { entries: 2, bookies: 5, dead: 2, zombies: true, ..BOUNDS }, WRITTEN);
}

#[test]
fn writer_without_spares_stops_where_a_recovery_could_not_follow() {
    check(Bounds { sizes: (2, 2, 1), bookies: 2, dead: 1, ..BOUNDS }, mark::ACKNOWLEDGED);
}

#[test]
fn entries_that_do_not_use_the_replaced_slot_wait_for_those_that_do() {
    let spread = Bounds { sizes: (4, 2, 2), bookies: 5, entries: 2, dead: 1, ..BOUNDS };
    check(spread, mark::ACKNOWLEDGED);
    check(Bounds { recoverers: 1, writer: Writer::MayCrash, ..spread }, RECOVERED);
}

#[test]
fn recovery_among_any_one_fault_cuts_nothing_acknowledged() {
    check(Bounds { record_faults: 1, ..RECOVERY }, RECOVERED);
    check(Bounds { delays: 1, ..RECOVERY }, RECOVERED);
    check(Bounds { restarts: 1, ..RECOVERY }, RECOVERED);
    check(Bounds { dead: 1, ..RECOVERY }, RECOVERED | mark::CHANGED);
    check(Bounds { dead: 1, losses: 1, bookies: 3, ..RECOVERY }, RECOVERED);
}

#[test]
fn recovery_while_a_bookie_comes_and_goes_cuts_nothing_acknowledged() {
    check(Bounds { down: 1, ..RECOVERY }, RECOVERED | mark::CHANGED);
}

#[test]
fn recovery_of_two_entries_cuts_nothing_acknowledged() {
    check(Bounds { entries: 2, ..RECOVERY }, RECOVERED | mark::PENDING_IN_RECOVERY);
}

#[test]
fn recovery_of_two_entries_takes_what_lies_before_a_change_for_confirmed() {
    check(Bounds { entries: 2, dead: 1, ..RECOVERY }, RECOVERED | mark::CHANGED);
}

#[test]
fn answer_from_before_a_wipe_counts_no_more() {
    check(Bounds { bookies: 3, down: 1, wipes: 1, delays: 1, ..BOUNDS }, mark::ACKNOWLEDGED);
    check(Bounds { bookies: 3, down: 1, wipes: 1, delays: 1, ..RECOVERY }, RECOVERED);
}

#[test]
fn two_recoveries_agree() {
    check(COMPETING, RECOVERED);
}

#[test]
fn two_recoveries_agree_when_a_bookie_dies() {
    check(Bounds { dead: 1, ..COMPETING }, RECOVERED);
}

#[test]
fn two_recoveries_agree_when_a_bookie_dies_and_a_message_is_lost() {
    check(Bounds { dead: 1, losses: 1, bookies: 3, ..COMPETING }, RECOVERED);
}

#[test]
fn recovery_after_one_that_crashed_cuts_nothing_acknowledged() {
    let dead = Bounds { recoverers: 1, restarts: 1, entries: 2, ..COMPETING };
    check(Bounds { dead: 1, ..dead }, RECOVERED);
}

/// Of what has no end in reasonable time, what comes first.
#[test]
fn two_recoveries_agree_when_a_bookie_is_replaced_and_a_message_is_lost() {
    let replaced = Bounds { dead: 1, losses: 1, ..COMPETING };
    check_within(16, replaced, RECOVERED | mark::REPLACED_IN_RECOVERY);
}

/// Of what has no end in reasonable time, what comes first.
#[test]
fn two_recoveries_of_two_entries_agree() {
    check_within(23, Bounds { entries: 2, bookies: 3, ..COMPETING }, RECOVERED);
}

#[test]
fn writer_keeps_what_autorecovery_has_moved() {
    let moved = WRITTEN | mark::MOVED;
    check(Bounds { dead: 2, bookies: 5, repairs: 2, ..REPAIRED }, moved | mark::MOVED_AMID_WRITE);
    check(Bounds { record_faults: 1, ..REPAIRED }, moved | mark::MOVED_AMID_WRITE);
    let spread = Bounds { sizes: (4, 2, 2), bookies: 5, record_faults: 1, ..REPAIRED };
    check(spread, moved | mark::MOVED_AMID_WRITE);
    check(Bounds { sizes: (3, 3, 2), ..REPAIRED }, moved);
    check(Bounds { dead: 0, down: 1, wipes: 1, ..REPAIRED }, moved);
}

#[test]
fn recovery_keeps_what_autorecovery_has_moved() {
    let one = Bounds { entries: 1, recoverers: 1, writer: Writer::MayCrash, ..REPAIRED };
    let moved = RECOVERED | mark::MOVED | mark::MOVED_AMID_RECOVERY;
    check(Bounds { record_faults: 1, ..one }, moved);
    check(Bounds { sizes: (4, 2, 2), bookies: 5, ..one }, moved);
    check(Bounds { sizes: (3, 3, 2), ..one }, moved);
    check(Bounds { dead: 0, down: 1, wipes: 1, ..one }, moved);
    check(Bounds { entries: 2, ..one }, moved);
    check(Bounds { recoverers: 2, writer: Writer::HasCrashed, ..one }, RECOVERED | mark::MOVED);
}
