//! Entries that are acknowledged one by one, behind mark-delete.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use roaring::RoaringBitmap;

use crate::position::Offset;

/// A set of places in a topic: one compressed bitmap for every 2^32 of them.
///
/// Kept free of what lies before mark-delete, so that its size is that of the holes and not of the topic. The number
/// of its entries is maintained, never counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Acked {
    bitmaps: BTreeMap<u32, RoaringBitmap>,
    len: u64,
}

impl Acked {
    /// Adds an entry. False when it was there.
    pub fn insert(&mut self, at: Offset) -> bool {
        let (high, low) = split(at);
        let added = self.bitmaps.entry(high).or_default().insert(low);
        self.len += u64::from(added);
        added
    }

    /// Adds the entries `range`.
    pub fn insert_range(&mut self, range: Range<Offset>) {
        let mut at = range.start;
        while at < range.end {
            let (high, low) = split(at);
            let end = range.end.min(join(high, u32::MAX).plus(1));
            let last = low + (end.since(at) - 1) as u32;
            self.len += self.bitmaps.entry(high).or_default().insert_range(low..=last);
            at = end;
        }
    }

    /// Whether the entry is in the set.
    pub fn contains(&self, at: Offset) -> bool {
        let (high, low) = split(at);
        self.bitmaps.get(&high).is_some_and(|bitmap| bitmap.contains(low))
    }

    /// The number of entries.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets every entry.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets every entry before `end`.
    pub fn remove_before(&mut self, end: Offset) {
        let (high, low) = split(end);
        let kept = self.bitmaps.split_off(&high);
        let dropped: u64 = self.bitmaps.values().map(RoaringBitmap::len).sum();
        self.bitmaps = kept;
        self.len -= dropped;
        if let Some(bitmap) = self.bitmaps.get_mut(&high) {
            self.len -= bitmap.remove_range(..low);
            if bitmap.is_empty() {
                self.bitmaps.remove(&high);
            }
        }
    }

    /// The first place from `from` on that is not in the set.
    pub fn end_of_run(&self, from: Offset) -> Offset {
        let mut at = from;
        loop {
            let (high, low) = split(at);
            let run = self.bitmaps.get(&high).and_then(|bitmap| bitmap.range(low..).next_range());
            match run {
                Some(run) if *run.start() == low => at = join(high, *run.end()).plus(1),
                _ => return at,
            }
            // Only a run up to the end of its bitmap may go on in the next.
            if split(at).1 != 0 {
                return at;
            }
        }
    }

    /// The first entry of the set at or behind `from`.
    pub fn first_from(&self, from: Offset) -> Option<Offset> {
        let (high, low) = split(from);
        let in_first = self.bitmaps.get(&high).and_then(|bitmap| bitmap.range(low..).next());
        in_first.map(|low| join(high, low)).or_else(|| {
            let (&high, bitmap) = self.bitmaps.range(high.checked_add(1)?..).next()?;
            bitmap.min().map(|low| join(high, low))
        })
    }

    /// The entries as ranges, in order; none is empty, and no two touch.
    pub fn ranges(&self) -> impl Iterator<Item = Range<Offset>> + '_ {
        let mut at = Some(Offset::ZERO);
        std::iter::from_fn(move || {
            let start = self.first_from(at?)?;
            let end = self.end_of_run(start);
            at = Some(end);
            Some(start..end)
        })
    }
}

impl Hash for Acked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for range in self.ranges() {
            range.hash(state);
        }
        self.len.hash(state);
    }
}

impl Eq for Acked {}

const fn split(at: Offset) -> (u32, u32) {
    ((at.get() >> 32) as u32, at.get() as u32)
}

const fn join(high: u32, low: u32) -> Offset {
    Offset::new(((high as u64) << 32) | low as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Places on both sides of a border between two bitmaps.
    fn place(n: u64) -> Offset {
        Offset::new((1 << 32) - 8 + n)
    }

    fn check(acked: &Acked, model: &BTreeSet<Offset>) {
        assert_eq!(acked.len(), model.len() as u64);
        assert_eq!(acked.is_empty(), model.is_empty());
        let listed: Vec<_> = acked.ranges().collect();
        assert!(listed.windows(2).all(|pair| pair[0].end < pair[1].start), "no two touch");
        let spread = listed.iter().flat_map(|r| (r.start.get()..r.end.get()).map(Offset::new));
        assert!(spread.eq(model.iter().copied()), "{listed:?} {model:?}");
        for at in (0..18).map(place) {
            assert_eq!(acked.contains(at), model.contains(&at));
            assert_eq!(acked.first_from(at), model.range(at..).next().copied());
            let mut end = at;
            while model.contains(&end) {
                end = end.plus(1);
            }
            assert_eq!(acked.end_of_run(at), end);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Range(u64, u64),
        RemoveBefore(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..16_u64).prop_map(Step::Insert),
            2 => (0..16_u64, 0..6_u64).prop_map(|(from, n)| Step::Range(from, n)),
            1 => (0..16_u64).prop_map(Step::RemoveBefore),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_set_across_the_border_of_two_bitmaps(
            steps in prop::collection::vec(step(), 0..24)
        ) {
            let (mut acked, mut model) = (Acked::default(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Insert(n) => {
                        prop_assert_eq!(acked.insert(place(n)), model.insert(place(n)));
                    }
                    Step::Range(from, n) => {
                        acked.insert_range(place(from)..place(from + n));
                        model.extend((from..from + n).map(place));
                    }
                    Step::RemoveBefore(n) => {
                        acked.remove_before(place(n));
                        model = model.split_off(&place(n));
                    }
                }
                check(&acked, &model);
            }
        }
    }
}
