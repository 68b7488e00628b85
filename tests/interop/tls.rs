//! TLS with real bookies.

use std::path::Path;
use std::process::Command;

use georepl_storage::wire::{Limits, Protocol, TcpConfig, TlsClient};
use georepl_storage::{AddKind, BookieError};

use crate::answers::{ADDED, Answer, Asker};
use crate::rig::Rig;

/// Makes a key and a certificate for 127.0.0.1 in `dir`, for a bookie to use, and returns the certificate in PEM.
fn keys(dir: &Path) -> Vec<u8> {
    let store = dir.join("bookie.p12");
    let keytool = |arguments: &[&str]| {
        let mut command = Command::new("keytool");
        command.args(arguments).arg("-keystore").arg(&store);
        command.args(["-alias", "bookie", "-storepass", PASSWORD, "-storetype", "PKCS12"]);
        let output = command.output().expect("keytool comes with the JDK");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        output.stdout
    };
    let names = ["-dname", "CN=bookie", "-ext", "san=ip:127.0.0.1"];
    keytool(&[&["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1"][..], &names].concat());
    keytool(&["-exportcert", "-rfc"])
}

const PASSWORD: &str = "changeit";

#[tokio::test(flavor = "multi_thread")]
async fn a_real_bookie_is_spoken_to_in_tls_if_its_certificate_is_trusted() {
    let (dir, elsewhere) = (tempfile::tempdir(), tempfile::tempdir());
    let (dir, elsewhere) = (dir.expect("a directory"), elsewhere.expect("another"));
    let trusted = keys(dir.path());
    let other = keys(elsewhere.path());
    let password = dir.path().join("password");
    std::fs::write(&password, PASSWORD).expect("a file");
    let rig = Rig::up_with(
        1,
        &[
            "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory".into(),
            "tlsProvider=JDK".into(),
            "tlsKeyStoreType=PKCS12".into(),
            format!("tlsKeyStore={}", dir.path().join("bookie.p12").display()),
            format!("tlsKeyStorePasswordPath={}", password.display()),
        ],
    );
    let unreachable: Answer = Err(BookieError::Unreachable);
    for (protocol, ledger) in [(Protocol::V2, 7000), (Protocol::V3, 7001)] {
        for (roots, expected) in [(&trusted, ADDED), (&other, unreachable.clone())] {
            let tls = Some(TlsClient::new(roots, None).expect("keytool writes PEM"));
            let limits = Limits { protocol, ..Limits::default() };
            let config = TcpConfig { limits, tls, ..TcpConfig::default() };
            let bookie = Asker::new(&rig, ledger, config);
            assert_eq!(bookie.ask(bookie.add(0, AddKind::Normal)).await, expected, "{protocol:?}");
        }
    }
}
