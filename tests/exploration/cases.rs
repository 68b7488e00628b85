//! Faults that happened to others, each as a short script, and then run to the end without faults.

use crate::world::{Action, Bounds, Fault, Persistence, Rules, World};
use Action::{
    Answer, Append, Arrive, EmptyRead, HangRead, LinkLost, Read, ReadError, Refuse, Retry, Start,
    Stop, TakeCompletion, Timeout,
};
use georepl_replicator::Poison;
use georepl_tests::explore::World as _;

const BOUNDS: Bounds = Bounds {
    entries: 4,
    present: 4,
    window: 4,
    window_bytes: u64::MAX,
    read_entries: 2,
    reads_in_flight: 1,
    faults: 2,
    stops: 1,
    filtered: [0, 0],
    unreadable: 0,
    slow_appends: false,
    late_answers: false,
    waits: 0,
    commands: &[],
    orders: 0,
    poison: Poison::Block,
    persistence: Persistence::AtOnce,
    rules: Rules::All,
    kinds: &[
        Fault::Refuse,
        Fault::LinkLost,
        Fault::ReadError,
        Fault::ShortRead,
        Fault::HangingRead,
    ],
};

/// Its session is open and the cursor is rewound, so that the first read is asked for.
const STARTED: [Action; 3] = [Start, Arrive(0), Answer(0)];

fn started(bounds: Bounds) -> World {
    let mut world = World::new(bounds);
    play(&mut world, &STARTED);
    world
}

fn play(world: &mut World, script: &[Action]) {
    for &action in script {
        assert!(may(world, action), "{action:?} of {script:?} is not possible: {world:?}");
        world.step(action).expect("nothing is violated");
    }
}

fn may(world: &World, action: Action) -> bool {
    world.actions().contains(&action)
}

/// No case takes nearly as many steps to its end.
const STEPS_MAX: usize = 1_000;

/// Without faults and new work, everything that is there arrives, once and in order.
fn finish(world: World) {
    finish_from(world, 0);
}

/// The same, when the filter passes over what lies before `first`.
fn finish_from(mut world: World, first: u8) {
    let mut steps = 0;
    while !world.is_goal() {
        let mut actions = world.actions().into_iter();
        let action = actions.find(|action| world.is_free(*action)).expect("it is not stuck");
        world.step(action).expect("nothing is violated");
        steps += 1;
        assert!(steps < STEPS_MAX, "it goes in a circle: {world:?}");
    }
    let all: Vec<u8> = (first..world.appended()).collect();
    assert_eq!(world.log(), all, "the remote's log");
    assert_eq!(world.mark_delete(), world.appended(), "what is acknowledged");
}

#[test]
fn b01_read_that_was_waiting_before_a_rewind_skips_nothing() {
    let empty = Bounds { present: 0, ..BOUNDS };
    let mut woken_later = started(empty);
    play(&mut woken_later, &[LinkLost, Append, Retry, Arrive(0), Answer(0), Append]);
    finish(woken_later);

    let mut woken_before = started(empty);
    play(&mut woken_before, &[Append, LinkLost, Append, Retry, Arrive(0), Answer(0)]);
    play(&mut woken_before, &[Read(0), TakeCompletion]);
    assert!(may(&woken_before, Read(0)), "what was dropped is read again");
    finish(woken_before);
}

#[test]
fn b02_read_of_before_a_rewind_does_not_move_the_read_position() {
    let mut drained = started(BOUNDS);
    // 0 and 1 are sent, and 2 is being read when 0 is refused.
    play(&mut drained, &[Read(0), TakeCompletion, Refuse(0), Answer(0)]);
    let mut given_up = drained.clone();
    play(&mut drained, &[Arrive(1), Answer(0), Read(0), TakeCompletion, Arrive(0)]);
    finish(drained);

    play(&mut given_up, &[HangRead(0), Arrive(1), Answer(0), Arrive(0), Timeout]);
    // The read that was given up is answered after the rewind, before the read that replaced it.
    play(&mut given_up, &[Read(0), TakeCompletion]);
    finish(given_up);
}

#[test]
fn b03_dispatched_read_that_meets_a_rewind_frees_its_place() {
    let mut world = started(BOUNDS);
    play(&mut world, &[LinkLost, Retry, Arrive(0), Answer(0)]);
    assert!(!may(&world, Read(1)), "no second read while the first is drained");
    play(&mut world, &[Read(0), TakeCompletion]);
    assert!(may(&world, Read(0)), "the next read is asked for at once");
    finish(world);
}

#[test]
fn b06_failed_read_is_retried_once_and_later_with_one_entry() {
    let mut world = started(BOUNDS);
    assert_eq!(world.asked(), [2]);
    play(&mut world, &[ReadError(0), TakeCompletion]);
    assert!(!may(&world, Read(0)), "not at once");
    play(&mut world, &[Retry]);
    assert_eq!(world.asked(), [1], "one read, of one entry");
    play(&mut world, &[Read(0), TakeCompletion]);
    assert_eq!(world.asked(), [2], "as before");
    play(&mut world, &[Read(0), TakeCompletion, Arrive(0), Answer(0), Arrive(0), Answer(0)]);
    play(&mut world, &[Arrive(0), Answer(0)]);
    assert_eq!((world.in_window(), world.asked()), (0, vec![1]), "every place is free");
    finish(world);
}

#[test]
fn b07_read_that_fails_after_a_stop_leaves_nothing_behind() {
    let mut world = started(BOUNDS);
    play(&mut world, &[Stop, ReadError(0), TakeCompletion]);
    assert!(!may(&world, Retry) && !may(&world, Timeout), "no timer runs");
    finish(world);
}

#[test]
fn b08_refused_entry_gives_its_place_in_the_window_back() {
    let mut world = started(Bounds { window: 1, ..BOUNDS });
    play(&mut world, &[Read(0), TakeCompletion, Refuse(0), Answer(0)]);
    finish(world);
}

#[test]
fn b16_nothing_behind_a_refused_entry_is_stored_before_it() {
    let mut world = started(Bounds { read_entries: 4, ..BOUNDS });
    play(&mut world, &[Read(0), TakeCompletion, Refuse(0), Arrive(0), Arrive(0), Arrive(0)]);
    assert!(world.log().is_empty(), "0 was refused");
    play(&mut world, &[Answer(0)]);
    assert_eq!(world.mark_delete(), 0);
    finish(world);
}

#[test]
fn what_was_passed_over_leaves_no_gap_after_a_rewind() {
    let mut world = started(Bounds { filtered: [0b0001, 0b0001], ..BOUNDS });
    play(&mut world, &[Read(0), TakeCompletion]);
    assert_eq!((world.mark_delete(), world.log()), (1, [].as_slice()));
    // What was sent arrives only when a newer session is open, and is not taken.
    play(&mut world, &[LinkLost, Retry, Arrive(1), Answer(0), Arrive(0)]);
    assert!(world.log().is_empty(), "the remote holds nothing yet");
    finish_from(world, 1);
}

#[test]
fn wait_that_a_stop_cancels_completes_exactly_once() {
    let mut world = started(Bounds { present: 0, ..BOUNDS });
    play(&mut world, &[Stop, TakeCompletion]);
    play(&mut world, &[Append]);
    assert!(!may(&world, TakeCompletion) && !may(&world, Read(0)), "nobody waits any more");
    finish(world);
}

#[test]
fn b58_read_that_brings_no_entries_is_retried_later() {
    let mut world = started(BOUNDS);
    play(&mut world, &[EmptyRead(0), TakeCompletion]);
    assert!(!may(&world, Read(0)), "not at once");
    play(&mut world, &[Retry, Read(0), TakeCompletion]);
    finish(world);
}
