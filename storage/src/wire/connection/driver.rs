//! The task of one connection.

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::link::{Link, Reading, Stream, Turn};
use super::{Input, Limits, Lost, Machine, Output};
use crate::id::BookieId;
use crate::mailbox::Mailbox;
use crate::time::{Clock, Time};
use crate::transport::{BookieError, CompletionSink, Request, RequestId, Response};
use crate::wire::auth::{AuthExchange, AuthPlugin};
use crate::wire::resolve::BookieAddress;
use crate::wire::tls::TlsClient;

/// A request and where its answer goes.
pub(crate) type Asked = (Request, Arc<dyn CompletionSink>);

/// What a connection is made with.
#[derive(Clone)]
pub(crate) struct Means {
    pub(crate) limits: Limits,
    pub(crate) tls: Option<TlsClient>,
    pub(crate) auth: Option<Arc<dyn AuthPlugin>>,
}

type Opening = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

enum Way {
    None,
    /// To a stream.
    Opening(Stage, Opening),
    Open(Box<Link>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connecting,
    Securing,
}

struct Token {
    id: RequestId,
    sink: Arc<dyn CompletionSink>,
}

struct Driver {
    bookie: BookieId,
    address: BookieAddress,
    means: Means,
    machine: Machine<Token>,
    way: Way,
    exchange: Option<Box<dyn AuthExchange>>,
    clock: Clock,
    answers: Vec<(Arc<dyn CompletionSink>, Response)>,
    /// The answers of one sink, while they are handed over.
    batch: Vec<Response>,
    alarm: Alarm,
}

/// One timer, set again only when it has gone off or is set too late: requests come and go without touching it.
struct Alarm {
    sleep: Pin<Box<Sleep>>,
    set_for: Option<Time>,
}

/// Carries out the requests of the mailbox until it is closed.
pub(crate) async fn run(
    bookie: BookieId,
    address: BookieAddress,
    means: Means,
    mailbox: Arc<Mailbox<Asked>>,
) {
    let machine = Machine::new(means.limits.clone());
    let alarm = Alarm { sleep: Box::pin(sleep_until(Instant::now())), set_for: None };
    let mut driver = Driver {
        bookie,
        address,
        means,
        machine,
        way: Way::None,
        exchange: None,
        clock: Clock::new(),
        answers: Vec::new(),
        batch: Vec::new(),
        alarm,
    };
    let mut asked = Vec::new();
    loop {
        driver.set_alarm();
        // Each branch keeps its state outside of its future, so that nothing is lost with the ones that are dropped.
        tokio::select! {
            arrived = mailbox.recv_into(&mut asked) => {
                if arrived.is_err() {
                    driver.handle(Input::Lost(Lost::Unwanted));
                    return driver.hand_over();
                }
                for (request, sink) in asked.drain(..) {
                    let Request { id, ledger, body } = request;
                    driver.handle(Input::Submit { token: Token { id, sink }, ledger, body });
                }
            }
            event = driver.way.event() => driver.on_event(event),
            () = driver.alarm.wait() => driver.handle(Input::Wake),
        }
        driver.hand_over();
    }
}

enum Event {
    Opened(Stage, io::Result<Box<dyn Stream>>),
    Turned(io::Result<Turn>),
}

impl Way {
    /// What happens next on the way to the bookie. Cancel-safe.
    async fn event(&mut self) -> Event {
        match self {
            Self::None => pending().await,
            Self::Opening(stage, opening) => Event::Opened(*stage, opening.await),
            Self::Open(link) => Event::Turned(link.turn(Reading::Now).await),
        }
    }
}

impl Alarm {
    async fn wait(&mut self) {
        if self.set_for.is_none() {
            pending::<()>().await;
        }
        self.sleep.as_mut().await;
        self.set_for = None;
    }
}

impl Driver {
    fn set_alarm(&mut self) {
        if let Some(at) = self.machine.wake_at()
            && self.alarm.set_for.is_none_or(|set_for| set_for > at)
        {
            self.alarm.sleep.as_mut().reset(self.clock.instant(at));
            self.alarm.set_for = Some(at);
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Opened(stage, Ok(stream)) => {
                self.way = Way::Open(Box::new(Link::new(stream)));
                self.handle(match stage {
                    Stage::Connecting => Input::Connected,
                    Stage::Securing => Input::Secured,
                });
            }
            Event::Opened(stage, Err(error)) => {
                let reason = error.to_string();
                self.handle(Input::Lost(match stage {
                    Stage::Connecting => Lost::NotConnected(reason),
                    Stage::Securing => Lost::Tls(reason),
                }));
            }
            Event::Turned(Ok(Turn::Flushed)) => self.handle(Input::Flushed),
            Event::Turned(Ok(Turn::Received)) => self.on_received(),
            Event::Turned(Ok(Turn::Closed)) => self.handle(Input::Lost(Lost::Closed)),
            Event::Turned(Err(error)) => {
                self.handle(Input::Lost(Lost::Broken(error.to_string())));
            }
        }
    }

    fn on_received(&mut self) {
        // Handling an answer may end the connection or encrypt it.
        while let Way::Open(link) = &mut self.way {
            let protocol = self.machine.answers_in();
            let decoded = match link.incoming.next_frame() {
                Ok(None) => return,
                Ok(Some(frame)) => protocol.decode_response(frame).map_err(Lost::from),
                Err(error) => Err(error.into()),
            };
            self.handle(decoded.map_or_else(Input::Lost, Input::Received));
        }
    }

    /// Hands in what has happened and does what follows from it.
    fn handle(&mut self, input: Input<Token>) {
        let mut next = Some(input);
        while let Some(input) = next.take() {
            self.machine.handle(self.clock.now(), input);
            while let Some(output) = self.machine.poll_output() {
                next = self.carry_out(output).or(next);
            }
        }
    }

    /// Does one thing; some have an outcome at once.
    fn carry_out(&mut self, output: Output<Token>) -> Option<Input<Token>> {
        match output {
            Output::Connect => {
                let opening = Box::pin(open(self.address.clone()));
                self.way = Way::Opening(Stage::Connecting, opening);
            }
            Output::Secure => return self.secure(),
            Output::Challenge(heard) => return Some(self.prove(heard)),
            Output::Send(protocol, frame) => {
                if let Way::Open(link) = &mut self.way {
                    protocol.encode_request(&frame, &mut link.outgoing);
                }
            }
            Output::Answer { token: Token { id, sink }, result } => {
                let instance = match result {
                    // Nobody has answered.
                    Err(BookieError::Unreachable | BookieError::Timeout) => None,
                    _ => self.address.instance,
                };
                let bookie = self.bookie.clone();
                self.answers.push((sink, Response { id, bookie, instance, result }));
            }
            Output::Disconnect(lost) => {
                self.way = Way::None;
                self.exchange = None;
                let (bookie, address) = (&self.bookie, &self.address.host_port);
                match lost {
                    Lost::Unwanted => tracing::debug!(%bookie, %address, "{lost}"),
                    _ => tracing::warn!(%bookie, %address, "connection to a bookie lost: {lost}"),
                }
            }
        }
        None
    }

    fn secure(&mut self) -> Option<Input<Token>> {
        let lost = |reason: &str| Some(Input::Lost(Lost::Tls(reason.into())));
        let Some(tls) = self.means.tls.clone() else {
            return lost("it is not configured on this side");
        };
        let Way::Open(mut link) = std::mem::replace(&mut self.way, Way::None) else {
            return lost("there is no connection");
        };
        // What came in the clear must not pass for what was said in TLS.
        if !link.incoming.buffer().is_empty() {
            return lost("the bookie went on in the clear");
        }
        let host = self.address.host().to_owned();
        self.way = Way::Opening(Stage::Securing, Box::pin(tls.connect(host, link.stream)));
        None
    }

    fn prove(&mut self, heard: Option<bytes::Bytes>) -> Input<Token> {
        if heard.is_none() {
            self.exchange = self.means.auth.as_ref().map(|plugin| plugin.begin(&self.bookie));
        }
        let step = match &mut self.exchange {
            Some(exchange) => exchange.next(heard),
            None => Err("no plugin is configured on this side".into()),
        };
        match step {
            Ok(step) => Input::Proof(step),
            Err(reason) => Input::Lost(Lost::Authentication(reason)),
        }
    }

    /// Gives the answers to those who wait, in one batch for each.
    fn hand_over(&mut self) {
        // Stable, so that each gets its answers in order.
        self.answers.sort_by_key(|(sink, _)| Arc::as_ptr(sink).cast::<()>());
        let mut answers = self.answers.drain(..).peekable();
        while let Some((sink, answer)) = answers.next() {
            self.batch.push(answer);
            if answers.peek().is_none_or(|(next, _)| !Arc::ptr_eq(next, &sink)) {
                sink.complete(&mut self.batch);
                self.batch.clear();
            }
        }
    }
}

async fn open(address: BookieAddress) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(&*address.host_port).await?;
    // Whole batches are written at once; waiting for more to send would only delay them.
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}
