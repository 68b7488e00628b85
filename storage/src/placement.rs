//! Which bookies a new ensemble gets.
//!
//! Placement is advice: safety does not depend on it, only that members are distinct.

use std::collections::BTreeSet;

use fastrand::Rng;

use crate::bookie::rules::Mode;
use crate::registry::RegisteredBookie;

/// Fewer bookies take new entries than an ensemble needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} writable bookies are needed, {available} are there, and {read_only} more are read-only for want of \
     space; make space, start more or ask for a smaller ensemble"
)]
pub struct NotEnoughBookies {
    /// How many distinct bookies are needed.
    pub needed: usize,
    /// How many there are.
    pub available: usize,
    /// How many more there would be if they had space.
    pub read_only: usize,
}

/// Chooses `size` distinct writable bookies, each choice and order equally likely.
///
/// # Errors
/// [`NotEnoughBookies`].
pub fn choose_ensemble(
    bookies: &[RegisteredBookie],
    size: usize,
    rng: &mut Rng,
) -> Result<Vec<RegisteredBookie>, NotEnoughBookies> {
    let writable = bookies.iter().filter(|bookie| bookie.mode == Mode::Writable);
    let mut writable: Vec<_> = writable.cloned().collect();
    // Sorted, so that the choice depends on the generator alone.
    writable.sort_unstable();
    writable.dedup_by(|one, other| one.id == other.id);
    if writable.len() < size {
        let names: BTreeSet<_> = bookies.iter().map(|bookie| &bookie.id).collect();
        let (available, read_only) = (writable.len(), names.len() - writable.len());
        return Err(NotEnoughBookies { needed: size, available, read_only });
    }
    rng.shuffle(&mut writable);
    writable.truncate(size);
    Ok(writable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Instance;

    fn bookies(names: &[&str]) -> Vec<RegisteredBookie> {
        let writable = |name: &&str| RegisteredBookie {
            id: (**name).into(),
            instance: Instance(1),
            mode: Mode::Writable,
        };
        names.iter().map(writable).collect()
    }

    #[test]
    fn members_are_distinct_and_every_bookie_gets_its_turn() {
        let mut rng = Rng::with_seed(1);
        let mut seen = BTreeSet::new();
        for _ in 0..100 {
            let ensemble = choose_ensemble(&bookies(&["a", "b", "a", "c", "d"]), 3, &mut rng)
                .expect("four bookies");
            assert_eq!(ensemble.iter().collect::<BTreeSet<_>>().len(), 3);
            seen.extend(ensemble);
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn a_bookie_named_twice_counts_once_and_one_without_space_is_told_apart() {
        let mut some = bookies(&["a", "b", "a", "c"]);
        some[3].mode = Mode::ReadOnly;
        let error = choose_ensemble(&some, 3, &mut Rng::with_seed(1));
        assert_eq!(error, Err(NotEnoughBookies { needed: 3, available: 2, read_only: 1 }));
    }
}
