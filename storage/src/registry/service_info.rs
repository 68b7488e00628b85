//! What a bookie says of itself where it is registered: Apache BookKeeper's service info. Releases before 4.11 say
//! nothing, and their ids are their addresses.

use std::sync::Arc;

use prost::Message;

use crate::id::BookieId;

/// Where a bookie is reached, `host:port`: as it has registered itself, or else as its id says; none if neither is so.
pub(super) fn address(id: &BookieId, service_info: &[u8]) -> Option<Arc<str>> {
    // What cannot be read says nothing.
    let info = ServiceInfo::decode(service_info).unwrap_or_default();
    let mut endpoints = info.endpoints.into_iter().filter(|e| e.protocol == BOOKIE_PROTOCOL);
    let endpoint = endpoints.find_map(|Endpoint { host, port, .. }| {
        let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
        match host.contains(':') {
            _ if host.is_empty() => None,
            // An IPv6 address.
            true => Some(format!("[{host}]:{port}").into()),
            false => Some(format!("{host}:{port}").into()),
        }
    });
    endpoint.or_else(|| address_of_id(id))
}

/// The address that an id is, in the form that ids had before bookies could be given any: `host:port`.
pub(super) fn address_of_id(id: &BookieId) -> Option<Arc<str>> {
    let (host, port) = id.as_str().rsplit_once(':')?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
    (!host.is_empty() && is_port).then(|| id.as_str().into())
}

#[derive(Clone, PartialEq, Message)]
struct ServiceInfo {
    #[prost(message, repeated, tag = "6")]
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Endpoint {
    #[prost(int32, tag = "2")]
    port: i32,
    #[prost(string, tag = "3")]
    host: String,
    #[prost(string, tag = "4")]
    protocol: String,
}

const BOOKIE_PROTOCOL: &str = "bookie-rpc";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    fn registered(id: &str, info: &[u8]) -> Option<Arc<str>> {
        address(&id.into(), info)
    }

    fn recorded(name: &str) -> Vec<u8> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let path = folder.join("../tests/fixtures/bookkeeper/znodes").join(name);
        fs::read(path).expect("the recording is there")
    }

    #[test]
    fn recorded_bookies_are_where_they_say() {
        let is = |id, file, address: &str| {
            assert_eq!(registered(id, &recorded(file)).as_deref(), Some(address), "{file}");
        };
        is("bookie-1", "named/available~bookie-1.bin", "127.0.0.1:26015");
        is("bookie-2", "named/available~bookie-2.bin", "127.0.0.1:20950");
        is("bookie-4", "named/available~readonly~bookie-4.bin", "127.0.0.1:31200");
        let (id, file) = ("127.0.0.1:24355", "host-port/available~127.0.0.1_24355.bin");
        is(id, file, "127.0.0.1:24355");
        let (id, file) = ("127.0.0.1:22088", "release-4.14.7/available~127.0.0.1_22088.bin");
        is(id, file, "127.0.0.1:22088");
    }

    #[test]
    fn without_service_info_an_id_is_an_address_or_the_bookie_cannot_be_reached() {
        assert_eq!(registered("10.0.0.1:3181", b"").as_deref(), Some("10.0.0.1:3181"));
        for id in ["bookie-1", "a:", ":1", "a:0", "a:65536"] {
            assert_eq!(registered(id, b""), None, "{id}");
        }
    }

    #[test]
    fn endpoints_of_other_protocols_are_passed_over() {
        let endpoint = |port, protocol: &str| Endpoint {
            port,
            host: "b.example".into(),
            protocol: protocol.into(),
        };
        let info = |endpoints| ServiceInfo { endpoints }.encode_to_vec();
        let both = info(vec![endpoint(8000, "http"), endpoint(3181, "bookie-rpc")]);
        assert_eq!(registered("bookie-1", &both).as_deref(), Some("b.example:3181"));
        let six = info(vec![Endpoint { host: "::1".into(), ..endpoint(3181, "bookie-rpc") }]);
        assert_eq!(registered("bookie-1", &six).as_deref(), Some("[::1]:3181"));
        for useless in
            [endpoint(8000, "http"), endpoint(0, "bookie-rpc"), endpoint(-1, "bookie-rpc")]
        {
            let info = info(vec![useless]);
            assert_eq!(registered("bookie-1", &info), None);
            assert_eq!(registered("10.0.0.1:3181", &info).as_deref(), Some("10.0.0.1:3181"));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_service_info_never_panics(info: Vec<u8>, id in ".{0,9}(:[0-9]{1,6})?") {
            let address = address(&id.as_str().into(), &info);
            prop_assert!(address.is_none_or(|address| !address.starts_with(':') && !address.ends_with(":0")));
        }
    }
}
