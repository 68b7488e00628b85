//! Bookies that answer what no bookie should.

use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::bookie::conformance::{Answer, LEDGER};
use crate::wire::{Incoming, Outgoing, Request as Said, ResponseBody as Body, ResponseFrame};

/// A connection of a client, for a bookie that is played by a test.
pub(super) struct Client {
    stream: TcpStream,
    incoming: Incoming,
    protocol: Protocol,
}

impl Client {
    /// The next request.
    pub(super) async fn hear(&mut self) -> crate::wire::RequestFrame {
        loop {
            if let Some(frame) = self.incoming.next_frame().expect("clients send frames") {
                return self.protocol.decode_request(frame).expect("clients send messages");
            }
            let read = self.stream.read_buf(self.incoming.buffer()).await.expect("open");
            assert_ne!(read, 0, "the client hung up");
        }
    }

    pub(super) async fn say(&mut self, bytes: &[u8]) {
        // It may have hung up already, which is what some of these are for.
        let _ = self.stream.write_all(bytes).await;
    }

    /// Answers a request, or part of it.
    pub(super) async fn answer(&mut self, frame: &ResponseFrame) {
        let bytes = encoded(self.protocol, frame);
        self.say(&bytes).await;
    }

    /// Waits until the client hangs up.
    pub(super) async fn gone(&mut self) {
        while self.stream.read_buf(self.incoming.buffer()).await.is_ok_and(|read| read > 0) {}
    }
}

fn encoded(protocol: Protocol, frame: &ResponseFrame) -> Bytes {
    let mut out = Outgoing::default();
    protocol.encode_response(frame, &mut out);
    out.copy_to_bytes(out.remaining())
}

/// A bookie whose connections are played by the test.
pub(super) struct Fake {
    listener: TcpListener,
    protocol: Protocol,
    transport: TcpBookies,
}

impl Kind for Fake {
    fn transport(&self) -> &dyn BookieTransport {
        &self.transport
    }

    async fn restart(&mut self) {
        unreachable!("it is never up")
    }

    async fn wipe(&mut self) {
        unreachable!("it has nothing")
    }

    async fn keep_only(&mut self, _: LedgerId) {
        unreachable!("it has nothing")
    }
}

impl Fake {
    pub(super) async fn new(config: TcpConfig) -> One<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let place = Arc::new(Mutex::new(Some(at(address, 1))));
        let protocol = config.limits.protocol;
        One::new(Self { listener, protocol, transport: transport(&place, config) })
    }

    pub(super) async fn accept(&self) -> Client {
        let (stream, _) = self.listener.accept().await.expect("the client connects");
        Client { stream, incoming: Incoming::default(), protocol: self.protocol }
    }
}

fn impatient(protocol: Protocol) -> TcpConfig {
    let mut limits = config(protocol).limits;
    limits.request_timeout = Duration::from_millis(100);
    limits.connect_timeout = Duration::from_millis(100);
    TcpConfig { limits, ..TcpConfig::default() }
}

fn added(asked: &crate::wire::RequestFrame) -> ResponseFrame {
    let Said::Add { entry, .. } = &asked.request else { panic!("{asked:?} is no add") };
    let body = Body::Add { ledger: entry.ledger(), entry: entry.entry() };
    let operation = asked.request.operation();
    ResponseFrame { transaction: asked.transaction, operation, status: Ok(()), body }
}

const UNREACHABLE: Answer = Err(BookieError::Unreachable);

#[tokio::test]
async fn garbage_ends_the_connection_and_acknowledges_nothing() {
    let garbage: [&[u8]; 6] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        &[0xff; 64],
        &[0, 0, 0, 0],
        &[0, 0, 0, 3, 1, 2, 3],
        // A message with a header and no status.
        &[0, 0, 0, 8, 0x0a, 6, 8, 3, 0x10, 2, 0x18, 1],
        &[0, 0, 0, 5, 2, 99, 0, 0, 0],
    ];
    for protocol in [Protocol::V2, Protocol::V3] {
        for bytes in garbage {
            let mut one = Fake::new(config(protocol)).await;
            one.send(1, LEDGER, vec![add(0, AddKind::Normal), add(1, AddKind::Normal)]);
            let mut client = one.kind.accept().await;
            client.hear().await;
            client.say(bytes).await;
            let answers = one.answers(2).await;
            assert_eq!(answers, [(1, UNREACHABLE), (2, UNREACHABLE)], "{protocol:?} {bytes:?}");
            client.gone().await;
        }
    }
}

#[tokio::test]
async fn a_truncated_answer_is_none() {
    for protocol in [Protocol::V2, Protocol::V3] {
        let mut one = Fake::new(config(protocol)).await;
        one.send(1, LEDGER, vec![add(0, AddKind::Normal)]);
        let mut client = one.kind.accept().await;
        let answer = encoded(protocol, &added(&client.hear().await));
        client.say(&answer[..answer.len() - 1]).await;
        drop(client);
        assert_eq!(one.answers(1).await, [(1, UNREACHABLE)]);
    }
}

#[tokio::test]
async fn answers_that_come_twice_or_to_no_request_are_passed_over() {
    for protocol in [Protocol::V2, Protocol::V3] {
        let mut one = Fake::new(config(protocol)).await;
        one.send(1, LEDGER, vec![add(0, AddKind::Normal)]);
        let mut client = one.kind.accept().await;
        let answer = added(&client.hear().await);
        let mut stray = answer.clone();
        stray.transaction += 1000;
        stray.body = Body::Add { ledger: LEDGER, entry: crate::EntryId(1000) };
        for frame in [&stray, &answer, &answer, &stray] {
            client.answer(frame).await;
        }
        assert!(one.answers(1).await[0].1.is_ok());
        one.send(2, LEDGER, vec![add(1, AddKind::Normal)]);
        let answer = added(&client.hear().await);
        client.answer(&answer).await;
        assert_eq!(one.answers(1).await, [(2, Ok(crate::ResponseBody::Added))], "{protocol:?}");
    }
}

#[tokio::test]
async fn an_answer_for_another_entry_acknowledges_none() {
    let mut one = Fake::new(config(Protocol::V3)).await;
    one.send(1, LEDGER, vec![add(0, AddKind::Normal)]);
    let mut client = one.kind.accept().await;
    let mut answer = added(&client.hear().await);
    answer.body = Body::Add { ledger: LEDGER, entry: crate::EntryId(1) };
    client.answer(&answer).await;
    assert_eq!(one.answers(1).await, [(1, UNREACHABLE)]);
}

#[tokio::test]
async fn a_bookie_that_says_nothing_is_given_up_in_time_and_tried_again() {
    for protocol in [Protocol::V2, Protocol::V3] {
        let mut one = Fake::new(impatient(protocol)).await;
        one.send(1, LEDGER, vec![add(0, AddKind::Normal)]);
        let mut client = one.kind.accept().await;
        assert_eq!(one.answers(1).await, [(1, Err(BookieError::Timeout))]);
        client.gone().await;
    }
}

#[tokio::test]
async fn a_bookie_that_does_not_finish_the_greeting_is_given_up_in_time() {
    let authority = tls::Authority::new();
    let tls = Some(TlsClient::new(authority.pem().as_bytes(), None).expect("good PEM"));
    let mut one = Fake::new(TcpConfig { tls, ..impatient(Protocol::V3) }).await;
    one.send(1, LEDGER, vec![add(0, AddKind::Normal)]);
    let mut client = one.kind.accept().await;
    assert_eq!(client.hear().await.request, Said::StartTls);
    assert_eq!(one.answers(1).await, [(1, UNREACHABLE)]);
    client.gone().await;
}

#[tokio::test]
async fn what_follows_start_tls_in_the_clear_is_not_taken_for_what_tls_protects() {
    let authority = tls::Authority::new();
    let tls = Some(TlsClient::new(authority.pem().as_bytes(), None).expect("good PEM"));
    let mut one = Fake::new(TcpConfig { tls, ..config(Protocol::V3) }).await;
    one.send(1, LEDGER, vec![add(0, AddKind::Normal)]);
    let mut client = one.kind.accept().await;
    let asked = client.hear().await;
    let operation = asked.request.operation();
    let transaction = asked.transaction;
    let go = ResponseFrame { transaction, operation, status: Ok(()), body: Body::StartTls };
    // The answer to the add, guessed, in the same write.
    let guessed = ResponseFrame {
        transaction: 1,
        operation: crate::wire::Operation::Add,
        status: Ok(()),
        body: Body::Add { ledger: LEDGER, entry: crate::EntryId(0) },
    };
    let both = [encoded(Protocol::V3, &go), encoded(Protocol::V3, &guessed)].concat();
    client.say(&both).await;
    assert_eq!(one.answers(1).await, [(1, UNREACHABLE)]);
}
