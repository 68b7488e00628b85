//! What a connection does: when it is made, what is sent, which answer belongs to what, and when it is over.
//!
//! ```text
//!             request                connected             proofs done
//!   Apart ──────────────► Connecting ─────────► Greeting ─────────────► Ready
//!     ▲                       │                     │                     │
//!     └──── lost, and pause ──┴──────── lost ───────┴──── lost, garbage, silence
//! ```
//! A connection is made when there is something to send. On the way to `Ready` the client asks for TLS, and then speaks
//! first to prove who it is; either only if the limits say so. Requests wait meanwhile. Losing the connection answers all
//! of them; the next request makes a new one, after a pause if the last attempt brought nothing.
//!
//! 1. Each request is answered exactly once, whatever comes when.
//! 2. Nothing is concluded from an answer that does not name the ledger and entry that were asked for: the connection is
//!    given up.
//! 3. In v2, where an answer does not say to which request it belongs, no two requests that it could belong to are out at
//!    a time. One that is overdue ends the connection: its late answer must not pass for that of a later request.
//! 4. In v3 an overdue request is answered by itself. If nothing at all has come since it was sent, the connection is
//!    given up.
//!
//! The driver carries out each output before the next input. After [`Output::Disconnect`] nothing of the old connection
//! is handed in any more.

use std::collections::VecDeque;

use bytes::Bytes;

use super::pending::{Next, Number, Pending, Stage, weight};
use super::{ENTRY_BYTES_MAX, Limits, REQUEST_BYTES, Security};
use crate::id::LedgerId;
use crate::time::Time;
use crate::transport::{BookieError, RequestBody, ResponseBody};
use crate::wire::AUTH_DISABLED;
use crate::wire::frame::FrameError;
use crate::wire::message::{
    AuthMessage, DecodeError, Priority, Request, RequestFrame, ResponseBody as Body, ResponseFrame,
};
use crate::wire::status::Protocol;
use crate::wire::words;

/// What happens to a connection. `T` is the sender's name for a request.
#[derive(Debug)]
pub enum Input<T> {
    /// Somebody asks.
    Submit {
        /// Comes back with the answer.
        token: T,
        /// The ledger concerned.
        ledger: LedgerId,
        /// What is asked.
        body: RequestBody,
    },
    /// The stream is open.
    Connected,
    /// The stream is encrypted.
    Secured,
    /// The next step of the proof.
    Proof(AuthStep),
    /// An answer came.
    Received(ResponseFrame),
    /// Everything that was sent has been taken by the socket.
    Flushed,
    /// There is no stream, or it is of no more use.
    Lost(Lost),
    /// The time of [`Machine::wake_at`] has come.
    Wake,
}

/// What has to be done for a connection.
#[derive(Debug)]
pub enum Output<T> {
    /// Open a stream to the bookie.
    Connect,
    /// Go on in TLS on the stream that there is.
    Secure,
    /// Find the next step of the proof. None to begin it.
    Challenge(Option<Bytes>),
    /// Send a request, in this protocol.
    Send(Protocol, RequestFrame),
    /// Tell who asked.
    Answer {
        /// Whom.
        token: T,
        /// What.
        result: Result<ResponseBody, BookieError>,
    },
    /// Close the stream, whatever its state.
    Disconnect(Lost),
}

/// A step of the client's proof.
#[derive(Clone, PartialEq, Eq)]
pub enum AuthStep {
    /// Say this, and wait for the bookie's answer.
    Send(Bytes),
    /// Say this; that is all.
    SendLast(Bytes),
    /// There is nothing more to say.
    Done,
}

impl std::fmt::Debug for AuthStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Send(_) => "Send(..)",
            Self::SendLast(_) => "SendLast(..)",
            Self::Done => "Done",
        })
    }
}

/// Why there is no connection any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// No stream could be opened.
    #[error("cannot connect: {0}")]
    NotConnected(String),
    /// The stream broke.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The bookie closed it.
    #[error("the bookie closed the connection")]
    Closed,
    /// It took too long until requests could be sent.
    #[error("no connection was made in time; is this the port of a bookie?")]
    TooSlow,
    /// No answer at all came for as long as a request may take.
    #[error("the bookie has not answered anything for longer than a request may take")]
    Silent,
    /// A request in v2 was not answered in time.
    #[error("a request was not answered in time, and its late answer could pass for another's")]
    Overdue,
    /// What came is no frame.
    #[error("the bookie sent what is no frame: {0}")]
    Frame(#[from] FrameError),
    /// What came is no message.
    #[error("the bookie sent what is no message: {0}")]
    Message(#[from] DecodeError),
    /// What came is an answer to something else.
    #[error("the bookie answered another question than it was asked")]
    OtherQuestion,
    /// The bookie does not speak TLS.
    #[error("the bookie refused START_TLS; is TLS configured on it?")]
    TlsRefused,
    /// TLS could not be agreed on.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// The bookie wants another kind of proof.
    #[error("the bookie authenticates by {theirs:?}, this client by {ours:?}")]
    OtherPlugin {
        /// The client's plugin.
        ours: String,
        /// The bookie's.
        theirs: String,
    },
    /// The proof was not accepted, or could not be made.
    #[error("authentication failed: {0}")]
    Authentication(String),
    /// Nobody needs it any more.
    #[error("the transport was closed")]
    Unwanted,
}

/// The connection to one bookie.
///
/// One input, then all outputs by [`poll_output`](Self::poll_output), then the next input.
#[derive(Debug)]
pub struct Machine<T> {
    limits: Limits,
    state: State,
    pending: Pending<T>,
    next_number: Number,
    /// Sent and not yet taken by the socket.
    unflushed_bytes: usize,
    /// Attempts in a row that brought no answer.
    failures: u32,
    outputs: VecDeque<Output<T>>,
}

#[derive(Debug)]
enum State {
    Apart { until: Time },
    Connecting { until: Time },
    Greeting { step: Greeting, until: Time },
    Ready { heard_at: Option<Time> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
    AskingForTls,
    Securing,
    Proving,
}

impl<T> Machine<T> {
    /// A connection that is made once something is asked.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: State::Apart { until: Time::ZERO },
            pending: Pending::new(),
            next_number: 1,
            unflushed_bytes: 0,
            failures: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Takes what has happened.
    pub fn handle(&mut self, now: Time, input: Input<T>) {
        match input {
            Input::Submit { token, ledger, body } => self.on_submit(now, token, ledger, body),
            Input::Connected => self.on_connected(),
            Input::Secured => self.on_secured(),
            Input::Proof(step) => self.on_proof(step),
            Input::Received(frame) => self.on_received(now, frame),
            Input::Flushed => self.unflushed_bytes = 0,
            Input::Lost(lost) => self.lose(now, lost),
            Input::Wake => self.on_wake(now),
        }
        self.send(now);
    }

    /// The next thing to do; none until the next input.
    pub fn poll_output(&mut self) -> Option<Output<T>> {
        self.outputs.pop_front()
    }

    /// When [`Input::Wake`] is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let state = match self.state {
            State::Connecting { until } | State::Greeting { until, .. } => Some(until),
            // The end of a pause is noticed by the next request.
            State::Apart { .. } | State::Ready { .. } => None,
        };
        [state, self.pending.next_due()].into_iter().flatten().min()
    }

    /// In which protocol the next answer comes.
    #[must_use]
    pub const fn answers_in(&self) -> Protocol {
        match self.state {
            State::Greeting { step: Greeting::AskingForTls, .. } => Protocol::V3,
            _ => self.limits.protocol,
        }
    }

    fn on_submit(&mut self, now: Time, token: T, ledger: LedgerId, body: RequestBody) {
        let Some(said) = words::ask(self.limits.protocol, ledger, body, self.limits.lac_wait)
        else {
            return self.answer(token, Err(BookieError::BadVersion));
        };
        let bytes = weight(&said.1);
        if bytes > REQUEST_BYTES + ENTRY_BYTES_MAX {
            // The bookie would hang up, and take the requests of others with it.
            return self.answer(token, Err(BookieError::BadRequest));
        }
        if let State::Apart { until } = self.state {
            if now < until {
                return self.answer(token, Err(BookieError::Unreachable));
            }
            self.state = State::Connecting { until: now + self.limits.connect_timeout };
            self.outputs.push_back(Output::Connect);
        }
        if !self.pending.is_empty() && self.pending.bytes() + bytes > self.limits.pending_bytes_max
        {
            return self.answer(token, Err(BookieError::TooManyRequests));
        }
        let mut due = now + self.limits.request_timeout;
        if said.2.is_wait() {
            due = due + self.limits.lac_wait;
        }
        let number = self.number();
        self.pending.push(number, token, said, due);
    }

    fn on_connected(&mut self) {
        let State::Connecting { until } = self.state else { return };
        match self.limits.security {
            Security::Plain => self.prove(until),
            Security::StartTls => {
                self.state = State::Greeting { step: Greeting::AskingForTls, until };
                self.greet(Protocol::V3, Request::StartTls);
            }
        }
    }

    fn on_secured(&mut self) {
        if let State::Greeting { step: Greeting::Securing, until } = self.state {
            self.prove(until);
        }
    }

    /// Begins to prove who the client is, or skips that.
    fn prove(&mut self, until: Time) {
        if self.limits.auth_plugin.is_some() {
            self.state = State::Greeting { step: Greeting::Proving, until };
            self.outputs.push_back(Output::Challenge(None));
        } else {
            self.state = State::Ready { heard_at: None };
        }
    }

    fn on_proof(&mut self, step: AuthStep) {
        if !matches!(self.state, State::Greeting { step: Greeting::Proving, .. }) {
            return;
        }
        let is_last = !matches!(step, AuthStep::Send(_));
        if let AuthStep::Send(payload) | AuthStep::SendLast(payload) = step {
            let plugin = self.limits.auth_plugin.clone().unwrap_or_default();
            let message = AuthMessage { plugin, payload };
            self.greet(self.limits.protocol, Request::Auth(message));
        }
        if is_last {
            self.state = State::Ready { heard_at: None };
        }
    }

    fn on_received(&mut self, now: Time, frame: ResponseFrame) {
        match (&mut self.state, &frame.body) {
            (State::Greeting { step, .. }, _) => {
                let step = *step;
                self.on_greeted(now, step, frame);
            }
            // To the last step of the proof, which needs no answer.
            (State::Ready { .. }, Body::Auth(_)) => {}
            (State::Ready { heard_at }, _) => {
                *heard_at = Some(now);
                self.failures = 0;
                self.on_answer(now, frame);
            }
            (State::Apart { .. } | State::Connecting { .. }, _) => {}
        }
    }

    fn on_greeted(&mut self, now: Time, step: Greeting, frame: ResponseFrame) {
        match (step, frame.body) {
            (Greeting::AskingForTls, Body::StartTls) if frame.status.is_ok() => {
                if let State::Greeting { step, .. } = &mut self.state {
                    *step = Greeting::Securing;
                }
                self.outputs.push_back(Output::Secure);
            }
            (Greeting::AskingForTls, _) => self.lose(now, Lost::TlsRefused),
            (Greeting::Proving, Body::Auth(message)) => {
                let ours = self.limits.auth_plugin.clone().unwrap_or_default();
                if let Err(refused) = frame.status {
                    self.lose(now, Lost::Authentication(format!("the bookie {refused}")));
                } else if message.plugin == AUTH_DISABLED {
                    self.state = State::Ready { heard_at: None };
                } else if message.plugin != ours {
                    self.lose(now, Lost::OtherPlugin { ours, theirs: message.plugin });
                } else {
                    self.outputs.push_back(Output::Challenge(Some(message.payload)));
                }
            }
            (Greeting::Proving, _) => match frame.status {
                Err(refused) => {
                    self.lose(now, Lost::Authentication(format!("the bookie {refused}")));
                }
                Ok(()) => self.lose(now, Lost::OtherQuestion),
            },
            (Greeting::Securing, _) => self.lose(now, Lost::OtherQuestion),
        }
    }

    fn on_answer(&mut self, now: Time, frame: ResponseFrame) {
        let number = match self.limits.protocol {
            Protocol::V3 => Some(frame.transaction),
            Protocol::V2 => match frame.place() {
                Some(place) => self.pending.at(&place),
                None => return self.lose(now, Lost::OtherQuestion),
            },
        };
        // An answer to a request that was given up, or a second one: nobody waits for it.
        let Some((number, asked)) =
            number.and_then(|number| Some((number, self.pending.sent(number)?)))
        else {
            return;
        };
        match asked.question.understand(frame) {
            Err(words::OtherQuestion) => self.lose(now, Lost::OtherQuestion),
            Ok(result) => {
                if let Some(asked) = self.pending.remove(number) {
                    self.answer(asked.token, result);
                }
            }
        }
    }

    fn on_wake(&mut self, now: Time) {
        let is_late = match self.state {
            State::Connecting { until } | State::Greeting { until, .. } => until <= now,
            State::Apart { .. } | State::Ready { .. } => false,
        };
        if is_late {
            return self.lose(now, Lost::TooSlow);
        }
        let mut lost = None;
        for asked in self.pending.take_overdue(now) {
            if let (Stage::Sent { at }, State::Ready { heard_at }) = (&asked.stage, &self.state) {
                match self.limits.protocol {
                    Protocol::V2 => lost = Some(Lost::Overdue),
                    Protocol::V3 if *heard_at < Some(*at) => lost = Some(Lost::Silent),
                    Protocol::V3 => {}
                }
            }
            self.answer(asked.token, Err(BookieError::Timeout));
        }
        if let Some(lost) = lost {
            self.lose(now, lost);
        }
    }

    /// Gives the connection up. Whether requests were carried out that were sent and not answered is not known.
    fn lose(&mut self, now: Time, lost: Lost) {
        let pause = match self.state {
            State::Apart { .. } => return,
            State::Ready { heard_at: Some(_) } => std::time::Duration::ZERO,
            State::Ready { heard_at: None } | State::Connecting { .. } | State::Greeting { .. } => {
                self.failures = self.failures.saturating_add(1);
                let doublings = (self.failures - 1).min(31);
                let pause = self.limits.retry_first.saturating_mul(1 << doublings);
                pause.min(self.limits.retry_longest)
            }
        };
        self.state = State::Apart { until: now + pause };
        self.unflushed_bytes = 0;
        self.outputs.push_back(Output::Disconnect(lost));
        let unanswered: Vec<_> = self.pending.take_all().collect();
        for token in unanswered {
            self.answer(token, Err(BookieError::Unreachable));
        }
    }

    /// Sends what may be sent.
    fn send(&mut self, now: Time) {
        if !matches!(self.state, State::Ready { .. }) {
            return;
        }
        let protocol = self.limits.protocol;
        while self.unflushed_bytes < self.limits.unflushed_bytes_max {
            match self.pending.next_unsent(now, protocol == Protocol::V2) {
                Next::None | Next::Occupied => return,
                Next::Request(number, priority, request, bytes) => {
                    self.unflushed_bytes += bytes;
                    let frame = RequestFrame { transaction: number, priority, request };
                    self.outputs.push_back(Output::Send(protocol, frame));
                }
            }
        }
    }

    fn greet(&mut self, protocol: Protocol, request: Request) {
        let transaction = self.number();
        let frame = RequestFrame { transaction, priority: Priority::Normal, request };
        self.outputs.push_back(Output::Send(protocol, frame));
    }

    fn answer(&mut self, token: T, result: Result<ResponseBody, BookieError>) {
        self.outputs.push_back(Output::Answer { token, result });
    }

    const fn number(&mut self) -> Number {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}
