use std::collections::HashSet;

use georepl_storage::{EntryId, LedgerId};

use super::*;

fn at(entry: u64) -> Position {
    Position::new(LedgerId(7), EntryId(entry))
}

fn mark(entry: u64) -> Watermark {
    Watermark { position: at(entry), checksum: entry as u32 }
}

fn id(owner: u64, counter: u64) -> SessionId {
    SessionId { owner, counter }
}

const FIRST: Incarnation = Incarnation(0);
const UNCHANGED: Revision = Revision(0);

/// A target with session 1.1 open, `accepted` taken and the first `durable` of them durable.
fn target(accepted: &[u64], durable: usize) -> Target {
    let mut target = Target::new(id(0, 0), FIRST, UNCHANGED, None);
    assert_eq!(target.open(id(1, 1), FIRST, UNCHANGED), Opening::Answered(None));
    for &entry in accepted {
        assert_eq!(target.offer(id(1, 1), None, mark(entry)), Verdict::Take);
    }
    assert_eq!(target.durable(durable), None);
    target
}

#[test]
fn sends_are_tested_against_what_is_accepted_and_answered_by_what_is_durable() {
    use Verdict::{Duplicate, Gap, InProgress, Stale, Take};
    let current = id(1, 1);
    let table = [
        (current, None, 1, Duplicate),
        (current, Some(9), 1, Duplicate),
        (current, None, 2, InProgress),
        (current, Some(1), 2, InProgress),
        (current, None, 3, Take),
        (current, Some(1), 3, Take),
        (current, Some(2), 3, Take),
        (current, Some(2), 9, Take),
        (current, Some(3), 4, Gap),
        (id(1, 0), Some(2), 3, Stale),
        (id(1, 2), Some(2), 3, Stale),
        (id(2, 0), None, 1, Stale),
    ];
    for (session, previous, this, expected) in table {
        let mut target = target(&[1, 2], 1);
        let before = target.clone();
        let verdict = target.offer(session, previous.map(at), mark(this));
        assert_eq!(verdict, expected, "{session} {previous:?} {this}");
        assert_eq!(target == before, expected != Take, "only a taken entry leaves a trace");
    }
}

#[test]
fn an_entry_in_progress_is_a_duplicate_once_it_is_durable() {
    let mut target = target(&[1], 0);
    assert_eq!(target.offer(id(1, 1), None, mark(1)), Verdict::InProgress);
    target.durable(1);
    assert_eq!(target.offer(id(1, 1), None, mark(1)), Verdict::Duplicate);
}

#[test]
fn a_newer_session_makes_the_older_stale_before_it_is_answered() {
    let mut target = target(&[1, 2], 0);
    assert_eq!(target.open(id(1, 2), FIRST, UNCHANGED), Opening::Waits);
    assert_eq!(target.offer(id(1, 1), Some(at(2)), mark(3)), Verdict::Stale);
    assert_eq!(target.offer(id(1, 2), Some(at(2)), mark(3)), Verdict::Stale);
    assert_eq!(target.durable(1), None);
    let answered = Answered { session: id(1, 2), watermark: Some(mark(2)) };
    assert_eq!(target.durable(1), Some(answered));
    assert_eq!(target.offer(id(1, 2), Some(at(2)), mark(3)), Verdict::Take);
}

#[test]
fn of_two_openings_that_wait_the_newer_is_answered() {
    let mut target = target(&[1], 0);
    assert_eq!(target.open(id(1, 2), FIRST, UNCHANGED), Opening::Waits);
    assert_eq!(target.open(id(2, 0), FIRST, UNCHANGED), Opening::Waits);
    assert_eq!(target.durable(1).map(|answered| answered.session), Some(id(2, 0)));
}

#[test]
fn a_session_id_is_taken_once_and_the_later_owner_wins() {
    for asked in [id(0, 9), id(1, 0), id(1, 1)] {
        let mut target = target(&[1], 1);
        let error = OpenError::LaterOwner { asked, newest: id(1, 1) };
        assert_eq!(target.open(asked, FIRST, UNCHANGED), Opening::Refused(error));
        assert_eq!(target.open_session(), Some(id(1, 1)), "the open session goes on");
    }
    assert_eq!(target(&[1], 1).open(id(2, 0), FIRST, UNCHANGED), Opening::Answered(Some(mark(1))));
}

#[test]
fn a_new_incarnation_begins_with_nothing_and_the_old_one_does_not_come_back() {
    let mut target = target(&[1, 2], 1);
    assert_eq!(target.open(id(1, 2), Incarnation(1), UNCHANGED), Opening::Waits);
    let answered = Answered { session: id(1, 2), watermark: None };
    assert_eq!(target.durable(1), Some(answered), "the old append is waited for, not counted");
    assert_eq!(target.offer(id(1, 2), None, mark(1)), Verdict::Take);
    let error = OpenError::LaterIncarnation { asked: FIRST, newest: Incarnation(1) };
    assert_eq!(target.open(id(1, 3), FIRST, UNCHANGED), Opening::Refused(error));
}

#[test]
fn a_known_watermark_counts_only_for_its_own_incarnation() {
    let mut known = Target::new(id(1, 0), Incarnation(3), UNCHANGED, Some(mark(5)));
    let mut renewed = known.clone();
    let error = OpenError::LaterOwner { asked: id(1, 0), newest: id(1, 0) };
    assert_eq!(known.open(id(1, 0), Incarnation(4), UNCHANGED), Opening::Refused(error));
    assert_eq!(known.open(id(1, 1), Incarnation(3), UNCHANGED), Opening::Answered(Some(mark(5))));
    assert_eq!(renewed.open(id(1, 1), Incarnation(4), UNCHANGED), Opening::Answered(None));
}

#[test]
fn a_failed_append_ends_the_session_and_the_log_decides_what_is_stored() {
    for stored in [1, 2] {
        let mut target = target(&[1, 2], 1);
        target.failed();
        assert_eq!(target.offer(id(1, 1), Some(at(2)), mark(3)), Verdict::Stale);
        let mut target = Target::new(target.newest(), FIRST, UNCHANGED, Some(mark(stored)));
        assert_eq!(target.open(id(1, 2), FIRST, UNCHANGED), Opening::Answered(Some(mark(stored))));
    }
}

/// Three entries, two sessions that know the chain, sends that are repeated, late and out of order,
/// appends that become durable at any time, and one append that may fail with either outcome.
#[test]
fn in_every_interleaving_each_entry_is_stored_once_in_order_without_a_hole() {
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct World {
        target: Target,
        /// What is durable in the log, and what is on its way there.
        log: Vec<u64>,
        appending: Vec<u64>,
        opened: u64,
        failures: u32,
    }

    impl World {
        fn successors(&self) -> Vec<Self> {
            let mut next = Vec::new();
            for (session, entry) in (1..=2).flat_map(|s| (1..=3).map(move |e| (s, e))) {
                let mut world = self.clone();
                let previous = (entry > 1).then(|| at(entry - 1));
                match world.target.offer(id(1, session), previous, mark(entry)) {
                    Verdict::Take => world.appending.push(entry),
                    Verdict::Duplicate => assert!(self.log.contains(&entry)),
                    Verdict::InProgress => assert!(self.appending.contains(&entry)),
                    Verdict::Gap => assert!(!self.log.contains(&entry)),
                    Verdict::Stale => assert_ne!(self.target.open_session(), Some(id(1, session))),
                }
                next.push(world);
            }
            if !self.appending.is_empty() {
                let mut world = self.clone();
                world.log.push(world.appending.remove(0));
                let answered = world.target.durable(1);
                next.push(world.checked(answered));
            }
            if self.opened < 2 {
                let mut world = self.clone();
                world.opened += 1;
                let session = id(1, world.opened);
                let answered = match world.target.open(session, FIRST, UNCHANGED) {
                    Opening::Answered(watermark) => Some(Answered { session, watermark }),
                    Opening::Waits => None,
                    Opening::Refused(error) => panic!("{error}"),
                };
                next.push(world.checked(answered));
            }
            if !self.appending.is_empty() && self.failures == 0 {
                for stored in 0..=self.appending.len() {
                    let mut world = self.clone();
                    world.failures += 1;
                    world.target.failed();
                    world.log.extend(world.appending.drain(..).take(stored));
                    let held = world.log.last().map(|&entry| mark(entry));
                    world.target = Target::new(world.target.newest(), FIRST, UNCHANGED, held);
                    next.push(world.checked(None));
                }
            }
            next
        }

        /// An answered opening names exactly what is stored, and nothing is still to land.
        fn checked(self, answered: Option<Answered>) -> Self {
            if let Some(answered) = answered {
                assert_eq!(answered.watermark, self.log.last().map(|&e| mark(e)));
                assert!(self.appending.is_empty());
            }
            assert!(self.log.iter().copied().eq(1..=self.log.len() as u64), "{:?}", self.log);
            self
        }
    }

    let target = Target::new(id(0, 0), FIRST, UNCHANGED, None);
    let start = World { target, log: vec![], appending: vec![], opened: 0, failures: 0 };
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        open.extend(world.successors().into_iter().filter(|world| seen.insert(world.clone())));
    }
    assert!(seen.iter().any(|world| world.log.len() == 3 && world.failures == 1));
    assert!(seen.iter().any(|world| world.appending.len() == 3));
    let waits = |world: &World| world.opened == 2 && world.target.open_session().is_none();
    assert!(seen.iter().any(|world| waits(world) && world.appending.len() == 2));
}

#[test]
fn revision_that_is_older_than_the_newest_is_refused_and_what_is_held_is_named() {
    let (newest, first) = (Revision(2), Revision(0));
    let mut target = Target::new(id(1, 0), FIRST, first, Some(mark(5)));
    assert_eq!(target.open(id(1, 1), FIRST, newest), Opening::Answered(Some(mark(5))));
    // As often as it is asked, and by whomever.
    for (session, asked) in [(id(1, 2), Revision(1)), (id(2, 1), first), (id(9, 9), first)] {
        let before = target.clone();
        let watermark = Some(mark(5).position);
        let error = OpenError::LaterRevision { asked, newest, watermark };
        assert_eq!(target.open(session, FIRST, asked), Opening::Refused(error));
        assert_eq!(target, before, "it changes nothing");
    }
    assert_eq!(target.open(id(2, 1), FIRST, newest), Opening::Answered(Some(mark(5))));
    // Another incarnation begins anew, also in this.
    assert_eq!(target.open(id(2, 2), Incarnation(1), first), Opening::Answered(None));
    assert_eq!(target.revision(), first);
}
