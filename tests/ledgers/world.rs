//! One ledger: the shipped writer and recoveries, with a model of bookies, network and store.
//!
//! A request is carried out and answered in one step when it arrives; that an answer is late, or lost, or that a
//! request is lost, is a fault. Requests of one client to one bookie arrive in order. A timeout strikes when nothing
//! is under way that would end the wait, or as a fault. The registry's news reaches everybody at once. AutoRecovery is
//! a model as well (see [`repair`]), of which only the decision what may be repaired is shipped code.

mod bookie;
mod bounds;
mod client;
mod repair;
mod rules;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use georepl_storage::{
    AddKind, EntryId, LedgerId, LedgerMetadata, LedgerState, Password, QuorumSizes, RecordAnswer,
    RecordRequest, RegisteredBookie, Request, RequestBody, ResponseBody, Version,
};
use georepl_tests::explore;
use georepl_tests::shared::Shared;

use bookie::{Bookie, Presence, carry_out};
pub use bounds::{Action, Bounds, Writer};
use client::{Answer, Client, Input, Machine, Seat, Standing, Wish, arriving, step};
use repair::Underway;
pub use rules::mark;

const LEDGER: LedgerId = LedgerId(7);
const WRITER: usize = 0;

/// The record as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stored {
    record: Arc<LedgerMetadata>,
    version: Version,
}

/// Where everything is.
#[derive(Clone, Debug)]
pub struct World {
    bounds: Shared<Bounds>,
    seats: Vec<Seat>,
    bookies: Vec<Shared<Bookie>>,
    stored: Shared<Stored>,
    /// What was stored before it.
    replaced: Option<Shared<Stored>>,
    /// Writes that may still land.
    late_writes: Vec<Shared<RecordRequest>>,
    appended: u8,
    /// The last entry that was acknowledged to the application.
    acknowledged: Option<EntryId>,
    /// How many bookies were gone for the writer at once, at most.
    gone_at_once: usize,
    /// Per entry that is not acknowledged, bookies (bits) that took it from a writer that is said to have crashed.
    taken: Vec<u8>,
    /// And those that have told a living writer so, in the life that they have.
    told: Vec<u8>,
    /// The highest LAC that any reader could have learned.
    readable: Option<EntryId>,
    /// What may still go wrong.
    left: Shared<Bounds>,
    /// Bookies that something has happened to: the first of an ensemble. While all bookies of an ensemble hold
    /// every entry, it does not matter which of those that nothing has happened to is next.
    touched: usize,
    /// How often the writer has changed its ensemble.
    changes: u8,
    /// The repair that AutoRecovery is at, and how often it has changed the record.
    repair: Option<Underway>,
    moves: u8,
    broken: Option<String>,
}

/// Without what is the same in all situations of one exploration.
impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.seats, &self.bookies, &self.stored, &self.replaced).hash(state);
        (&self.late_writes, &self.taken, &self.told, &self.left).hash(state);
        (self.acknowledged, self.readable).hash(state);
        (self.appended, self.changes, self.gone_at_once, self.touched).hash(state);
        (&self.repair, self.moves).hash(state);
    }
}

impl World {
    pub fn new(bounds: Bounds) -> Self {
        let (ensemble, write_quorum, ack_quorum) = bounds.sizes;
        let sizes = QuorumSizes::new(ensemble, write_quorum, ack_quorum).expect("valid sizes");
        let bookies: Vec<_> = (0..bounds.bookies).map(Bookie::new).collect();
        let members = bookies[..ensemble].iter();
        let instances = members.clone().map(|bookie| (bookie.id.clone(), bookie.instance));
        let ids = members.clone().map(|bookie| bookie.id.clone()).collect();
        let custom = [("application".to_owned(), b"pulsar".to_vec())].into();
        let record = LedgerMetadata::created(sizes, Password::from("secret"), ids, 1, custom)
            .expect("valid")
            .with_instances(instances);
        let (record, version) = (Arc::new(record), Version(1));
        let writer = Machine::writer(record.clone(), version);
        let mut seats = vec![Seat::new(Client::Running(writer.into()), &bounds)];
        seats.resize(1 + bounds.recoverers, Seat::new(Client::Absent, &bounds));
        let mut world = Self {
            bounds: bounds.into(),
            seats,
            bookies: bookies.into_iter().map(Shared::from).collect(),
            stored: Stored { record, version }.into(),
            replaced: None,
            late_writes: Vec::new(),
            appended: 0,
            acknowledged: None,
            gone_at_once: 0,
            taken: vec![0; bounds.entries.into()],
            told: vec![0; bounds.entries.into()],
            readable: None,
            left: bounds.into(),
            touched: if ensemble == write_quorum { 0 } else { ensemble },
            changes: 0,
            repair: None,
            moves: 0,
            broken: None,
        };
        world.tell_registry();
        if bounds.writer == Writer::HasCrashed {
            (0..bounds.entries).for_each(|_| world.append());
            world.crash(WRITER, Client::Ended);
        }
        world
    }

    fn record(&self) -> &LedgerMetadata {
        &self.stored.record
    }

    fn registry(&self) -> Arc<[RegisteredBookie]> {
        let registered = self.bookies.iter().filter(|bookie| bookie.registered);
        registered.map(|bookie| bookie.registration()).collect()
    }

    fn tell_registry(&mut self) {
        let news = Input::Bookies(self.registry()).into();
        (0..self.seats.len()).for_each(|client| self.happens(client, &news));
    }

    fn append(&mut self) {
        self.appended += 1;
        self.happens(WRITER, &Input::Append(self.appended - 1).into());
    }

    fn start_recovery(&mut self, client: usize) {
        let machine = Machine::recovery(&self.bounds, self.registry());
        self.seats[client] = Seat {
            client: Client::Running(machine.into()),
            orphans: self.seats[client].orphans.clone(),
            ..Seat::new(Client::Absent, &self.bounds)
        };
        self.happens(client, &Input::Start.into());
    }

    /// Something happens to a client, and it gets what it wants.
    fn happens(&mut self, client: usize, input: &Shared<Input>) {
        let Some(machine) = self.seats[client].machine() else { return };
        let step = step(machine, input);
        self.seats[client].client = Client::Running(step.next.clone());
        let mut asked = None;
        for wish in &step.wishes {
            match wish {
                Wish::Send(bookie, request) => {
                    self.check_request(request);
                    self.seats[client].requests.push((*bookie, request.clone()));
                }
                Wish::Ask(question) => {
                    self.check_question(client, question);
                    asked = Some(question.clone());
                }
                Wish::Confirmed(through) => self.acknowledge(*through),
                Wish::Changed => self.changed(),
                Wish::Closed(state) => self.closed(client, *state),
                Wish::WriterFailed(error) => {
                    self.failed_writer(error);
                    self.check_afterlife(WRITER);
                    self.crash(WRITER, Client::Ended);
                    return;
                }
                Wish::RecoveryFailed(error) => {
                    self.failed_recovery(client, error);
                    self.leave_seat(client, Client::Absent);
                }
            }
        }
        if let Some(question) = asked {
            self.ask(client, question);
        }
    }

    /// A read that cannot go wrong is answered at once: what counts is when the write that follows arrives.
    fn ask(&mut self, client: usize, question: Shared<RecordRequest>) {
        if *question == RecordRequest::Read && self.left.record_faults == 0 {
            self.answer_question(client, &question);
        } else {
            self.seats[client].question = Some(question);
        }
    }

    fn answer_question(&mut self, client: usize, question: &RecordRequest) {
        let answer = self.ask_store(question);
        self.learn(client, answer);
    }

    fn learn(&mut self, client: usize, answer: RecordAnswer) {
        if let RecordAnswer::Found(record, _) = &answer
            && client == WRITER
            && (record.state() == LedgerState::InRecovery
                || record.state() != LedgerState::Open
                    && self.seats[WRITER].standing == Standing::Writing)
        {
            self.seats[WRITER].standing = Standing::Fenced;
        }
        self.happens(client, &Input::Record(answer).into());
    }

    fn ask_store(&mut self, question: &RecordRequest) -> RecordAnswer {
        let Stored { record, version } = &*self.stored;
        match question {
            RecordRequest::Read => RecordAnswer::Found(record.clone(), *version),
            RecordRequest::Write { record: next, expected } if expected == version => {
                let checked = self.check_write(next);
                self.store(next.clone());
                checked.unwrap_or_else(|broken| self.breaks(broken));
                RecordAnswer::Written(self.stored.version)
            }
            RecordRequest::Write { .. } => RecordAnswer::Conflict,
        }
    }

    fn store(&mut self, record: Arc<LedgerMetadata>) {
        let next = Stored { record, version: Version(self.stored.version.0 + 1) };
        self.replaced = Some(std::mem::replace(&mut self.stored, next.into()));
    }

    /// The bookie carries the request out.
    fn carry_out(&mut self, client: usize, index: usize) -> Answer {
        let (bookie, request) = self.seats[client].requests.remove(index);
        self.carry_out_request(bookie, request)
    }

    fn carry_out_request(&mut self, bookie: usize, request: Shared<Request>) -> Answer {
        self.touch(bookie);
        let carried = carry_out(&self.bookies[bookie], &request);
        self.bookies[bookie] = carried.bookie.clone();
        let message = carried.answer.clone();
        if let (RequestBody::Add { entry, kind: AddKind::Normal, .. }, Ok(_)) =
            (&request.body, &message.result)
        {
            self.taken[entry.entry().get() as usize] |= 1 << bookie;
            self.acknowledge_before_the_crash();
        }
        Answer { bookie, request, message, is_from_before: false }
    }

    /// A writer that is said to have crashed may have done so at any time: it may have acknowledged what AQ bookies
    /// have taken from it.
    fn acknowledge_before_the_crash(&mut self) {
        let next = EntryId::following(self.acknowledged);
        let taken = self.taken.get(next.get() as usize).map_or(0, |taken| taken.count_ones());
        if self.bounds.writer == Writer::HasCrashed && taken as usize >= self.bounds.sizes.2 {
            self.acknowledged = Some(next);
            self.acknowledge_before_the_crash();
        }
    }

    fn deliver(&mut self, client: usize, answer: Answer) {
        let Answer { bookie, request, message, is_from_before } = answer;
        if self.seats[client].machine().is_none() {
            return;
        }
        let recorded = self.record().instance_of(&message.bookie);
        if recorded.is_none_or(|recorded| message.instance == Some(recorded)) {
            self.seats[client].hear(bookie, &request, &message);
        }
        let present = message.instance == Some(self.bookies[bookie].instance) && !is_from_before;
        if let (RequestBody::Add { entry, .. }, Ok(ResponseBody::Added)) =
            (&request.body, &message.result)
            && client == WRITER
            && present
        {
            self.told[entry.entry().get() as usize] |= 1 << bookie;
        }
        self.happens(client, &Input::Response(message).into());
    }

    fn take_question(&mut self, client: usize) -> Shared<RecordRequest> {
        self.seats[client].question.take().expect("enabled with a question")
    }

    fn has_timer(&self, client: usize) -> bool {
        self.seats[client].machine().is_some_and(|machine| machine.wake_at().is_some())
    }

    /// A client that is gone asks and hears nothing more; what it has sent may arrive.
    fn crash(&mut self, client: usize, left: Client) {
        if let Some(question) = self.seats[client].question.take()
            && *question != RecordRequest::Read
        {
            self.late_writes.push(question);
        }
        self.leave_seat(client, left);
    }

    fn leave_seat(&mut self, client: usize, left: Client) {
        let seat = &mut self.seats[client];
        let mut orphans = std::mem::take(&mut seat.orphans);
        orphans.append(&mut seat.requests);
        *seat = Seat { orphans, ..Seat::new(left, &self.bounds) };
    }

    fn update_bookie(&mut self, bookie: usize, update: impl FnOnce(&mut Bookie)) {
        let mut next = Bookie::clone(&self.bookies[bookie]);
        update(&mut next);
        self.bookies[bookie] = next.into();
    }

    fn forget_told(&mut self, bookie: usize) {
        self.told.iter_mut().for_each(|told| *told &= !(1 << bookie));
    }

    fn spend(&mut self, on: impl FnOnce(&mut Bounds) -> &mut u8) {
        let mut left = *self.left;
        *on(&mut left) -= 1;
        self.left = left.into();
    }

    fn leave(&mut self, bookie: usize, presence: Presence) {
        self.touch(bookie);
        let stays_registered = self.bounds.zombies;
        self.update_bookie(bookie, |at| {
            at.presence = presence;
            at.registered = stays_registered;
        });
        // One that came back is there for the writer when it has answered that it is.
        let asked = |number: usize| {
            let probes = self.seats[WRITER].requests.iter();
            probes.clone().any(|(at, request)| {
                *at == number && matches!(request.body, RequestBody::ReadLac { .. })
            })
        };
        let gone = self.bookies.iter().enumerate();
        let gone = gone.filter(|(number, at)| at.presence != Presence::Up || asked(*number));
        self.gone_at_once = self.gone_at_once.max(gone.count());
        if !stays_registered {
            self.tell_registry();
        }
    }

    fn come_back(&mut self, bookie: usize) {
        self.update_bookie(bookie, |at| (at.presence, at.registered) = (Presence::Up, true));
        for answer in &mut self.seats[WRITER].answers {
            answer.is_from_before |= answer.bookie == bookie;
        }
        self.tell_registry();
    }

    /// There is no connection to a bookie that is not there, which is known at once.
    fn refuse(&mut self) {
        let gone = |world: &Self| {
            let is_gone = |bookie: usize| world.bookies[bookie].presence != Presence::Up;
            world.seats.iter().enumerate().find_map(|(client, seat)| {
                let index = seat.requests.iter().position(|(bookie, _)| is_gone(*bookie))?;
                Some((client, index))
            })
        };
        while let Some((client, index)) = gone(self) {
            let answer = self.carry_out(client, index);
            self.deliver(client, answer);
        }
        let bookies = &self.bookies;
        for seat in &mut self.seats {
            seat.orphans.retain(|(bookie, _)| bookies[*bookie].presence == Presence::Up);
        }
    }

    /// One that failed waits with the next attempt until what it had sent has arrived, or the requests under way
    /// would have no bound; attempts that follow a crash have one.
    fn may_start(&self, client: usize) -> bool {
        self.left.restarts < self.bounds.restarts || self.seats[client].orphans.is_empty()
    }

    fn is_closed(&self) -> bool {
        matches!(self.record().state(), LedgerState::Closed(_))
    }

    /// The ledger has its end, and nobody is left to whom anything could matter.
    fn is_over(&self) -> bool {
        let is_at_work = self.repair.is_some() || self.left.repairs > 0;
        self.is_closed() && !is_at_work && !self.seats.iter().any(|seat| seat.machine().is_some())
    }

    /// Whether it is this bookie's turn to be touched for the first time.
    fn may_touch(&self, bookie: usize) -> bool {
        bookie <= self.touched || bookie >= self.bounds.sizes.0
    }

    fn touch(&mut self, bookie: usize) {
        if bookie == self.touched && bookie < self.bounds.sizes.0 {
            self.touched += 1;
        }
    }

    fn breaks(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// Forgets what can never matter again, and orders what is in no order.
    fn normalise(&mut self) {
        if self.left.record_faults == 0 {
            self.replaced = None;
        }
        let version = self.stored.version;
        self.late_writes.retain(|write| match **write {
            RecordRequest::Write { expected, .. } => expected == version,
            RecordRequest::Read => false,
        });
        let acknowledged = self.acknowledged.map_or(0, |last| last.get() as usize + 1);
        self.told[..acknowledged].fill(0);
        self.taken[..acknowledged].fill(0);
        if self.bounds.writer != Writer::HasCrashed {
            self.taken.fill(0);
        }
        if self.seats[WRITER].machine().is_none() {
            self.told.fill(0);
            self.gone_at_once = 0;
        }
        if self.is_closed() {
            self.readable = None;
        }
        let is_over = self.is_over();
        for client in 0..self.seats.len() {
            let mut orphans = std::mem::take(&mut self.seats[client].orphans);
            orphans.retain(|(bookie, request)| !is_over && self.may_matter(*bookie, request));
            orphans.sort_by_key(|(bookie, _)| *bookie);
            let seat = &mut self.seats[client];
            seat.orphans = orphans;
            seat.requests.sort_by_key(|(bookie, _)| *bookie);
            if self.seats[client].answers.len() > 1 {
                self.seats[client].answers.sort_by_cached_key(explore::fingerprint);
            }
        }
        // It does not matter which recovery is which.
        if self.seats.len() > 2 {
            self.seats[1..].sort_by_cached_key(explore::fingerprint);
        }
    }

    /// Whether the request of a client that is gone changes anything. What a bookie holds and its fence stay, so what
    /// changes nothing now never will, unless the bookie is wiped.
    fn may_matter(&self, bookie: usize, request: &Shared<Request>) -> bool {
        let carried = carry_out(&self.bookies[bookie], request);
        let is_taken = match &request.body {
            RequestBody::Add { entry, kind: AddKind::Normal, .. } => {
                carried.answer.result.is_ok()
                    && Some(entry.entry()) > self.acknowledged
                    && self.taken[entry.entry().get() as usize] & 1 << bookie == 0
            }
            _ => false,
        };
        self.left.wipes > 0 || is_taken || carried.bookie != self.bookies[bookie]
    }
}

impl explore::World for World {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.is_over() {
            return actions;
        }
        let mut on = |enabled: bool, action| {
            if enabled {
                actions.push(action);
            }
        };
        let writes = self.seats[WRITER].machine().is_some();
        on(writes && self.appended < self.bounds.entries, Action::Append);
        on(writes && self.bounds.writer == Writer::MayCrash, Action::CrashWriter);
        for (client, seat) in self.seats.iter().enumerate() {
            let hears = seat.machine().is_some();
            on(
                matches!(seat.client, Client::Absent) && self.may_start(client),
                Action::StartRecovery(client),
            );
            on(hears && client != WRITER && self.left.restarts > 0, Action::CrashRecovery(client));
            let may_touch = |(_, bookie): &(usize, usize)| self.may_touch(*bookie);
            for (index, _) in arriving(&seat.requests).filter(may_touch) {
                on(true, Action::Arrive(client, index));
                on(self.left.delays > 0, Action::ArriveLate(client, index));
                on(self.left.losses > 0, Action::Lose(client, index));
            }
            for (index, bookie) in arriving(&seat.orphans).filter(may_touch) {
                on(true, Action::ArriveOrphan(client, index));
                // The last one may as well arrive after everything.
                let more = seat.orphans.iter().filter(|(at, _)| *at == bookie).count() > 1;
                on(more && self.left.losses > 0, Action::LoseOrphan(client, index));
            }
            (0..seat.answers.len()).for_each(|index| on(true, Action::LateAnswer(client, index)));
            if let Some(question) = &seat.question {
                let may_fail = self.left.record_faults > 0;
                let is_read = **question == RecordRequest::Read;
                on(true, Action::Record(client));
                on(may_fail, Action::RecordAnswerLost(client));
                on(may_fail && !is_read, Action::RecordLate(client));
                on(may_fail && is_read && self.replaced.is_some(), Action::RecordStale(client));
            }
            if self.has_timer(client) {
                on(seat.is_quiet(), Action::Wake(client));
                on(!seat.is_quiet() && self.left.delays > 0, Action::WakeEarly(client));
            }
        }
        (0..self.late_writes.len()).for_each(|index| on(true, Action::RecordLands(index)));
        self.repairs().into_iter().for_each(|repair| on(true, Action::BeginRepair(repair)));
        if let Some(underway) = &self.repair {
            let is_copied = underway.next.is_none();
            on(true, if is_copied { Action::MoveFragment } else { Action::CopyEntry });
        }
        for (bookie, at) in self.bookies.iter().enumerate() {
            match at.presence {
                Presence::Up if !self.may_touch(bookie) => {}
                Presence::Up => {
                    on(self.left.down > 0, Action::Down(bookie));
                    on(self.left.dead > 0, Action::Die(bookie));
                }
                Presence::Down => {
                    on(true, Action::Up(bookie));
                    on(self.left.wipes > 0, Action::UpWiped(bookie));
                }
                Presence::Dead => {}
            }
        }
        actions
    }

    fn is_free(&self, action: Action) -> bool {
        match action {
            Action::Arrive(..)
            | Action::ArriveOrphan(..)
            | Action::LateAnswer(..)
            | Action::Record(_)
            | Action::RecordLands(_)
            | Action::Up(_)
            | Action::CopyEntry
            | Action::MoveFragment => true,
            // One that is dead for ever is asked again and again whether it is better.
            Action::Wake(_) => !explore::World::is_goal(self),
            Action::StartRecovery(_) => self.seats[WRITER].machine().is_none(),
            _ => false,
        }
    }

    fn step(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Append => self.append(),
            Action::CrashWriter => self.crash(WRITER, Client::Ended),
            Action::StartRecovery(client) => self.start_recovery(client),
            Action::CrashRecovery(client) => {
                self.spend(|left| &mut left.restarts);
                self.crash(client, Client::Absent);
            }
            Action::Arrive(client, index) => {
                let answer = self.carry_out(client, index);
                self.deliver(client, answer);
            }
            Action::ArriveLate(client, index) => {
                self.spend(|left| &mut left.delays);
                let answer = self.carry_out(client, index);
                self.seats[client].answers.push(answer);
            }
            Action::Lose(client, index) => {
                self.spend(|left| &mut left.losses);
                let (bookie, _) = self.seats[client].requests.remove(index);
                self.touch(bookie);
            }
            Action::ArriveOrphan(client, index) => {
                let (bookie, request) = self.seats[client].orphans.remove(index);
                self.carry_out_request(bookie, request);
            }
            Action::LoseOrphan(client, index) => {
                self.spend(|left| &mut left.losses);
                let (bookie, _) = self.seats[client].orphans.remove(index);
                self.touch(bookie);
            }
            Action::LateAnswer(client, index) => {
                let answer = self.seats[client].answers.remove(index);
                self.deliver(client, answer);
            }
            Action::Record(client) => {
                let question = self.take_question(client);
                self.answer_question(client, &question);
            }
            Action::RecordAnswerLost(client) => {
                self.spend(|left| &mut left.record_faults);
                let question = self.take_question(client);
                self.ask_store(&question);
                self.learn(client, RecordAnswer::Unknown("lost".into()));
            }
            Action::RecordLate(client) => {
                self.spend(|left| &mut left.record_faults);
                let question = self.take_question(client);
                self.late_writes.push(question);
                self.learn(client, RecordAnswer::Unknown("late".into()));
            }
            Action::RecordStale(client) => {
                self.spend(|left| &mut left.record_faults);
                self.take_question(client);
                let before = self.replaced.clone().expect("enabled when there was one");
                self.learn(client, RecordAnswer::Found(before.record.clone(), before.version));
            }
            Action::RecordLands(index) => {
                let question = self.late_writes.remove(index);
                self.ask_store(&question);
            }
            Action::Down(bookie) => {
                self.spend(|left| &mut left.down);
                self.leave(bookie, Presence::Down);
            }
            Action::Die(bookie) => {
                self.spend(|left| &mut left.dead);
                self.leave(bookie, Presence::Dead);
            }
            Action::Up(bookie) => self.come_back(bookie),
            Action::UpWiped(bookie) => {
                self.spend(|left| &mut left.wipes);
                self.update_bookie(bookie, Bookie::wipe);
                self.forget_told(bookie);
                self.come_back(bookie);
            }
            Action::Wake(client) => self.happens(client, &Input::Wake.into()),
            Action::WakeEarly(client) => {
                self.spend(|left| &mut left.delays);
                self.happens(client, &Input::Wake.into());
            }
            Action::BeginRepair(repair) => self.begin_repair(repair),
            Action::CopyEntry => self.copy_entry(),
            Action::MoveFragment => self.move_fragment(),
        }
        self.refuse();
        self.check()?;
        self.normalise();
        Ok(())
    }

    fn is_goal(&self) -> bool {
        if self.repair.is_some() || self.seats[1..].iter().any(|seat| seat.machine().is_some()) {
            return false;
        }
        let is_done = self.acknowledged == EntryId(self.appended.into()).checked_prev();
        let writer = &self.seats[WRITER];
        self.is_closed() || writer.machine().is_some() && is_done && writer.is_quiet()
    }

    fn marks(&self) -> u32 {
        self.seen()
    }
}
