//! A transport with faults.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::copies::corrupted;
use crate::id::BookieId;
use crate::transport::{
    BookieError, BookieTransport, CompletionSink, Request, RequestId, Response, ResponseBody,
};

/// What is wrong with a bookie, or with the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Requests never arrive and are never answered.
    LoseRequests,
    /// Requests wait before they arrive, until they are released.
    HoldRequests,
    /// Requests are carried out, but the answers are lost: a bookie that hangs after it has accepted.
    LoseResponses,
    /// Requests are carried out; the answers wait until they are released: a slow bookie.
    HoldResponses,
    /// Every answer comes twice.
    DuplicateResponses,
    /// Requests are answered with this error and not carried out.
    Answer(BookieError),
    /// One bit of every entry that is read is wrong.
    CorruptReads,
}

/// In which order everything that is held is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOrder {
    /// As it came.
    Oldest,
    /// The last one first.
    Newest,
}

/// How often one held request or response is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is lost.
    Never,
    /// It is only late.
    Once,
    /// It is late and comes twice.
    Twice,
}

/// A transport with faults that are switched per bookie. Without any it is the transport it wraps.
pub struct FaultTransport {
    inner: Arc<dyn BookieTransport>,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    active: Mutex<HashMap<BookieId, Fault>>,
    held: Mutex<BTreeMap<BookieId, Vec<Held>>>,
}

/// What is on its way to or from a bookie, and whom the response is for.
struct Held {
    sink: Arc<dyn CompletionSink>,
    message: Message,
}

#[derive(Clone)]
enum Message {
    Request(Request),
    Response(Response),
}

impl FaultTransport {
    /// Wraps a transport.
    #[must_use]
    pub fn new(inner: Arc<dyn BookieTransport>) -> Self {
        Self { inner, faults: Arc::default() }
    }

    /// Gives a bookie a fault, instead of the one it has. Requests that are under way have theirs already.
    pub fn inject(&self, bookie: &BookieId, fault: Fault) {
        self.faults.active.lock().insert(bookie.clone(), fault);
    }

    /// Takes a bookie's fault away. What is held stays held.
    pub fn heal(&self, bookie: &BookieId) {
        self.faults.active.lock().remove(bookie);
    }

    /// How many requests and responses of a bookie are held.
    #[must_use]
    pub fn held(&self, bookie: &BookieId) -> usize {
        self.faults.held.lock().get(bookie).map_or(0, Vec::len)
    }

    /// Delivers all that is held of a bookie, each by itself. A request that is released meets no further fault.
    pub fn release(&self, bookie: &BookieId, order: ReleaseOrder) {
        let mut held = self.faults.held.lock().remove(bookie).unwrap_or_default();
        if order == ReleaseOrder::Newest {
            held.reverse();
        }
        for Held { sink, message } in held {
            self.deliver(bookie, &sink, message);
        }
    }

    /// Settles one of the held requests and responses of a bookie, `index` counting from the oldest; without one there
    /// nothing happens. Those behind it move up.
    pub fn settle(&self, bookie: &BookieId, index: usize, delivery: Delivery) {
        let held = {
            let mut held = self.faults.held.lock();
            held.get_mut(bookie)
                .filter(|of_bookie| index < of_bookie.len())
                .map(|of_bookie| of_bookie.remove(index))
        };
        let Some(Held { sink, message }) = held else {
            return;
        };
        let copies = match delivery {
            Delivery::Never => 0,
            Delivery::Once => 1,
            Delivery::Twice => 2,
        };
        for _ in 0..copies {
            self.deliver(bookie, &sink, message.clone());
        }
    }

    fn deliver(&self, bookie: &BookieId, sink: &Arc<dyn CompletionSink>, message: Message) {
        match message {
            Message::Request(request) => self.inner.submit(bookie, &mut vec![request], sink),
            Message::Response(response) => sink.complete(&mut vec![response]),
        }
    }
}

impl BookieTransport for FaultTransport {
    fn submit(&self, bookie: &BookieId, batch: &mut Vec<Request>, sink: &Arc<dyn CompletionSink>) {
        let fault = self.faults.active.lock().get(bookie).copied();
        match fault {
            None => self.inner.submit(bookie, batch, sink),
            Some(Fault::LoseRequests) => batch.clear(),
            Some(Fault::HoldRequests) => {
                self.faults.hold(bookie, sink, batch.drain(..).map(Message::Request));
            }
            Some(Fault::Answer(error)) => {
                let answer = |id: RequestId| Response {
                    id,
                    bookie: bookie.clone(),
                    instance: None,
                    result: Err(error),
                };
                sink.complete(&mut batch.drain(..).map(|request| answer(request.id)).collect());
            }
            Some(fault) => {
                let faults = self.faults.clone();
                let sink: Arc<dyn CompletionSink> =
                    Arc::new(FaultSink { sink: sink.clone(), fault, faults });
                self.inner.submit(bookie, batch, &sink);
            }
        }
    }
}

impl fmt::Debug for FaultTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let active = self.faults.active.lock();
        f.debug_struct("FaultTransport").field("active", &*active).finish_non_exhaustive()
    }
}

impl Faults {
    fn hold(
        &self,
        bookie: &BookieId,
        sink: &Arc<dyn CompletionSink>,
        messages: impl Iterator<Item = Message>,
    ) {
        let mut held = self.held.lock();
        let of_bookie = held.entry(bookie.clone()).or_default();
        of_bookie.extend(messages.map(|message| Held { sink: sink.clone(), message }));
    }
}

/// Does to the responses of one batch what the fault says.
struct FaultSink {
    sink: Arc<dyn CompletionSink>,
    fault: Fault,
    faults: Arc<Faults>,
}

impl CompletionSink for FaultSink {
    fn complete(&self, batch: &mut Vec<Response>) {
        match self.fault {
            Fault::LoseRequests | Fault::HoldRequests | Fault::LoseResponses | Fault::Answer(_) => {
                batch.clear()
            }
            Fault::HoldResponses => {
                for response in batch.drain(..) {
                    let bookie = response.bookie.clone();
                    let message = std::iter::once(Message::Response(response));
                    self.faults.hold(&bookie, &self.sink, message);
                }
            }
            Fault::DuplicateResponses => {
                batch.extend_from_within(..);
                self.sink.complete(batch);
            }
            Fault::CorruptReads => {
                for response in &mut *batch {
                    if let Ok(ResponseBody::Entry(entry)) = &mut response.result {
                        *entry = corrupted(entry);
                    }
                }
                self.sink.complete(batch);
            }
        }
    }
}
