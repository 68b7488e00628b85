//! What befalls the bookies, the ways to them and the store, one thing after the other.

use std::collections::BTreeSet;

use georepl_storage::bookie_rules::Mode;
use georepl_storage::{BookieId, BookieRegistry, Instance, LedgerId, RegisteredBookie};

use crate::run::{Assumption, World, idle};
use crate::weather::{Season, Session, Way};

#[derive(Clone, Copy, Debug)]
enum Misfortune {
    Down,
    Up,
    Restart,
    /// The bookie comes back empty.
    Wipe,
    /// A bit of one of its copies is another.
    Corrupt,
    /// It doubts whether it still has all of the ledger.
    Limbo,
    ReadOnly,
    Writable,
    Mute,
    Slow,
    Overloaded,
    ClearWay,
    Storm,
    Fair,
    SessionLost,
    SessionRegained,
}

/// What is named twice happens twice as often. Luck is more frequent than what it ends.
const MISFORTUNES: [Misfortune; 22] = [
    Misfortune::Down,
    Misfortune::Down,
    Misfortune::Up,
    Misfortune::Up,
    Misfortune::Up,
    Misfortune::Restart,
    Misfortune::Wipe,
    Misfortune::Corrupt,
    Misfortune::Corrupt,
    Misfortune::Limbo,
    Misfortune::ReadOnly,
    Misfortune::Writable,
    Misfortune::Mute,
    Misfortune::Slow,
    Misfortune::Overloaded,
    Misfortune::ClearWay,
    Misfortune::ClearWay,
    Misfortune::Storm,
    Misfortune::Fair,
    Misfortune::SessionLost,
    Misfortune::SessionRegained,
    Misfortune::SessionRegained,
];

/// Who may lose copies, or what it knows of them. Of the holders of an entry at most AQ - 1 do, and they are taken to
/// be the same ones for all entries.
struct Losers {
    assumption: Assumption,
    bookies: BTreeSet<BookieId>,
    at_most: usize,
}

impl Losers {
    fn admit(&mut self, bookie: &BookieId) -> bool {
        match self.assumption {
            Assumption::Broken => true,
            Assumption::Kept => {
                if self.bookies.len() < self.at_most {
                    self.bookies.insert(bookie.clone());
                }
                self.bookies.contains(bookie)
            }
        }
    }
}

impl World {
    pub async fn misfortunes(self, ledger: LedgerId, assumption: Assumption) {
        let ids: Vec<_> = self.registry.bookies().borrow().iter().map(|b| b.id.clone()).collect();
        let at_most = self.sizes.ack() - 1;
        let mut losers = Losers { assumption, bookies: BTreeSet::new(), at_most };
        loop {
            idle(self.millis(50..4_000)).await;
            let bookie = &ids[self.weather.draw(|rng| rng.usize(..ids.len()))];
            let what = MISFORTUNES[self.weather.draw(|rng| rng.usize(..MISFORTUNES.len()))];
            self.weather.note(format_args!("misfortune {what:?} of {bookie}"));
            self.befall(ledger, bookie, what, &mut losers);
        }
    }

    fn befall(&self, ledger: LedgerId, bookie: &BookieId, what: Misfortune, losers: &mut Losers) {
        match what {
            Misfortune::Down => self.down(bookie),
            Misfortune::Up => self.up(bookie),
            Misfortune::Restart => self.bookies.restart(bookie),
            Misfortune::Wipe if losers.admit(bookie) => self.wipe(bookie, losers.assumption),
            Misfortune::Corrupt if losers.admit(bookie) => self.corrupt(ledger, bookie),
            Misfortune::Limbo if losers.admit(bookie) => self.bookies.enter_limbo(bookie, ledger),
            Misfortune::Wipe | Misfortune::Corrupt | Misfortune::Limbo => {}
            Misfortune::ReadOnly => self.set_mode(bookie, Mode::ReadOnly),
            Misfortune::Writable => self.set_mode(bookie, Mode::Writable),
            Misfortune::Mute => self.weather.set_way(bookie, Some(Way::Mute)),
            Misfortune::Slow => self.weather.set_way(bookie, Some(Way::Slow)),
            Misfortune::Overloaded => self.weather.set_way(bookie, Some(Way::Overloaded)),
            Misfortune::ClearWay => self.weather.set_way(bookie, None),
            Misfortune::Storm => self.weather.set_season(Season::Storm),
            Misfortune::Fair => self.weather.set_season(Season::Fair),
            Misfortune::SessionLost => self.weather.set_session(Session::Lost),
            Misfortune::SessionRegained => self.weather.set_session(Session::Held),
        }
    }

    fn down(&self, bookie: &BookieId) {
        self.bookies.down(bookie);
        if self.weather.draw(fastrand::Rng::bool) {
            self.registry.unregister(bookie);
        }
    }

    pub fn up(&self, bookie: &BookieId) {
        self.bookies.up(bookie);
        self.register(bookie);
    }

    fn wipe(&self, bookie: &BookieId, assumption: Assumption) {
        let instance = match assumption {
            Assumption::Kept => {
                self.oracle.losing(bookie, &self.oracle.held(bookie));
                Instance(self.bookies.instance(bookie).expect("a bookie of ours").0 + 1)
            }
            // Nobody is told.
            Assumption::Broken => Instance(1),
        };
        self.bookies.wipe(bookie, instance);
        self.register(bookie);
    }

    fn corrupt(&self, ledger: LedgerId, bookie: &BookieId) {
        let held = self.oracle.held(bookie);
        let Some(entry) = self.weather.draw(|rng| rng.choice(&held).copied()) else { return };
        self.oracle.losing(bookie, &[entry]);
        self.bookies.corrupt_entry(bookie, ledger, entry);
        self.oracle.count(|counts| counts.copies_damaged += 1);
    }

    fn set_mode(&self, bookie: &BookieId, mode: Mode) {
        self.bookies.set_mode(bookie, mode);
        let listed = self.registry.bookies().borrow().iter().find(|b| b.id == *bookie).cloned();
        if let Some(listed) = listed {
            self.registry.register(RegisteredBookie { mode, ..listed });
        }
    }

    fn register(&self, bookie: &BookieId) {
        let instance = self.bookies.instance(bookie).expect("a bookie of ours");
        self.bookies.set_mode(bookie, Mode::Writable);
        let (id, mode) = (bookie.clone(), Mode::Writable);
        self.registry.register(RegisteredBookie { id, instance, mode });
    }
}
