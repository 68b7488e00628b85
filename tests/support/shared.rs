//! Parts of a situation that many situations share: copied by reference, and compared by a fingerprint taken once.
//!
//! An exploration meets few different parts in many combinations. So what a part does when something happens to it is
//! worked out once and looked up afterwards.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

use crate::explore::{Lanes, fingerprint};

/// A value that does not change any more. Two are equal if their fingerprints are.
pub struct Shared<T>(Rc<(u128, T)>);

impl<T> Shared<T> {
    /// Stands for the value.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.0.0
    }
}

impl<T: Hash> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self(Rc::new((fingerprint(&value), value)))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.1
    }
}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.0.0);
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.0 == other.0.0
    }
}

impl<T> Eq for Shared<T> {}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// What a pure function of two parts has given before.
pub struct Memo<R>(RefCell<Known<R>>);

type Known<R> = HashMap<(u128, u128), Rc<R>, BuildHasherDefault<Lanes>>;

impl<R> Default for Memo<R> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<R> Memo<R> {
    /// The result for these fingerprints, worked out if it is not known.
    pub fn recall(&self, of: (u128, u128), work_out: impl FnOnce() -> R) -> Rc<R> {
        if let Some(known) = self.0.borrow().get(&of) {
            return known.clone();
        }
        // Not borrowed meanwhile: the function may panic, and what it met is then explored no further.
        let result = Rc::new(work_out());
        self.0.borrow_mut().insert(of, result.clone());
        result
    }
}
