//! Which bookies a new ensemble gets.
//!
//! Placement is advice: safety does not depend on it, only that members are distinct.

use fastrand::Rng;

use crate::id::BookieId;

/// Fewer bookies take new entries than an ensemble needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{needed} writable bookies are needed, only {available} are there; start more or ask for a smaller ensemble"
)]
pub struct NotEnoughBookies {
    /// How many distinct bookies are needed.
    pub needed: usize,
    /// How many there are.
    pub available: usize,
}

/// Chooses `size` distinct bookies, each choice and order equally likely.
///
/// # Errors
/// [`NotEnoughBookies`].
pub fn choose_ensemble(
    mut writable: Vec<BookieId>,
    size: usize,
    rng: &mut Rng,
) -> Result<Vec<BookieId>, NotEnoughBookies> {
    // Sorted, so that the choice depends on the generator alone.
    writable.sort_unstable();
    writable.dedup();
    if writable.len() < size {
        return Err(NotEnoughBookies { needed: size, available: writable.len() });
    }
    rng.shuffle(&mut writable);
    writable.truncate(size);
    Ok(writable)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn bookies(names: &[&str]) -> Vec<BookieId> {
        names.iter().map(|name| BookieId::from(*name)).collect()
    }

    #[test]
    fn members_are_distinct_and_every_bookie_gets_its_turn() {
        let mut rng = Rng::with_seed(1);
        let mut seen = BTreeSet::new();
        for _ in 0..100 {
            let ensemble = choose_ensemble(bookies(&["a", "b", "a", "c", "d"]), 3, &mut rng)
                .expect("four bookies");
            assert_eq!(ensemble.iter().collect::<BTreeSet<_>>().len(), 3);
            seen.extend(ensemble);
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn a_bookie_named_twice_counts_once() {
        let error = choose_ensemble(bookies(&["a", "b", "a"]), 3, &mut Rng::with_seed(1));
        assert_eq!(error, Err(NotEnoughBookies { needed: 3, available: 2 }));
    }
}
