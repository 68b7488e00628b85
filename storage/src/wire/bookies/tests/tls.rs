//! TLS, of the server alone and of both sides.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::*;
use crate::bookie::conformance::{ADDED, Answer};
use crate::wire::tls::{TlsError, TlsIdentity};

/// Makes certificates and vouches for them.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
struct Identity {
    chain: String,
    key: String,
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    fn vouch(&self, name: &str) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a good name");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Identity { chain: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Identity {
    fn as_pem(&self) -> TlsIdentity<'_> {
        TlsIdentity { chain_pem: self.chain.as_bytes(), key_pem: self.key.as_bytes() }
    }
}

fn client(trusts: &Authority, identity: Option<&Identity>) -> TlsClient {
    let identity = identity.map(Identity::as_pem);
    TlsClient::new(trusts.pem().as_bytes(), identity).expect("good PEM")
}

fn server(identity: &Identity, trusts: Option<&Authority>) -> TlsServer {
    let roots = trusts.map(Authority::pem);
    TlsServer::new(identity.as_pem(), roots.as_ref().map(|pem| pem.as_bytes())).expect("good PEM")
}

/// The answer to an add, from a bookie and a client of these kinds.
async fn add_over(
    protocol: Protocol,
    client: Option<TlsClient>,
    server: Option<TlsServer>,
) -> Answer {
    let config = TcpConfig { tls: client, ..config(protocol) };
    let mut one = One::new(Tcp::new(config, server).await);
    one.ask(add(0, AddKind::Normal)).await
}

const REFUSED: Answer = Err(BookieError::Unreachable);

conformance!(over_tls().await);

/// The suite again, in TLS with certificates on both sides.
async fn over_tls() -> Tcp {
    let authority = Authority::new();
    let bookie = authority.vouch("127.0.0.1");
    let me = authority.vouch("client");
    let tls = Some(client(&authority, Some(&me)));
    Tcp::new(TcpConfig { tls, ..config(Protocol::V3) }, Some(server(&bookie, Some(&authority))))
        .await
}

#[tokio::test]
async fn a_bookie_is_believed_if_a_trusted_authority_vouches_for_its_name() {
    let (ours, others) = (Authority::new(), Authority::new());
    let here = ours.vouch("127.0.0.1");
    let elsewhere = ours.vouch("elsewhere.example");
    for protocol in [Protocol::V2, Protocol::V3] {
        let plain = server(&here, None);
        let asked = add_over(protocol, Some(client(&ours, None)), Some(plain.clone())).await;
        assert_eq!(asked, ADDED, "{protocol:?}");
        let asked = add_over(protocol, Some(client(&others, None)), Some(plain)).await;
        assert_eq!(asked, REFUSED, "of an unknown authority");
        let wrong = server(&elsewhere, None);
        let asked = add_over(protocol, Some(client(&ours, None)), Some(wrong.clone())).await;
        assert_eq!(asked, REFUSED, "of another name");
        let named = client(&ours, None).with_server_name("elsewhere.example").expect("a name");
        assert_eq!(add_over(protocol, Some(named), Some(wrong)).await, ADDED);
    }
}

#[tokio::test]
async fn a_bookie_that_wants_to_know_its_clients_lets_in_those_it_can() {
    let (ours, others) = (Authority::new(), Authority::new());
    let here = ours.vouch("127.0.0.1");
    let mutual = || Some(server(&here, Some(&ours)));
    let (known, unknown) = (ours.vouch("client"), others.vouch("client"));
    let with = |identity| Some(client(&ours, identity));
    assert_eq!(add_over(Protocol::V3, with(Some(&known)), mutual()).await, ADDED);
    assert_eq!(add_over(Protocol::V3, with(Some(&unknown)), mutual()).await, REFUSED);
    assert_eq!(add_over(Protocol::V3, with(None), mutual()).await, REFUSED);
}

#[tokio::test]
async fn tls_on_one_side_only_is_no_connection() {
    let authority = Authority::new();
    let here = authority.vouch("127.0.0.1");
    let asked = add_over(Protocol::V3, Some(client(&authority, None)), None).await;
    assert_eq!(asked, REFUSED, "nothing is sent in the clear instead");
    let asked = add_over(Protocol::V3, None, Some(server(&here, None))).await;
    assert_eq!(asked, REFUSED);
}

#[test]
fn what_is_no_pem_is_refused_by_name() {
    let authority = Authority::new();
    let identity = authority.vouch("h");
    let error = |result: Result<TlsClient, TlsError>| result.expect_err("it is bad").to_string();
    let empty = error(TlsClient::new(b"no certificate", None));
    assert_eq!(empty, "the list of authorities has no certificate in it");
    let key = TlsIdentity { key_pem: b"no key", ..identity.as_pem() };
    let no_key = error(TlsClient::new(authority.pem().as_bytes(), Some(key)));
    assert!(no_key.starts_with("the private key is no PEM"), "{no_key}");
    let name = error(client(&authority, None).with_server_name("not a name"));
    assert_eq!(name, "\"not a name\" is no name of a server");
}

#[test]
fn keys_are_not_shown() {
    let authority = Authority::new();
    let identity = authority.vouch("h");
    let shown = format!(
        "{:?} {:?} {:?}",
        identity.as_pem(),
        client(&authority, Some(&identity)),
        server(&identity, None)
    );
    assert!(!shown.contains("PRIVATE") && !shown.contains("certificate"), "{shown}");
}
