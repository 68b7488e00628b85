//! One ledger: the shipped writer and recoveries, with a model of bookies, network and store.
//!
//! A request is carried out and answered in one step when it arrives; that an answer is late, or lost, or that a
//! request is lost, is a fault. Requests of one client to one bookie arrive in order. A timeout strikes when nothing
//! is under way that would end the wait, or as a fault. The registry's news reaches everybody at once.

mod bookie;
mod rules;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use georepl_storage::recover::{self, Recovered};
use georepl_storage::write;
use georepl_storage::{
    AddKind, BookieError, BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Password,
    QuorumSizes, RecordAnswer, RecordRequest, Request, RequestBody, Response, Time, Version,
};
use georepl_tests::explore;

use bookie::{Bookie, Presence};
pub use rules::mark;

const LEDGER: LedgerId = LedgerId(7);
const WRITER: usize = 0;

/// What the writer does besides appending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    Lives,
    /// At any step.
    MayCrash,
    /// At the start, when everything is appended and nothing has arrived.
    HasCrashed,
}

/// Bounds of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Ensemble size, write quorum, ack quorum.
    pub sizes: (usize, usize, usize),
    pub entries: u8,
    pub bookies: usize,
    /// Recoveries that may be started, each of which may start again when it failed or crashed.
    pub recoverers: usize,
    pub restarts: u8,
    pub writer: Writer,
    /// Bookies that go down and come back.
    pub down: u8,
    /// Bookies that go for ever, and of those that come back so many without what they had.
    pub dead: u8,
    pub wipes: u8,
    /// Requests that get lost.
    pub losses: u8,
    /// Answers that come late, and timeouts that strike early.
    pub delays: u8,
    /// Writes to the record whose answer is lost, or that land after their timeout, and reads that are answered with
    /// the record of before.
    pub record_faults: u8,
    /// Whether bookies that are gone stay registered.
    pub zombies: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Append,
    CrashWriter,
    StartRecovery(usize),
    CrashRecovery(usize),
    /// The request arrives, is carried out, and the answer is there.
    Arrive(usize),
    /// It is carried out, and the answer is under way.
    ArriveLate(usize),
    Lose(usize),
    LateAnswer(usize),
    /// The store answers a client's question.
    Record(usize),
    /// The store carries it out, and the answer is lost.
    RecordAnswerLost(usize),
    /// The store has not carried it out when its time is over, and still may.
    RecordLate(usize),
    /// The store answers a read with the record that was replaced last.
    RecordStale(usize),
    /// A write that is late lands.
    RecordLands(usize),
    Down(usize),
    Die(usize),
    Up(usize),
    /// It comes back as another, without what it had.
    UpWiped(usize),
    /// A client's timer strikes.
    Wake(usize),
    /// It strikes although the answer is under way.
    WakeEarly(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flight<M> {
    client: usize,
    bookie: usize,
    message: M,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Client {
    Absent,
    Writer(Box<write::Machine>),
    Recovery(Box<recover::Machine>),
    /// The writer was fenced or failed, or the recovery has ended.
    Ended,
}

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    bounds: Bounds,
    clients: Vec<Client>,
    bookies: Vec<Bookie>,
    requests: Vec<Flight<Request>>,
    answers: Vec<Flight<Response>>,
    record: Arc<LedgerMetadata>,
    version: Version,
    /// The record before it.
    replaced: Option<Arc<LedgerMetadata>>,
    /// The question that each client has asked.
    questions: Vec<Option<RecordRequest>>,
    /// Writes that may still land.
    late_writes: Vec<RecordRequest>,
    appended: u8,
    /// The last entry that was acknowledged to the application.
    acknowledged: Option<EntryId>,
    /// How many bookies were gone for the writer at once, at most.
    gone_at_once: usize,
    /// Bookies (bits) that took each entry from the writer.
    taken: Vec<u8>,
    /// The highest LAC that any reader could have learned.
    readable: Option<EntryId>,
    left: Bounds,
    /// Bookies that something has happened to: the first of an ensemble. While all bookies of an ensemble hold
    /// every entry, it does not matter which of those that nothing has happened to is next.
    touched: usize,
    broken: Option<String>,
}

fn payload(entry: u8) -> Bytes {
    vec![entry; usize::from(entry) + 1].into()
}

impl World {
    pub fn new(bounds: Bounds) -> Self {
        let (ensemble, write_quorum, ack_quorum) = bounds.sizes;
        let sizes = QuorumSizes::new(ensemble, write_quorum, ack_quorum).expect("valid sizes");
        let bookies: Vec<_> = (0..bounds.bookies).map(Bookie::new).collect();
        let members = bookies[..ensemble].iter();
        let instances = members.clone().map(|bookie| (bookie.id.clone(), bookie.instance));
        let ids = members.clone().map(|bookie| bookie.id.clone()).collect();
        let password = Password::from("secret");
        let record = LedgerMetadata::created(sizes, password, ids, 1, Default::default())
            .expect("valid")
            .with_instances(instances);
        let (record, version) = (Arc::new(record), Version(1));
        let limits = write::Limits {
            request_timeout: Duration::from_secs(5),
            add_quorum_timeout: Duration::from_secs(60),
            bookie_backlog_bytes_max: u64::MAX,
            ensemble_changes_max: 20,
            explicit_lac_interval: None,
        };
        let writer = write::Machine::new(write::Config {
            ledger: LEDGER,
            record: record.clone(),
            version,
            limits,
        });
        let mut clients = vec![Client::Writer(Box::new(writer))];
        clients.resize(1 + bounds.recoverers, Client::Absent);
        let mut world = Self {
            bounds,
            questions: vec![None; clients.len()],
            clients,
            bookies,
            requests: Vec::new(),
            answers: Vec::new(),
            record,
            version,
            replaced: None,
            late_writes: Vec::new(),
            appended: 0,
            acknowledged: None,
            gone_at_once: 0,
            taken: vec![0; bounds.entries.into()],
            readable: None,
            left: bounds,
            touched: if ensemble == write_quorum { 0 } else { ensemble },
            broken: None,
        };
        world.tell_registry();
        if bounds.writer == Writer::HasCrashed {
            (0..bounds.entries).for_each(|_| world.append());
            world.crash(WRITER, Client::Ended);
        }
        world
    }

    fn registry(&self) -> Arc<[georepl_storage::RegisteredBookie]> {
        let registered = self.bookies.iter().filter(|bookie| bookie.registered);
        registered.map(Bookie::registration).collect()
    }

    fn tell_registry(&mut self) {
        let registry = self.registry();
        for client in 0..self.clients.len() {
            let registry = registry.clone();
            match &mut self.clients[client] {
                Client::Writer(machine) => {
                    machine.handle(Time::ZERO, write::Input::Bookies(registry));
                }
                Client::Recovery(machine) => {
                    machine.handle(Time::ZERO, recover::Input::Registry(registry));
                }
                Client::Absent | Client::Ended => continue,
            }
            self.drain(client);
        }
    }

    fn append(&mut self) {
        let (first, mut payloads) = (EntryId(self.appended.into()), vec![payload(self.appended)]);
        self.appended += 1;
        if let Client::Writer(machine) = &mut self.clients[WRITER] {
            machine.handle(Time::ZERO, write::Input::Append { first, payloads: &mut payloads });
        }
        self.drain(WRITER);
    }

    fn start_recovery(&mut self, client: usize) {
        let config = recover::Config {
            ledger: LEDGER,
            password: Password::from("secret"),
            request_timeout: Duration::from_secs(5),
            entries_in_flight_max: usize::from(self.bounds.entries),
        };
        let machine = recover::Machine::new(config, self.registry());
        self.clients[client] = Client::Recovery(Box::new(machine));
        self.drain(client);
    }

    /// Everything that a client wants done.
    fn drain(&mut self, client: usize) {
        loop {
            match &mut self.clients[client] {
                Client::Writer(machine) => {
                    let Some(output) = machine.poll_output() else { return };
                    self.writer_wants(output);
                }
                Client::Recovery(machine) => {
                    let Some(output) = machine.poll_output() else { return };
                    self.recovery_wants(client, output);
                }
                Client::Absent | Client::Ended => return,
            }
        }
    }

    fn writer_wants(&mut self, output: write::Output) {
        match output {
            write::Output::Submit { bookie, requests } => self.send(WRITER, &bookie, requests),
            write::Output::Record(question) => self.ask(WRITER, question),
            write::Output::Confirmed { through } => {
                let ended = self.acknowledge(through);
                self.broken = self.broken.take().or_else(|| ended.err());
            }
            write::Output::EnsembleChanged { .. } | write::Output::Closed(_) => {}
            write::Output::Failed(error) => {
                self.failed_writer(&error);
                self.crash(WRITER, Client::Ended);
            }
        }
    }

    fn recovery_wants(&mut self, client: usize, output: recover::Output) {
        match output {
            recover::Output::Submit { bookie, requests } => self.send(client, &bookie, requests),
            recover::Output::Record(question) => self.ask(client, question),
            recover::Output::Closed(Recovered { record, .. }) => {
                if record.state() != self.record.state() {
                    let (said, is) = (record.state(), self.record.state());
                    self.breaks(format!("S3: closed at {said:?}, and the record says {is:?}"));
                }
                self.clients[client] = Client::Ended;
            }
            recover::Output::Failed(error) => {
                self.failed_recovery(&error);
                self.clients[client] = Client::Absent;
            }
        }
    }

    fn send(&mut self, client: usize, bookie: &BookieId, requests: Vec<Request>) {
        let number = self.bookies.iter().position(|known| known.id == *bookie);
        let bookie = number.expect("requests go to bookies");
        let flights = requests.into_iter().map(|message| Flight { client, bookie, message });
        self.requests.extend(flights);
    }

    /// The bookie carries the request out.
    fn carry_out(&mut self, index: usize) -> Flight<Response> {
        let Flight { client, bookie, message } = self.requests.remove(index);
        self.touch(bookie);
        let Request { id, body, .. } = message;
        let at = &mut self.bookies[bookie];
        let added = match &body {
            RequestBody::Add { entry, kind: AddKind::Normal, .. } => Some(entry.entry()),
            _ => None,
        };
        let result = at.answer(body);
        let known = result != Err(BookieError::Unreachable);
        let instance = known.then_some(at.instance);
        let message = Response { id, bookie: at.id.clone(), instance, result };
        if let (Some(entry), Ok(_)) = (added, &message.result) {
            self.taken[entry.get() as usize] |= 1 << bookie;
            self.acknowledge_before_the_crash();
        }
        Flight { client, bookie, message }
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

    fn deliver(&mut self, answer: Flight<Response>) {
        let Flight { client, message, .. } = answer;
        let mut responses = vec![message];
        match &mut self.clients[client] {
            Client::Writer(machine) => {
                machine.handle(Time::ZERO, write::Input::Responses(&mut responses));
            }
            Client::Recovery(machine) => {
                machine.handle(Time::ZERO, recover::Input::Responses(&mut responses));
            }
            Client::Absent | Client::Ended => return,
        }
        self.drain(client);
    }

    /// A read that cannot go wrong is answered at once: what counts is when the write that follows arrives.
    fn ask(&mut self, client: usize, question: RecordRequest) {
        if question == RecordRequest::Read && self.left.record_faults == 0 {
            let answer = self.ask_store(&question);
            self.answer_question(client, answer);
        } else {
            self.questions[client] = Some(question);
        }
    }

    fn ask_store(&mut self, question: &RecordRequest) -> RecordAnswer {
        match question {
            RecordRequest::Read => RecordAnswer::Found(self.record.clone(), self.version),
            RecordRequest::Write { record, expected } if *expected == self.version => {
                let checked = self.check_write(record);
                self.broken = self.broken.take().or_else(|| checked.err());
                self.replaced = Some(std::mem::replace(&mut self.record, record.clone()));
                self.version = Version(self.version.0 + 1);
                RecordAnswer::Written(self.version)
            }
            RecordRequest::Write { .. } => RecordAnswer::Conflict,
        }
    }

    fn answer_question(&mut self, client: usize, answer: RecordAnswer) {
        match &mut self.clients[client] {
            Client::Writer(machine) => machine.handle(Time::ZERO, write::Input::Record(answer)),
            Client::Recovery(machine) => {
                machine.handle(Time::ZERO, recover::Input::Record(answer));
            }
            Client::Absent | Client::Ended => return,
        }
        self.drain(client);
    }

    fn wake(&mut self, client: usize) {
        let at = self.wake_at(client).expect("enabled with a timer");
        match &mut self.clients[client] {
            Client::Writer(machine) => {
                machine.handle(at, write::Input::Wake);
                self.drain(client);
                if let Client::Writer(machine) = &mut self.clients[client] {
                    machine.renumber(at);
                }
            }
            Client::Recovery(machine) => {
                machine.handle(at, recover::Input::Wake);
                self.drain(client);
                if let Client::Recovery(machine) = &mut self.clients[client] {
                    machine.renumber(at);
                }
            }
            Client::Absent | Client::Ended => {}
        }
    }

    fn wake_at(&self, client: usize) -> Option<Time> {
        match &self.clients[client] {
            Client::Writer(machine) => machine.wake_at(),
            Client::Recovery(machine) => machine.wake_at(),
            Client::Absent | Client::Ended => None,
        }
    }

    /// A client that is gone asks and hears nothing more; what it has sent may arrive.
    fn crash(&mut self, client: usize, left: Client) {
        self.clients[client] = left;
        self.answers.retain(|answer| answer.client != client);
        if let Some(question @ RecordRequest::Write { .. }) = self.questions[client].take() {
            self.late_writes.push(question);
        }
    }

    fn leave(&mut self, bookie: usize, presence: Presence) {
        self.touch(bookie);
        let at = &mut self.bookies[bookie];
        at.presence = presence;
        at.registered = self.bounds.zombies;
        // One that came back is there for the writer when it has answered that it is.
        let asked = |number: usize| {
            self.requests.iter().any(|flight| {
                (flight.client, flight.bookie) == (WRITER, number)
                    && matches!(flight.message.body, RequestBody::ReadLac { .. })
            })
        };
        let gone = self.bookies.iter().enumerate();
        let gone = gone.filter(|(number, at)| at.presence != Presence::Up || asked(*number));
        let gone = gone.count();
        self.gone_at_once = self.gone_at_once.max(gone);
        if !self.bounds.zombies {
            self.tell_registry();
        }
    }

    fn come_back(&mut self, bookie: usize) {
        self.bookies[bookie].presence = Presence::Up;
        self.bookies[bookie].registered = true;
        self.tell_registry();
    }

    /// What may arrive next: the first request of each client to each bookie.
    fn arriving(&self) -> impl Iterator<Item = usize> + '_ {
        let same = |one: &Flight<Request>, other: &Flight<Request>| {
            (one.client, one.bookie) == (other.client, other.bookie)
        };
        let first = move |index: &usize| {
            let flight = &self.requests[*index];
            !self.requests[..*index].iter().any(|earlier| same(earlier, flight))
        };
        (0..self.requests.len()).filter(first)
    }

    /// There is no connection to a bookie that is not there, which is known at once.
    fn refuse(&mut self) {
        let gone = |world: &Self| {
            let gone =
                |flight: &Flight<Request>| world.bookies[flight.bookie].presence != Presence::Up;
            world.requests.iter().position(gone)
        };
        while let Some(index) = gone(self) {
            let answer = self.carry_out(index);
            self.deliver(answer);
        }
    }

    /// One that failed waits with the next attempt until what it had sent has arrived, or the requests under way
    /// would have no bound; attempts that follow a crash have one.
    fn may_start(&self, client: usize) -> bool {
        self.left.restarts < self.bounds.restarts
            || !self.requests.iter().any(|flight| flight.client == client)
    }

    /// Nothing is under way that a client waits for.
    fn is_quiet(&self, client: usize) -> bool {
        self.questions[client].is_none()
            && !self.requests.iter().any(|flight| flight.client == client)
            && !self.answers.iter().any(|flight| flight.client == client)
    }

    fn is_closed(&self) -> bool {
        matches!(self.record.state(), LedgerState::Closed(_))
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

    /// Forgets what can never matter again.
    fn normalise(&mut self) {
        for client in 0..self.clients.len() {
            if let Client::Absent | Client::Ended = self.clients[client] {
                self.answers.retain(|answer| answer.client != client);
            }
        }
        let version = self.version;
        self.late_writes.retain(
            |write| matches!(write, RecordRequest::Write { expected, .. } if *expected == version),
        );
        // Nobody is left to whom it could matter.
        let alive = |client: &Client| matches!(client, Client::Writer(_) | Client::Recovery(_));
        if self.is_closed() && !self.clients.iter().any(alive) {
            self.requests.clear();
        }
        self.answers.sort_by_cached_key(explore::fingerprint);
        self.requests.sort_by_key(|flight| (flight.client, flight.bookie));
    }
}

impl explore::World for World {
    type Action = Action;

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut on = |enabled: bool, action| {
            if enabled {
                actions.push(action);
            }
        };
        let writes = matches!(self.clients[WRITER], Client::Writer(_));
        on(writes && self.appended < self.bounds.entries, Action::Append);
        on(writes && self.bounds.writer == Writer::MayCrash, Action::CrashWriter);
        for client in 1..self.clients.len() {
            match self.clients[client] {
                Client::Absent => on(self.may_start(client), Action::StartRecovery(client)),
                Client::Recovery(_) => on(self.left.restarts > 0, Action::CrashRecovery(client)),
                Client::Writer(_) | Client::Ended => {}
            }
        }
        for index in self.arriving().filter(|index| self.may_touch(self.requests[*index].bookie)) {
            on(true, Action::Arrive(index));
            on(self.left.delays > 0, Action::ArriveLate(index));
            on(self.left.losses > 0, Action::Lose(index));
        }
        (0..self.answers.len()).for_each(|index| on(true, Action::LateAnswer(index)));
        for (client, question) in self.questions.iter().enumerate() {
            on(question.is_some(), Action::Record(client));
            let may_fail = question.is_some() && self.left.record_faults > 0;
            on(may_fail, Action::RecordAnswerLost(client));
            on(may_fail && *question != Some(RecordRequest::Read), Action::RecordLate(client));
            let stale = *question == Some(RecordRequest::Read) && self.replaced.is_some();
            on(may_fail && stale, Action::RecordStale(client));
        }
        (0..self.late_writes.len()).for_each(|index| on(true, Action::RecordLands(index)));
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
        for client in 0..self.clients.len() {
            if self.wake_at(client).is_some() {
                let quiet = self.is_quiet(client);
                on(quiet, Action::Wake(client));
                on(!quiet && self.left.delays > 0, Action::WakeEarly(client));
            }
        }
        actions
    }

    fn is_free(&self, action: Action) -> bool {
        match action {
            Action::Arrive(_)
            | Action::LateAnswer(_)
            | Action::Record(_)
            | Action::RecordLands(_)
            | Action::Up(_) => true,
            // One that is dead for ever is asked again and again whether it is better.
            Action::Wake(_) => !explore::World::is_goal(self),
            Action::StartRecovery(_) => !matches!(self.clients[WRITER], Client::Writer(_)),
            _ => false,
        }
    }

    fn step(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Append => self.append(),
            Action::CrashWriter => self.crash(WRITER, Client::Ended),
            Action::StartRecovery(client) => self.start_recovery(client),
            Action::CrashRecovery(client) => {
                self.left.restarts -= 1;
                self.crash(client, Client::Absent);
            }
            Action::Arrive(index) => {
                let answer = self.carry_out(index);
                self.deliver(answer);
            }
            Action::ArriveLate(index) => {
                self.left.delays -= 1;
                let answer = self.carry_out(index);
                self.answers.push(answer);
            }
            Action::Lose(index) => {
                self.left.losses -= 1;
                let Flight { bookie, .. } = self.requests.remove(index);
                self.touch(bookie);
            }
            Action::LateAnswer(index) => {
                let answer = self.answers.remove(index);
                self.deliver(answer);
            }
            Action::Record(client) => {
                let question = self.questions[client].take().expect("enabled with a question");
                let answer = self.ask_store(&question);
                self.answer_question(client, answer);
            }
            Action::RecordAnswerLost(client) => {
                self.left.record_faults -= 1;
                let question = self.questions[client].take().expect("enabled with a question");
                self.ask_store(&question);
                self.answer_question(client, RecordAnswer::Unknown("lost".into()));
            }
            Action::RecordLate(client) => {
                self.left.record_faults -= 1;
                let question = self.questions[client].take().expect("enabled with a question");
                self.late_writes.push(question);
                self.answer_question(client, RecordAnswer::Unknown("late".into()));
            }
            Action::RecordStale(client) => {
                self.left.record_faults -= 1;
                self.questions[client] = None;
                let before = self.replaced.clone().expect("enabled when there was one");
                let version = Version(self.version.0 - 1);
                self.answer_question(client, RecordAnswer::Found(before, version));
            }
            Action::RecordLands(index) => {
                let question = self.late_writes.remove(index);
                self.ask_store(&question);
            }
            Action::Down(bookie) => {
                self.left.down -= 1;
                self.leave(bookie, Presence::Down);
            }
            Action::Die(bookie) => {
                self.left.dead -= 1;
                self.leave(bookie, Presence::Dead);
            }
            Action::Up(bookie) => self.come_back(bookie),
            Action::UpWiped(bookie) => {
                self.left.wipes -= 1;
                self.bookies[bookie].wipe();
                self.come_back(bookie);
            }
            Action::Wake(client) => self.wake(client),
            Action::WakeEarly(client) => {
                self.left.delays -= 1;
                self.wake(client);
            }
        }
        self.refuse();
        self.check()?;
        self.normalise();
        Ok(())
    }

    fn is_goal(&self) -> bool {
        let recovered = !self.clients.iter().any(|client| matches!(client, Client::Recovery(_)));
        let writer = match &self.clients[WRITER] {
            Client::Writer(_) => {
                self.acknowledged == EntryId(self.appended.into()).checked_prev()
                    && self.is_quiet(WRITER)
            }
            _ => true,
        };
        let settled = self.is_closed() || matches!(self.clients[WRITER], Client::Writer(_));
        recovered && writer && settled || recovered && self.is_closed()
    }

    fn marks(&self) -> u32 {
        self.seen()
    }
}
