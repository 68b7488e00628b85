//! The exchange by which a client proves who it is.

use bytes::Bytes;

use super::hostile::{Client, Fake};
use super::*;
use crate::bookie::conformance::LEDGER;
use crate::wire::auth::AuthExchange;
use crate::wire::{
    AUTH_DISABLED, AuthMessage, AuthStep, Request as Said, RequestFrame, ResponseBody as Body,
    ResponseFrame,
};

/// Says its name, and then the challenge backwards.
struct Backwards;

struct Exchange {
    bookie: BookieId,
}

impl AuthPlugin for Backwards {
    fn name(&self) -> &'static str {
        "backwards"
    }

    fn begin(&self, bookie: &BookieId) -> Box<dyn AuthExchange> {
        Box::new(Exchange { bookie: bookie.clone() })
    }
}

impl AuthExchange for Exchange {
    fn next(&mut self, heard: Option<Bytes>) -> Result<AuthStep, String> {
        match heard {
            None => Ok(AuthStep::Send(Bytes::from(format!("client of {}", self.bookie)))),
            Some(challenge) if challenge.is_empty() => Err("the bookie asks nothing".into()),
            Some(challenge) if challenge == "welcome" => Ok(AuthStep::Done),
            Some(challenge) => Ok(AuthStep::Send(challenge.iter().rev().copied().collect())),
        }
    }
}

fn proving(protocol: Protocol) -> TcpConfig {
    TcpConfig { auth: Some(Arc::new(Backwards)), ..config(protocol) }
}

fn proof(frame: &RequestFrame) -> &[u8] {
    match &frame.request {
        Said::Auth(message) if message.plugin == "backwards" => &message.payload,
        other => panic!("{other:?} is no proof"),
    }
}

async fn challenge(client: &mut Client, frame: &RequestFrame, plugin: &str, payload: &'static str) {
    let message = AuthMessage { plugin: plugin.into(), payload: payload.into() };
    let operation = frame.request.operation();
    let (transaction, status) = (frame.transaction, Ok(()));
    client
        .answer(&ResponseFrame { transaction, operation, status, body: Body::Auth(message) })
        .await;
}

#[tokio::test]
async fn the_proof_takes_as_many_rounds_as_both_want_and_requests_come_after_it() {
    for protocol in [Protocol::V2, Protocol::V3] {
        let one = Fake::new(proving(protocol)).await;
        one.send(1, LEDGER, vec![add(0, AddKind::Normal)]);
        let mut client = one.kind.accept().await;
        let first = client.hear().await;
        assert_eq!(proof(&first), b"client of b1");
        challenge(&mut client, &first, "backwards", "abc").await;
        let second = client.hear().await;
        assert_eq!(proof(&second), b"cba");
        challenge(&mut client, &second, "backwards", "welcome").await;
        let asked = client.hear().await;
        assert!(matches!(asked.request, Said::Add { .. }), "{protocol:?} {asked:?}");
    }
}

#[tokio::test]
async fn a_bookie_that_wants_no_proof_is_asked_at_once() {
    let one = Fake::new(proving(Protocol::V3)).await;
    one.send(1, LEDGER, vec![add(0, AddKind::Normal)]);
    let mut client = one.kind.accept().await;
    let first = client.hear().await;
    challenge(&mut client, &first, AUTH_DISABLED, "").await;
    assert!(matches!(client.hear().await.request, Said::Add { .. }));
    // The server of this project is such a bookie.
    let mut served = One::new(Tcp::new(proving(Protocol::V2), None).await);
    assert!(served.ask(add(0, AddKind::Normal)).await.is_ok());
}

#[tokio::test]
async fn without_a_proof_nothing_is_asked() {
    for (plugin, payload) in [("another", "abc"), ("backwards", "")] {
        let mut one = Fake::new(proving(Protocol::V3)).await;
        one.send(1, LEDGER, vec![add(0, AddKind::Normal)]);
        let mut client = one.kind.accept().await;
        let first = client.hear().await;
        challenge(&mut client, &first, plugin, payload).await;
        assert_eq!(one.answers(1).await, [(1, Err(BookieError::Unreachable))]);
        client.gone().await;
    }
}

#[test]
fn a_configuration_shows_the_plugin_and_no_more() {
    let shown = format!("{:?}", proving(Protocol::V3));
    assert!(shown.contains("backwards"), "{shown}");
}
