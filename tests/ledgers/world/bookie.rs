//! A bookie that keeps what it is told, by the rules that ship.

use std::collections::BTreeMap;
use std::rc::Rc;

use georepl_storage::bookie_rules::{self as rules, LedgerRecord, Mode, RecordChange};
use georepl_storage::{
    AddKind, BookieError, BookieId, Entry, EntryId, Instance, RegisteredBookie, Request,
    RequestBody, Response, ResponseBody,
};
use georepl_tests::shared::{Memo, Shared};

/// Where a bookie is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presence {
    Up,
    /// It comes back.
    Down,
    /// It never comes back, and is still registered or not.
    Dead,
}

/// One bookie, for one ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bookie {
    pub id: BookieId,
    pub instance: Instance,
    pub presence: Presence,
    pub registered: bool,
    record: Option<LedgerRecord>,
    entries: BTreeMap<EntryId, Entry>,
}

/// A request that a bookie has carried out.
pub struct Carried {
    pub bookie: Shared<Bookie>,
    pub answer: Shared<Response>,
}

thread_local! {
    static CARRIED: Memo<Carried> = Memo::default();
}

impl Bookie {
    pub fn new(number: usize) -> Self {
        Self {
            id: id(number),
            instance: Instance(1),
            presence: Presence::Up,
            registered: true,
            record: None,
            entries: BTreeMap::new(),
        }
    }

    pub fn holds(&self, entry: EntryId) -> bool {
        self.entries.contains_key(&entry)
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// What it would answer a reader who asks for the LAC.
    pub fn stored_lac(&self) -> Option<EntryId> {
        let highest = self.entries.values().next_back();
        rules::last_add_confirmed(self.record.as_ref(), highest).ok().flatten()
    }

    pub fn registration(&self) -> RegisteredBookie {
        RegisteredBookie { id: self.id.clone(), instance: self.instance, mode: Mode::Writable }
    }

    /// It comes back as another, empty.
    pub fn wipe(&mut self) {
        self.instance = Instance(self.instance.0 + 1);
        (self.record, self.entries) = (None, BTreeMap::new());
    }

    fn answer(&mut self, body: RequestBody) -> Result<ResponseBody, BookieError> {
        if self.presence != Presence::Up {
            return Err(BookieError::Unreachable);
        }
        match body {
            RequestBody::Add { entry, key, kind } => {
                let change = rules::add(self.record.as_ref(), Mode::Writable, key, kind)?;
                self.change(change);
                // A second normal add of an entry is the first one again.
                if kind == AddKind::Recovery || !self.holds(entry.entry()) {
                    self.entries.insert(entry.entry(), entry);
                }
                Ok(ResponseBody::Added)
            }
            RequestBody::Read { entry, fence } => {
                if let Some(key) = fence {
                    self.change(rules::fence(self.record.as_ref(), key)?);
                }
                let stored = self.entries.get(&entry);
                rules::read(self.record.as_ref(), stored).map(ResponseBody::Entry)
            }
            RequestBody::ReadLac { fence } => {
                if let Some(key) = fence {
                    self.change(rules::fence(self.record.as_ref(), key)?);
                }
                self.lac()
            }
            RequestBody::WaitLac { .. } => self.lac(),
            RequestBody::WriteLac { lac, key } => {
                self.change(rules::write_lac(self.record.as_ref(), lac, key)?);
                Ok(ResponseBody::LacWritten)
            }
        }
    }

    fn lac(&self) -> Result<ResponseBody, BookieError> {
        let highest = self.entries.values().next_back();
        let lac = rules::last_add_confirmed(self.record.as_ref(), highest)?;
        Ok(ResponseBody::LastAddConfirmed { lac })
    }

    fn change(&mut self, change: RecordChange) {
        if let RecordChange::Write(record) = change {
            self.record = Some(record);
        }
    }
}

/// The bookie carries the request out, or cannot be reached.
pub fn carry_out(bookie: &Shared<Bookie>, request: &Shared<Request>) -> Rc<Carried> {
    let work_out = || {
        let mut after = Bookie::clone(bookie);
        let Request { id, body, .. } = Request::clone(request);
        let result = after.answer(body);
        let known = result != Err(BookieError::Unreachable);
        let instance = known.then_some(after.instance);
        let answer = Response { id, bookie: after.id.clone(), instance, result };
        Carried { bookie: after.into(), answer: answer.into() }
    };
    CARRIED.with(|memo| memo.recall((bookie.fingerprint(), request.fingerprint()), work_out))
}

pub fn id(number: usize) -> BookieId {
    format!("b{number}").into()
}

/// The number of the bookie with this id.
pub fn number(id: &BookieId) -> usize {
    let digits = id.as_str().strip_prefix('b').and_then(|digits| digits.parse().ok());
    digits.expect("ids are made here")
}
