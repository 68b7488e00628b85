//! What the world does to messages, drawn from the seed; and the log of all that happened.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use fastrand::Rng;
use georepl_storage::BookieId;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The sky over one run: every draw comes from here, in the order of the run.
pub struct Weather {
    state: Mutex<State>,
    started: Instant,
    log: Log,
}

/// Whether the log is only digested, or shown as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    Digest,
    Show,
}

struct State {
    rng: Rng,
    season: Season,
    ways: BTreeMap<BookieId, Way>,
    session: Session,
    /// How many sessions with the store have been lost.
    sessions_lost: u64,
    requests_refused: u64,
    digest: DefaultHasher,
    events: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Season {
    /// Messages are lost, late and doubled, and so are the store's.
    Storm,
    /// Messages take their time, nothing more.
    Fair,
    /// Nothing fails any more.
    Calm,
}

/// What is wrong with the way to one bookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Requests are carried out, nobody hears of it.
    Mute,
    /// Everything takes about a second.
    Slow,
    /// Every other request is refused: there are too many.
    Overloaded,
}

/// Whether the store can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    Held,
    /// What is asked fails at once, and what was asked before has an unknown outcome.
    Lost,
}

/// When the copies of a message arrive; none if it is lost.
pub type Arrivals = Vec<Arrival>;

#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub after: Duration,
    /// Whether it may overtake what was sent before it and be overtaken, as on a connection given up long ago.
    pub stray: bool,
}

/// What becomes of one operation of the store.
#[derive(Clone, Copy, Debug)]
pub struct StoreFate {
    /// When it is carried out; none if it never is.
    pub carried_out: Option<Duration>,
    /// How long the answer takes; none if it is lost.
    pub answered: Option<Duration>,
    /// Whether a read sees what was there before.
    pub stale: bool,
    /// Of which session the answer is.
    session: u64,
}

impl Weather {
    pub fn new(rng: Rng, log: Log) -> Self {
        let (ways, digest) = (BTreeMap::new(), DefaultHasher::new());
        let (season, session) = (Season::Fair, Session::Held);
        let state = State {
            rng,
            season,
            ways,
            session,
            sessions_lost: 0,
            requests_refused: 0,
            digest,
            events: 0,
        };
        Self { state: Mutex::new(state), started: Instant::now(), log }
    }

    pub fn set_season(&self, season: Season) {
        let mut state = self.state.lock();
        state.season = season;
        if season == Season::Calm {
            state.ways.clear();
            state.session = Session::Held;
        }
    }

    pub fn is_calm(&self) -> bool {
        self.state.lock().season == Season::Calm
    }

    pub fn set_way(&self, bookie: &BookieId, way: Option<Way>) {
        let mut state = self.state.lock();
        match way {
            Some(way) => state.ways.insert(bookie.clone(), way),
            None => state.ways.remove(bookie),
        };
    }

    /// Whoever is asking the store when the session is lost does not hear of the outcome, also when it is regained.
    pub fn set_session(&self, session: Session) {
        let mut state = self.state.lock();
        state.sessions_lost += u64::from(session == Session::Lost);
        state.session = session;
    }

    /// Whether a bookie has too much to do for the request that has reached it.
    pub fn refuses(&self, bookie: &BookieId) -> bool {
        let mut state = self.state.lock();
        let refuses = state.ways.get(bookie) == Some(&Way::Overloaded) && state.rng.bool();
        state.requests_refused += u64::from(refuses);
        refuses
    }

    /// How many requests were refused, and how many sessions with the store lost.
    pub fn refused_and_lost(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.requests_refused, state.sessions_lost)
    }

    /// Draws from the run's generator.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.state.lock().rng)
    }

    pub fn request(&self, bookie: &BookieId) -> Arrivals {
        let mut state = self.state.lock();
        let way = state.ways.get(bookie).copied();
        state.message(way.filter(|way| *way == Way::Slow))
    }

    pub fn response(&self, bookie: &BookieId) -> Arrivals {
        let mut state = self.state.lock();
        match state.ways.get(bookie).copied() {
            Some(Way::Mute) => Vec::new(),
            way => state.message(way),
        }
    }

    /// What becomes of the next operation of the store; none if there is no session to ask in.
    pub fn store(&self) -> Option<StoreFate> {
        let mut state = self.state.lock();
        let State { rng, season, session: held, sessions_lost, .. } = &mut *state;
        let quick = Some(Duration::from_millis(rng.u64(1..=8)));
        let session = *sessions_lost;
        let fate = StoreFate { carried_out: quick, answered: quick, stale: false, session };
        if *held == Session::Lost {
            return None;
        }
        if *season != Season::Storm {
            return Some(fate);
        }
        Some(match rng.u8(..100) {
            0..4 => StoreFate { carried_out: None, answered: None, ..fate },
            4..8 => StoreFate { answered: None, ..fate },
            // Later than its caller waits.
            8..12 => StoreFate {
                carried_out: Some(Duration::from_millis(rng.u64(2_000..25_000))),
                ..fate
            },
            12..16 => StoreFate { stale: true, ..fate },
            _ => fate,
        })
    }

    /// Whether the session in which something was asked of the store has been lost.
    pub fn is_lost(&self, fate: &StoreFate) -> bool {
        self.state.lock().sessions_lost != fate.session
    }

    /// Remembers that something happened.
    pub fn note(&self, event: fmt::Arguments<'_>) {
        let at = self.started.elapsed().as_millis();
        let line = format!("{at:>7} {event}");
        let mut state = self.state.lock();
        line.hash(&mut state.digest);
        state.events += 1;
        if self.log == Log::Show {
            println!("{line}");
        }
    }

    /// The digest of all that was noted, and how much that was.
    pub fn trace(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.digest.finish(), state.events)
    }
}

impl State {
    fn message(&mut self, way: Option<Way>) -> Arrivals {
        let Self { rng, season, .. } = self;
        let millis = if way == Some(Way::Slow) { rng.u64(300..2_000) } else { rng.u64(1..=10) };
        let arrival = Arrival { after: Duration::from_millis(millis), stray: false };
        if *season != Season::Storm {
            return vec![arrival];
        }
        let stray = |rng: &mut Rng| Arrival {
            after: Duration::from_millis(rng.u64(10..20_000)),
            stray: true,
        };
        match rng.u8(..100) {
            0..4 => Vec::new(),
            4..7 => vec![stray(rng)],
            7..9 => vec![arrival, stray(rng)],
            _ => vec![arrival],
        }
    }
}
