//! Two recoveries of one ledger at once, among random losses, delays and deaths, on bookies that keep the rules.

use fastrand::Rng;

use super::*;
use crate::bookie::rules::{self, LedgerRecord, RecordChange};

/// Losses end after so many steps; then everything has to finish.
const STEPS_WITH_FAULTS: usize = 60;
const STEPS_MAX: usize = 20_000;

#[derive(Default)]
struct Bookie {
    record: Option<LedgerRecord>,
    entries: BTreeMap<EntryId, Entry>,
    is_dead: bool,
}

struct World {
    rng: Rng,
    bookies: BTreeMap<BookieId, Bookie>,
    record: (LedgerMetadata, Version),
    /// All that was ever written.
    originals: Vec<Entry>,
    recoverers: [Recoverer; 2],
    ends: Vec<LedgerEnd>,
}

struct Recoverer {
    recovery: Recovery,
    responses: Vec<Response>,
    has_closed: bool,
}

impl Recoverer {
    fn new(registry: &[RegisteredBookie], now: Time) -> Self {
        let mut recovery = Recovery::new(3, registry);
        recovery.now = now;
        Self { recovery, responses: Vec::new(), has_closed: false }
    }
}

impl World {
    /// A dead writer: `acked` entries with AQ copies at least, then some with fewer, on bookies b1 to b6.
    fn new(seed: u64) -> (Self, usize) {
        let mut rng = Rng::with_seed(seed);
        let (ensemble, write, ack) = [(3, 3, 2), (4, 2, 2), (3, 3, 3)][rng.usize(..3)];
        let names = ["b1", "b2", "b3", "b4"][..ensemble].join(" ");
        let record = open(write, ack, &[(0, &names)]);
        let (acked, unacked) = (rng.usize(..4), rng.usize(..3));
        let mut bookies: BTreeMap<BookieId, Bookie> =
            members("b1 b2 b3 b4 b5 b6").into_iter().map(|id| (id, Bookie::default())).collect();
        let mut originals = Vec::new();
        for id in 0..acked + unacked {
            let lac = (id.min(acked) as u64).checked_sub(1 + rng.u64(..2)).map(EntryId);
            let length = (id as u64 + 1) * 10;
            let entry = Entry::seal(LEDGER, EntryId(id as u64), lac, length, "ten  bytes".into());
            let mut slots: Vec<_> = record.sizes().write_set(entry.entry()).collect();
            rng.shuffle(&mut slots);
            let copies = if id < acked { rng.usize(ack..=write) } else { rng.usize(..ack) };
            for slot in &slots[..copies] {
                let holder = &record.last_ensemble().1[slot.index()];
                let holder = bookies.get_mut(holder).expect("members exist");
                holder.entries.insert(entry.entry(), entry.clone());
                let change = rules::add(None, Mode::Writable, key(), AddKind::Normal);
                if let Ok(RecordChange::Write(record)) = change {
                    holder.record = Some(record);
                }
            }
            originals.push(entry);
        }
        if ack > 1 && rng.bool() {
            let dead = rng.usize(..ensemble);
            bookies.values_mut().nth(dead).expect("members come first").is_dead = true;
        }
        let recoverers = [(); 2].map(|()| Recoverer::new(&registry(&mut rng), at(0)));
        let record = (record, Version(1));
        (Self { rng, bookies, record, originals, recoverers, ends: Vec::new() }, acked)
    }

    fn step(&mut self, number: usize, faults: bool) {
        let lost = faults && self.rng.u8(..8) == 0;
        let recoverer = &mut self.recoverers[number];
        let (sent, responses) = (recoverer.recovery.sent.len(), recoverer.responses.len());
        if faults && recoverer.recovery.machine.wake_at().is_some() && self.rng.u8(..16) == 0 {
            // While answers are on their way, which are late then.
            recoverer.recovery.wake();
        } else if recoverer.recovery.asked.is_some() {
            self.answer_question(number, lost);
        } else if sent > 0 && (responses == 0 || self.rng.bool()) {
            let (bookie, request) = recoverer.recovery.sent.remove(self.rng.usize(..sent));
            let response = self.carry_out(bookie, request);
            if let Some(response) = response.filter(|_| !lost) {
                self.recoverers[number].responses.push(response);
            }
        } else if responses > 0 {
            let response = recoverer.responses.remove(self.rng.usize(..responses));
            recoverer.recovery.handle(Input::Responses(&mut vec![response]));
        } else if recoverer.recovery.outcome.is_none() {
            recoverer.recovery.wake();
        }
        self.settle(number);
    }

    /// A recovery that failed is begun anew.
    fn settle(&mut self, number: usize) {
        let recoverer = &mut self.recoverers[number];
        match recoverer.recovery.outcome.take() {
            None => {}
            Some(Ok(recovered)) => {
                recoverer.has_closed = true;
                let LedgerState::Closed(end) = recovered.record.state() else {
                    panic!("a recovered ledger is closed");
                };
                self.ends.push(end);
            }
            Some(Err(error)) => {
                assert_eq!(error.advice(), crate::Advice::Retry, "{error}");
                let now = recoverer.recovery.now;
                let registry = registry(&mut self.rng);
                self.recoverers[number] = Recoverer::new(&registry, now);
            }
        }
    }

    fn answer_question(&mut self, number: usize, lost: bool) {
        let recovery = &mut self.recoverers[number].recovery;
        let answer = match recovery.asked.clone().expect("a question was seen") {
            RecordRequest::Read => {
                RecordAnswer::Found(Arc::new(self.record.0.clone()), self.record.1)
            }
            RecordRequest::Write { record, expected } if expected == self.record.1 => {
                self.record = ((*record).clone(), Version(expected.0 + 1));
                RecordAnswer::Written(self.record.1)
            }
            RecordRequest::Write { .. } => RecordAnswer::Conflict,
        };
        recovery.record(if lost { RecordAnswer::Unknown("lost".into()) } else { answer });
    }

    fn carry_out(&mut self, id: BookieId, request: Request) -> Option<Response> {
        let bookie = self.bookies.get_mut(&id).expect("all are known");
        if bookie.is_dead {
            return None;
        }
        let fence = |bookie: &mut Bookie, key: Option<MasterKey>| {
            let change = rules::fence(bookie.record.as_ref(), key.expect("recoveries fence"));
            if let RecordChange::Write(record) = change.expect("the right key") {
                bookie.record = Some(record);
            }
        };
        let result = match request.body {
            RequestBody::ReadLac { fence: key } => {
                fence(bookie, key);
                let highest = bookie.entries.values().next_back();
                rules::last_add_confirmed(bookie.record.as_ref(), highest)
                    .map(|lac| ResponseBody::LastAddConfirmed { lac })
            }
            RequestBody::Read { entry, fence: key } => {
                if key.is_some() {
                    fence(bookie, key);
                }
                let stored = bookie.entries.get(&entry);
                rules::read(bookie.record.as_ref(), stored).map(ResponseBody::Entry)
            }
            RequestBody::Add { entry, key, kind } => {
                let change = rules::add(bookie.record.as_ref(), Mode::Writable, key, kind);
                if let RecordChange::Write(record) = change.expect("recoveries may add") {
                    bookie.record = Some(record);
                }
                bookie.entries.insert(entry.entry(), entry);
                Ok(ResponseBody::Added)
            }
            other => panic!("a recovery does not send {other:?}"),
        };
        Some(Response { id: request.id, bookie: id, instance: None, result })
    }

    /// What must hold once the ledger is closed.
    fn check(&self, acked: usize) {
        let (record, _) = &self.record;
        let LedgerState::Closed(end) = record.state() else {
            panic!("both recoveries have ended");
        };
        assert!(self.ends.iter().all(|seen| *seen == end), "there is one end: {:?}", self.ends);
        let entries = EntryId::following(end.last_entry).get();
        assert!(entries >= acked as u64, "an acknowledged entry was cut");
        assert!(entries <= self.originals.len() as u64, "an entry was invented");
        let length = match record.length_is() {
            LengthIs::Exact => entries * 10,
            LengthIs::LowerBound => 0,
        };
        assert_eq!(end.length, length);
        for original in &self.originals[..entries as usize] {
            let members = record.ensemble_of(original.entry());
            let slots = record.sizes().write_set(original.entry());
            let copies = slots.filter_map(|slot| {
                self.bookies[&members[slot.index()]].entries.get(&original.entry())
            });
            let copies: Vec<_> = copies.collect();
            assert!(copies.len() >= record.sizes().ack(), "{original:?} has too few copies");
            assert!(copies.iter().all(|copy| *copy == original), "bytes were changed");
            assert!(original.lac() <= end.last_entry);
        }
    }
}

fn registry(rng: &mut Rng) -> Vec<RegisteredBookie> {
    let names = ["b1", "b2", "b3", "b4", "b5", "b6"];
    let mut registry = names.map(|name| registered(name, 1)).to_vec();
    rng.shuffle(&mut registry);
    registry
}

#[test]
fn two_recoveries_among_faults_agree_and_lose_nothing() {
    let (mut longer, mut cut) = (0, 0);
    for seed in 0..3_000 {
        let (mut world, acked) = World::new(seed);
        let mut steps = 0;
        while world.recoverers.iter().any(|recoverer| !recoverer.has_closed) {
            let number = world.rng.usize(..2);
            if !world.recoverers[number].has_closed {
                world.step(number, steps < STEPS_WITH_FAULTS);
            }
            steps += 1;
            assert!(steps < STEPS_MAX, "seed {seed} does not finish");
        }
        world.check(acked);
        let entries = EntryId::following(world.ends[0].last_entry).get() as usize;
        longer += usize::from(entries > acked);
        cut += usize::from(entries < world.originals.len());
    }
    assert!(longer > 100 && cut > 100, "both ends are met: {longer} longer, {cut} cut");
}
