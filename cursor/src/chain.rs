//! The ledgers of a topic, in order, and the arithmetic between positions and offsets.
//!
//! ```text
//!   ledger   3           5      8  9                 12 (open)
//!          ┌───────────┬──────┬──┬─────────────────┬──────────
//!   offset 0           4      6  6                 11     end
//! ```
//!
//! An empty ledger holds no offset, so every entry has exactly one position and one offset, and
//! "the end of one ledger" and "the start of the next" are the same place. All that is decided
//! about order and distance is decided on offsets.

use georepl_storage::{EntryId, LedgerId};

use crate::position::{Offset, Place, Position};

/// What is known of one ledger of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LedgerInfo {
    /// The ledger.
    pub ledger: LedgerId,
    /// Confirmed entries.
    pub entries: u64,
    /// Bytes of payload in them.
    pub bytes: u64,
    /// Whether it grows.
    pub state: LedgerState,
}

/// Whether a ledger of a topic grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LedgerState {
    /// It is the last one, and entries are added to it.
    Open,
    /// It has all the entries it will ever have.
    Closed,
}

/// Ledgers must be chained in the order of their ids, which is the order of their creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ledger {next} does not follow ledger {last}: the ids of a topic's ledgers ascend; \
     the topic's record or the store's id allocation is damaged"
)]
pub struct LedgerOutOfOrder {
    /// The last ledger of the chain.
    pub last: LedgerId,
    /// The one that was to follow.
    pub next: LedgerId,
}

/// The part of a range of offsets that lies in one ledger; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The ledger, as it is now.
    pub info: LedgerInfo,
    /// Its first entry in the range.
    pub first: EntryId,
    /// Its last entry in the range.
    pub last: EntryId,
}

/// Where a stored place lies in the topic as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// Here.
    At(Offset),
    /// Before the first ledger, which is here: what lies between was deleted.
    Trimmed(Offset),
    /// Behind the last entry, which is here: the topic has lost entries, or never had them.
    Beyond(Offset),
}

impl Located {
    /// The nearest place that the topic has.
    pub const fn offset(self) -> Offset {
        match self {
            Self::At(offset) | Self::Trimmed(offset) | Self::Beyond(offset) => offset,
        }
    }

    /// Whether it was deleted from the topic.
    pub const fn is_trimmed(self) -> bool {
        matches!(self, Self::Trimmed(_))
    }
}

/// The ordered ledgers of a topic. At most the last one is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    links: Vec<Link>,
    bytes: u64,
    /// Where the ledgers that were taken out ended.
    trimmed: Offset,
    trimmed_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    info: LedgerInfo,
    base: Offset,
    /// Bytes of payload in the ledgers before it, also in those that were taken out.
    bytes_before: u64,
}

impl Link {
    fn end(&self) -> Offset {
        self.base.plus(self.info.entries)
    }

    fn bytes_end(&self) -> u64 {
        self.bytes_before + self.info.bytes
    }
}

impl Chain {
    /// A chain without ledgers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a closed ledger behind the others.
    ///
    /// # Errors
    /// When its id is not above the last one's.
    ///
    /// # Panics
    /// When the last ledger is open.
    pub fn push_closed(
        &mut self,
        ledger: LedgerId,
        entries: u64,
        bytes: u64,
    ) -> Result<(), LedgerOutOfOrder> {
        self.push(LedgerInfo { ledger, entries, bytes, state: LedgerState::Closed })?;
        self.bytes += bytes;
        Ok(())
    }

    /// Adds an open ledger behind the others.
    ///
    /// # Errors
    /// When its id is not above the last one's.
    ///
    /// # Panics
    /// When the last ledger is open.
    pub fn push_open(&mut self, ledger: LedgerId) -> Result<(), LedgerOutOfOrder> {
        self.push(LedgerInfo { ledger, entries: 0, bytes: 0, state: LedgerState::Open })
    }

    /// Counts entries that were confirmed in the open ledger.
    ///
    /// # Panics
    /// When no ledger is open.
    pub fn confirm(&mut self, entries: u64, bytes: u64) {
        let open = self.open_link();
        open.info.entries += entries;
        open.info.bytes += bytes;
        self.bytes += bytes;
    }

    /// Closes the open ledger: what is confirmed is all it will ever have.
    ///
    /// # Panics
    /// When no ledger is open.
    pub fn close_last(&mut self) {
        self.open_link().info.state = LedgerState::Closed;
    }

    /// The place of the first entry that was not deleted.
    pub fn start(&self) -> Offset {
        self.links.first().map_or(self.trimmed, |link| link.base)
    }

    /// Takes the oldest ledgers out, up to and without `first`. Places stay what they were.
    ///
    /// # Panics
    /// When the chain does not have `first`.
    pub fn trim(&mut self, first: LedgerId) {
        let at = self.links.binary_search_by_key(&first, |link| link.info.ledger);
        let at = at.expect("a ledger of the chain stays");
        for link in self.links.drain(..at) {
            self.bytes -= link.info.bytes;
            self.trimmed = link.end();
            self.trimmed_bytes = link.bytes_end();
        }
    }

    /// The place behind the last confirmed entry: the number of entries.
    pub fn end(&self) -> Offset {
        self.links.last().map_or(self.trimmed, Link::end)
    }

    /// Bytes of payload in all entries.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of payload from `from` on, about: an entry counts as the average of its ledger.
    pub fn bytes_from(&self, from: Offset) -> u64 {
        let Some(link) = self.links.get(self.index_of(from.max(self.start()))) else { return 0 };
        let before = u128::from(link.info.bytes) * u128::from(from.since(link.base));
        let before = (before / u128::from(link.info.entries)) as u64;
        self.links.last().map_or(0, Link::bytes_end) - link.bytes_before - before
    }

    /// The position of the last confirmed entry.
    pub fn last_confirmed(&self) -> Option<Position> {
        self.position_of(Offset::new(self.end().get().checked_sub(1)?))
    }

    /// The place of an entry in the topic; none when the topic has no such entry.
    pub fn offset_of(&self, position: Position) -> Option<Offset> {
        let at = self.links.binary_search_by_key(&position.ledger, |link| link.info.ledger);
        let link = &self.links[at.ok()?];
        let entry = position.entry.get();
        (entry < link.info.entries).then(|| link.base.plus(entry))
    }

    /// The position of the entry at an offset; none before the first entry, and none at and beyond
    /// the end.
    pub fn position_of(&self, offset: Offset) -> Option<Position> {
        if offset < self.start() {
            return None;
        }
        let link = self.links.get(self.index_of(offset))?;
        Some(Position::new(link.info.ledger, EntryId(offset.since(link.base))))
    }

    /// The place at an offset, as it is stored: behind the entry before it, or before the first
    /// entry of the first ledger. None in a chain without ledgers.
    pub fn place_of(&self, offset: Offset) -> Option<Place> {
        let before = offset.get().checked_sub(1).and_then(|at| self.position_of(Offset::new(at)));
        let first = self.links.first().map(|link| Place { ledger: link.info.ledger, entries: 0 });
        before.map(Place::after).or(first)
    }

    /// Where a stored place lies. In a ledger that is missing between two others there was nothing.
    pub fn locate(&self, place: Place) -> Located {
        let at = self.links.partition_point(|link| link.info.ledger < place.ledger);
        match self.links.get(at) {
            // Behind all there is lies only what is empty.
            None if place.entries == 0 => Located::At(self.end()),
            None => Located::Beyond(self.end()),
            Some(link) if link.info.ledger > place.ledger && at == 0 => Located::Trimmed(link.base),
            Some(link) if link.info.ledger > place.ledger => Located::At(link.base),
            Some(link) if place.entries <= link.info.entries => {
                Located::At(link.base.plus(place.entries))
            }
            Some(link) => Located::Beyond(link.end()),
        }
    }

    /// The first part of the range `from..to` that lies in one ledger; none when no entry of the
    /// topic is in the range, or `from` lies before the first.
    pub fn first_segment(&self, from: Offset, to: Offset) -> Option<Segment> {
        if from < self.start() {
            return None;
        }
        let link = self.links.get(self.index_of(from))?;
        let entries = to.min(link.end()).since(from);
        let first = from.since(link.base);
        let last = first + entries.checked_sub(1)?;
        Some(Segment { info: link.info, first: EntryId(first), last: EntryId(last) })
    }

    /// The ledgers, oldest first.
    pub fn ledgers(&self) -> impl DoubleEndedIterator<Item = LedgerInfo> + ExactSizeIterator {
        self.links.iter().map(|link| link.info)
    }

    /// The index of the ledger that holds `offset`: the first that ends behind it, which is
    /// never an empty one. Readers at the tail ask for the last ledger, so that one is tried
    /// before the others are searched.
    fn index_of(&self, offset: Offset) -> usize {
        match self.links.last() {
            Some(last) if offset >= last.base && offset < last.end() => self.links.len() - 1,
            _ => self.links.partition_point(|link| link.end() <= offset),
        }
    }

    fn push(&mut self, info: LedgerInfo) -> Result<(), LedgerOutOfOrder> {
        if let Some(last) = self.links.last() {
            assert_eq!(last.info.state, LedgerState::Closed, "only the last ledger may be open");
            let (last, next) = (last.info.ledger, info.ledger);
            if next <= last {
                return Err(LedgerOutOfOrder { last, next });
            }
        }
        let bytes_before = self.links.last().map_or(self.trimmed_bytes, Link::bytes_end);
        self.links.push(Link { info, base: self.end(), bytes_before });
        Ok(())
    }

    fn open_link(&mut self) -> &mut Link {
        let last = self.links.last_mut();
        last.filter(|link| link.info.state == LedgerState::Open).expect("the last ledger is open")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(ledger: u64, entry: u64) -> Position {
        Position::new(LedgerId(ledger), EntryId(entry))
    }

    /// The topic as a plain list of its entries.
    fn model(entries: &[u64]) -> Vec<Position> {
        let ledgers = entries.iter().enumerate();
        ledgers.flat_map(|(i, &n)| (0..n).map(move |e| position(ledger_id(i), e))).collect()
    }

    /// Ids with gaps, as allocation leaves them.
    fn ledger_id(index: usize) -> u64 {
        3 + 2 * index as u64
    }

    fn build(entries: &[u64]) -> Chain {
        let mut chain = Chain::new();
        for (i, &n) in entries.iter().enumerate() {
            let ledger = LedgerId(ledger_id(i));
            if i % 2 == 0 {
                chain.push_closed(ledger, n, 10 * n).unwrap();
            } else {
                chain.push_open(ledger).unwrap();
                (0..n).for_each(|_| chain.confirm(1, 10));
                chain.close_last();
            }
        }
        chain
    }

    fn check_against_model(entries: &[u64]) {
        let (chain, model) = (build(entries), model(entries));
        assert_eq!(chain.end(), Offset::new(model.len() as u64));
        assert_eq!(chain.bytes(), 10 * model.len() as u64);
        assert_eq!(chain.last_confirmed(), model.last().copied());
        for (at, &expected) in model.iter().enumerate() {
            let offset = Offset::new(at as u64);
            assert_eq!(chain.position_of(offset), Some(expected));
            assert_eq!(chain.offset_of(expected), Some(offset));
        }
        assert_eq!(chain.position_of(chain.end()), None);
        for at in 0..=model.len() as u64 {
            assert_eq!(chain.bytes_from(Offset::new(at)), 10 * (model.len() as u64 - at));
        }
        for ledger in 0..=ledger_id(entries.len()) {
            for entry in 0..=4 {
                let asked = position(ledger, entry);
                let known = model.iter().position(|p| *p == asked);
                assert_eq!(chain.offset_of(asked), known.map(|at| Offset::new(at as u64)));
            }
        }
        for from in 0..=model.len() {
            for to in 0..=model.len() + 1 {
                check_segments(&chain, &model, from, to);
            }
        }
    }

    /// The segments of a range, put together, are the range.
    fn check_segments(chain: &Chain, model: &[Position], from: usize, to: usize) {
        let mut seen = Vec::new();
        let (mut at, to_offset) = (Offset::new(from as u64), Offset::new(to as u64));
        while let Some(segment) = chain.first_segment(at, to_offset) {
            let ids = segment.first.get()..=segment.last.get();
            seen.extend(ids.map(|e| position(segment.info.ledger.get(), e)));
            at = Offset::new((from + seen.len()) as u64);
        }
        let expected = model.get(from..to.min(model.len()).max(from)).unwrap_or(&[]);
        assert_eq!(seen, expected);
    }

    #[test]
    fn positions_and_offsets_agree_with_a_plain_list_for_every_small_chain() {
        for ledgers in 0..=5_u32 {
            for code in 0..4_u64.pow(ledgers) {
                let entries: Vec<_> = (0..ledgers).map(|i| code / 4_u64.pow(i) % 4).collect();
                check_against_model(&entries);
            }
        }
    }

    #[test]
    fn stored_places_are_found_again_and_those_that_are_gone_are_told_apart() {
        let chain = build(&[2, 0, 3]);
        let place = |ledger, entries| Place { ledger: LedgerId(ledger), entries };
        for at in (0..=5).map(Offset::new) {
            assert_eq!(chain.locate(chain.place_of(at).unwrap()), Located::At(at), "{at}");
        }
        let at = |n| Located::At(Offset::new(n));
        let table = [
            (place(2, 9), Located::Trimmed(Offset::ZERO)),
            (place(3, 0), at(0)),
            (place(3, 2), at(2)),
            (place(3, 3), Located::Beyond(Offset::new(2))),
            (place(4, 0), at(2)),
            (place(5, 0), at(2)),
            (place(6, 0), at(2)),
            (place(7, 3), at(5)),
            (place(7, 4), Located::Beyond(Offset::new(5))),
            (place(8, 0), at(5)),
            (place(8, 1), Located::Beyond(Offset::new(5))),
        ];
        for (place, expected) in table {
            assert_eq!(chain.locate(place), expected, "{place}");
        }
        assert_eq!(Chain::new().place_of(Offset::ZERO), None);
        assert_eq!(place(3, 0).to_string(), "3:-1");
        assert_eq!(place(3, 2).to_string(), "3:1");
    }

    #[test]
    fn trimming_takes_ledgers_and_leaves_every_place_where_it_was() {
        let mut chain = build(&[2, 0, 3]);
        chain.trim(LedgerId(3));
        assert_eq!(chain.start(), Offset::ZERO, "nothing lies before the first");
        chain.trim(LedgerId(7));
        assert_eq!(
            (chain.start(), chain.end(), chain.bytes()),
            (Offset::new(2), Offset::new(5), 30)
        );
        assert_eq!(chain.position_of(Offset::new(1)), None);
        assert_eq!(chain.position_of(Offset::new(2)), Some(position(7, 0)));
        assert_eq!(chain.offset_of(position(3, 0)), None);
        assert_eq!(chain.first_segment(Offset::new(1), Offset::new(4)), None);
        let gone = Place { ledger: LedgerId(3), entries: 1 };
        assert_eq!(chain.locate(gone), Located::Trimmed(Offset::new(2)));
        assert_eq!(chain.place_of(Offset::new(2)), Some(Place { ledger: LedgerId(7), entries: 0 }));
    }

    #[test]
    fn the_open_ledger_grows_and_is_followed_by_the_next() {
        let mut chain = Chain::new();
        chain.push_open(LedgerId(7)).unwrap();
        assert_eq!(chain.last_confirmed(), None);
        chain.confirm(2, 30);
        assert_eq!(chain.last_confirmed(), Some(position(7, 1)));
        chain.close_last();
        chain.push_open(LedgerId(9)).unwrap();
        assert_eq!(chain.last_confirmed(), Some(position(7, 1)), "the new ledger is empty");
        chain.confirm(1, 5);
        assert_eq!(chain.position_of(Offset::new(2)), Some(position(9, 0)));
        assert_eq!((chain.end(), chain.bytes()), (Offset::new(3), 35));
    }

    #[test]
    fn ledgers_out_of_order_are_refused_by_name() {
        let mut chain = Chain::new();
        chain.push_closed(LedgerId(7), 1, 1).unwrap();
        for next in [6, 7] {
            let refused = chain.push_open(LedgerId(next)).unwrap_err();
            assert_eq!(refused, LedgerOutOfOrder { last: LedgerId(7), next: LedgerId(next) });
        }
        assert_eq!(chain.end(), Offset::new(1), "nothing changed");
    }
}
