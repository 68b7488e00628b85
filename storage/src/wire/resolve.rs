//! Where bookies are.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::id::{BookieId, Instance};
use crate::registry::{BookieRegistry, RegisteredBookie};

/// The address of a bookie, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookieAddress {
    /// Host, or IP address, and port, with a colon between them.
    pub host_port: Arc<str>,
    /// Which life of the bookie is there, if that is known. A connection belongs to one life: when this changes, the
    /// next request makes a new connection.
    pub instance: Option<Instance>,
}

impl BookieAddress {
    /// The host, without brackets around an IPv6 address.
    pub(super) fn host(&self) -> &str {
        let host = self.host_port.rsplit_once(':').map_or(&*self.host_port, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// Knows where bookies are. It is asked for every batch of requests and must answer at once.
pub trait BookieResolver: Send + Sync {
    /// The address of a bookie; none if nobody knows it, which makes the bookie unreachable.
    fn resolve(&self, bookie: &BookieId) -> Option<BookieAddress>;
}

impl<F> BookieResolver for F
where
    F: Fn(&BookieId) -> Option<BookieAddress> + Send + Sync,
{
    fn resolve(&self, bookie: &BookieId) -> Option<BookieAddress> {
        self(bookie)
    }
}

/// Bookies whose id is their address, `host:port`, in the life that a registry names.
///
/// A bookie that is not registered any more, because its session has ended or it is shutting down, is where it was: it
/// may still answer.
pub struct IdsAreAddresses {
    seen: Mutex<Seen>,
}

struct Seen {
    registered: watch::Receiver<Arc<[RegisteredBookie]>>,
    addresses: HashMap<BookieId, BookieAddress>,
}

impl IdsAreAddresses {
    /// Follows a registry.
    #[must_use]
    pub fn new(registry: &dyn BookieRegistry) -> Self {
        let mut registered = registry.bookies();
        registered.mark_changed();
        Self { seen: Mutex::new(Seen { registered, addresses: HashMap::new() }) }
    }
}

impl BookieResolver for IdsAreAddresses {
    fn resolve(&self, bookie: &BookieId) -> Option<BookieAddress> {
        let mut seen = self.seen.lock();
        if seen.registered.has_changed().unwrap_or(false) {
            let bookies = seen.registered.borrow_and_update().clone();
            for RegisteredBookie { id, instance, .. } in &*bookies {
                if let Some(host_port) = host_port(id) {
                    let address = BookieAddress { host_port, instance: Some(*instance) };
                    seen.addresses.insert(id.clone(), address);
                }
            }
        }
        let known = seen.addresses.get(bookie).cloned();
        known.or_else(|| Some(BookieAddress { host_port: host_port(bookie)?, instance: None }))
    }
}

/// Bookies of any ids: each is where it says in ZooKeeper, in the life that is recorded there. One that is not registered
/// any more is where it was.
#[cfg(feature = "zookeeper")]
impl BookieResolver for crate::registry::ZooKeeperRegistry {
    fn resolve(&self, bookie: &BookieId) -> Option<BookieAddress> {
        let (host_port, instance) = self.address_of(bookie)?;
        Some(BookieAddress { host_port, instance })
    }
}

/// The id, if it is an address.
fn host_port(bookie: &BookieId) -> Option<Arc<str>> {
    let (host, port) = bookie.as_str().rsplit_once(':')?;
    (!host.is_empty() && port.parse::<u16>().is_ok()).then(|| bookie.as_str().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bookie::rules::Mode;
    use crate::registry::MemoryBookieRegistry;

    fn registered(id: &str, instance: u64) -> RegisteredBookie {
        RegisteredBookie { id: id.into(), instance: Instance(instance), mode: Mode::Writable }
    }

    fn instance(resolver: &IdsAreAddresses, id: &str) -> Option<Option<u64>> {
        let address = resolver.resolve(&id.into())?;
        assert_eq!(&*address.host_port, id);
        Some(address.instance.map(|instance| instance.0))
    }

    #[test]
    fn an_address_is_in_the_life_that_was_registered_last() {
        let registry = MemoryBookieRegistry::new([]);
        registry.register(registered("h:1", 4));
        let resolver = IdsAreAddresses::new(&registry);
        assert_eq!(instance(&resolver, "h:1"), Some(Some(4)));
        registry.register(registered("h:1", 5));
        assert_eq!(instance(&resolver, "h:1"), Some(Some(5)));
        registry.unregister(&"h:1".into());
        assert_eq!(instance(&resolver, "h:1"), Some(Some(5)), "it may still answer");
        assert_eq!(instance(&resolver, "h:2"), Some(None), "of unknown life");
    }

    #[test]
    fn an_id_that_is_no_address_is_nowhere() {
        let resolver = IdsAreAddresses::new(&MemoryBookieRegistry::new(["b1".into()]));
        for id in ["b1", ":3181", "h:", "h:x", "h:99999"] {
            assert_eq!(instance(&resolver, id), None, "{id}");
        }
    }

    #[test]
    fn the_host_of_an_address_has_no_brackets() {
        for (address, host) in [("h.example:3181", "h.example"), ("[::1]:3181", "::1")] {
            let address = BookieAddress { host_port: address.into(), instance: None };
            assert_eq!(address.host(), host);
        }
    }
}
