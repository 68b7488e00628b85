//! The way to the bookies: every message takes its time, and some take a wrong turn.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use georepl_storage::{
    BookieError, BookieId, BookieTransport, CompletionSink, MemoryBookies, Request, RequestBody,
    Response, ResponseBody,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::weather::{Arrivals, Weather};

/// Delivers messages in the order of their times. Those to one bookie arrive in the order they were sent, but for
/// strays; responses come in any order.
pub struct Network {
    bookies: Arc<MemoryBookies>,
    weather: Arc<Weather>,
    state: Mutex<State>,
    sent: Notify,
}

#[derive(Default)]
struct State {
    queue: BinaryHeap<Reverse<Letter>>,
    /// What keeps letters of the same time in order.
    last_number: u64,
    last_arrival: BTreeMap<BookieId, Instant>,
}

struct Letter {
    at: Instant,
    number: u64,
    message: Message,
}

enum Message {
    Request { bookie: BookieId, request: Request, sink: Arc<dyn CompletionSink> },
    Response { response: Response, sink: Arc<dyn CompletionSink> },
}

/// What a network is to its clients.
#[derive(Clone)]
pub struct Transport(pub Arc<Network>);

/// Sends responses back over the network.
struct Returning {
    network: Arc<Network>,
    sink: Arc<dyn CompletionSink>,
}

impl Network {
    pub fn new(bookies: Arc<MemoryBookies>, weather: Arc<Weather>) -> Arc<Self> {
        Arc::new(Self { bookies, weather, state: Mutex::default(), sent: Notify::new() })
    }

    /// Delivers for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            let next = self.state.lock().queue.peek().map(|letter| letter.0.at);
            let Some(at) = next else {
                self.sent.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(at) => {}
                () = self.sent.notified() => {}
            }
            while let Some(letter) = self.due() {
                self.deliver(letter.message);
            }
        }
    }

    fn due(&self) -> Option<Letter> {
        let mut state = self.state.lock();
        if state.queue.peek()?.0.at > Instant::now() {
            return None;
        }
        state.queue.pop().map(|letter| letter.0)
    }

    fn deliver(self: &Arc<Self>, message: Message) {
        match message {
            Message::Request { bookie, request, sink } => {
                self.weather.note(format_args!("{bookie} <- {}", ShownRequest(&request)));
                let sink: Arc<dyn CompletionSink> =
                    Arc::new(Returning { network: self.clone(), sink });
                if self.weather.refuses(&bookie) {
                    let (id, instance) = (request.id, self.bookies.instance(&bookie));
                    let result = Err(BookieError::TooManyRequests);
                    sink.complete(&mut vec![Response { id, bookie, instance, result }]);
                } else {
                    self.bookies.submit(&bookie, &mut vec![request], &sink);
                }
            }
            Message::Response { response, sink } => {
                self.weather.note(format_args!("{}", ShownResponse(&response)));
                sink.complete(&mut vec![response]);
            }
        }
    }

    fn post(&self, arrivals: Arrivals, to: Option<&BookieId>, message: impl Fn() -> Message) {
        let mut state = self.state.lock();
        for arrival in arrivals {
            let mut at = Instant::now() + arrival.after;
            if let Some(bookie) = to
                && !arrival.stray
            {
                let last = state.last_arrival.entry(bookie.clone()).or_insert(at);
                at = at.max(*last);
                *last = at;
            }
            state.last_number += 1;
            let number = state.last_number;
            state.queue.push(Reverse(Letter { at, number, message: message() }));
        }
        drop(state);
        self.sent.notify_one();
    }
}

impl BookieTransport for Transport {
    fn submit(&self, bookie: &BookieId, batch: &mut Vec<Request>, sink: &Arc<dyn CompletionSink>) {
        for request in batch.drain(..) {
            let arrivals = self.0.weather.request(bookie);
            self.0.post(arrivals, Some(bookie), || Message::Request {
                bookie: bookie.clone(),
                request: request.clone(),
                sink: sink.clone(),
            });
        }
    }
}

impl CompletionSink for Returning {
    fn complete(&self, batch: &mut Vec<Response>) {
        for response in batch.drain(..) {
            let arrivals = self.network.weather.response(&response.bookie);
            self.network.post(arrivals, None, || Message::Response {
                response: response.clone(),
                sink: self.sink.clone(),
            });
        }
    }
}

impl PartialEq for Letter {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Letter {}

impl PartialOrd for Letter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Letter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

struct ShownRequest<'a>(&'a Request);

impl std::fmt::Display for ShownRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.0.ledger)?;
        match &self.0.body {
            RequestBody::Add { entry, kind, .. } => write!(f, "{kind:?} add {entry:?}"),
            RequestBody::Read { entry, fence } => {
                write!(f, "read {entry} fencing={}", fence.is_some())
            }
            RequestBody::ReadLac { fence } => write!(f, "read LAC fencing={}", fence.is_some()),
            RequestBody::WaitLac { beyond } => write!(f, "wait for LAC beyond {beyond:?}"),
            RequestBody::WriteLac { lac, .. } => write!(f, "write LAC {lac}"),
        }
    }
}

struct ShownResponse<'a>(&'a Response);

impl std::fmt::Display for ShownResponse<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Response { id, bookie, instance, result } = self.0;
        write!(f, "{bookie}/{:?} -> {} ", instance.map(|instance| instance.0), id.0)?;
        match result {
            Ok(ResponseBody::Entry(entry)) => write!(f, "{entry:?}"),
            Ok(body) => write!(f, "{body:?}"),
            Err(error) => write!(f, "{error:?}"),
        }
    }
}
