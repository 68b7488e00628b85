//! The requests of a connection that have no answer yet.

use std::collections::{BTreeMap, VecDeque};

use super::REQUEST_BYTES;
use crate::time::Time;
use crate::wire::message::{Priority, Request};
use crate::wire::words::{Place, Question};

/// Numbers requests; in v3 it is the transaction id. Never used again on the machine.
pub(super) type Number = u64;

/// Requests by number, from the moment they come until they are answered. Removing one is the only way to its token,
/// and whoever removes it answers it: that is what makes it one answer each.
#[derive(Debug)]
pub(super) struct Pending<T> {
    requests: BTreeMap<Number, Asked<T>>,
    /// Not sent yet, in order. Those that were given up are passed over.
    unsent: VecDeque<Number>,
    /// When they are overdue, in order: ordinary requests, and waits for the LAC, which may take longer. Those at the
    /// fronts are pending.
    due: [VecDeque<(Time, Number)>; 2],
    /// Sent and unanswered, by what an answer in v2 is matched by.
    places: BTreeMap<Place, Number>,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Asked<T> {
    pub(super) token: T,
    pub(super) question: Question,
    pub(super) stage: Stage,
    bytes: usize,
}

#[derive(Debug)]
pub(super) enum Stage {
    Unsent(Priority, Request),
    Sent { at: Time },
}

/// Whether the next request may be sent.
pub(super) enum Next {
    /// There is none.
    None,
    /// An earlier one of the same place is unanswered, and one answer could be taken for the other.
    Occupied,
    /// It may.
    Request(Number, Priority, Request, usize),
}

impl<T> Pending<T> {
    pub(super) const fn new() -> Self {
        Self {
            requests: BTreeMap::new(),
            unsent: VecDeque::new(),
            due: [VecDeque::new(), VecDeque::new()],
            places: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// What all of them weigh.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes a request that is overdue at `due`.
    pub(super) fn push(
        &mut self,
        number: Number,
        token: T,
        (priority, request, question): (Priority, Request, Question),
        due: Time,
    ) {
        let bytes = weight(&request);
        self.bytes += bytes;
        self.unsent.push_back(number);
        self.due[usize::from(question.is_wait())].push_back((due, number));
        let stage = Stage::Unsent(priority, request);
        self.requests.insert(number, Asked { token, question, stage, bytes });
    }

    /// The next request to send, which counts as sent then. `by_place` if answers are matched by place.
    pub(super) fn next_unsent(&mut self, now: Time, by_place: bool) -> Next {
        while let Some(number) = self.unsent.front().copied() {
            let Some(asked) = self.requests.get_mut(&number) else {
                self.unsent.pop_front();
                continue;
            };
            if by_place {
                let place = asked.question.place();
                if self.places.contains_key(&place) {
                    return Next::Occupied;
                }
                self.places.insert(place, number);
            }
            self.unsent.pop_front();
            let stage = std::mem::replace(&mut asked.stage, Stage::Sent { at: now });
            if let Stage::Unsent(priority, request) = stage {
                return Next::Request(number, priority, request, asked.bytes);
            }
        }
        Next::None
    }

    /// The number of the request at a place.
    pub(super) fn at(&self, place: &Place) -> Option<Number> {
        self.places.get(place).copied()
    }

    /// The request of this number, if it was sent and not answered.
    pub(super) fn sent(&self, number: Number) -> Option<&Asked<T>> {
        self.requests.get(&number).filter(|asked| matches!(asked.stage, Stage::Sent { .. }))
    }

    /// Takes a request out, to be answered.
    pub(super) fn remove(&mut self, number: Number) -> Option<Asked<T>> {
        let asked = self.requests.remove(&number)?;
        self.bytes -= asked.bytes;
        let place = asked.question.place();
        if self.places.get(&place) == Some(&number) {
            self.places.remove(&place);
        }
        let requests = &self.requests;
        for due in &mut self.due {
            while due.front().is_some_and(|(_, number)| !requests.contains_key(number)) {
                due.pop_front();
            }
        }
        Some(asked)
    }

    /// Takes out what is overdue.
    pub(super) fn take_overdue(&mut self, now: Time) -> Vec<Asked<T>> {
        let mut overdue = Vec::new();
        for class in 0..self.due.len() {
            while let Some((due, number)) = self.due[class].front().copied()
                && due <= now
            {
                overdue.extend(self.remove(number));
            }
        }
        overdue
    }

    /// Takes out everything, in the order it came in.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> {
        let all = std::mem::replace(self, Self::new());
        all.requests.into_values().map(|asked| asked.token)
    }

    /// When the next one is overdue.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.due.iter().filter_map(|due| due.front().map(|(at, _)| *at)).min()
    }
}

/// What a request holds in memory and sends.
pub(super) fn weight(request: &Request) -> usize {
    match request {
        Request::Add { entry, .. } => REQUEST_BYTES + entry.size_bytes(),
        _ => REQUEST_BYTES,
    }
}
