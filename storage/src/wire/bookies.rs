//! Bookies over TCP.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::auth::AuthPlugin;
use super::connection::driver::{self, Asked, Means};
use super::connection::{Limits, Security};
use super::resolve::{BookieAddress, BookieResolver};
use super::status::Protocol;
use super::tls::TlsClient;
use crate::id::BookieId;
use crate::mailbox::Mailbox;
use crate::transport::{
    BookieError, BookieTransport, CompletionSink, Request, RequestBody, Response,
};

/// How bookies are spoken to. The defaults are those of an unchanged Apache BookKeeper cluster.
#[derive(Clone, Default)]
pub struct TcpConfig {
    /// Protocol, timeouts and bounds of each connection. What it says of security and authentication follows from the
    /// other two.
    pub limits: Limits,
    /// With it, every connection is encrypted before anything is sent.
    pub tls: Option<TlsClient>,
    /// With it, the client proves who it is on every connection.
    pub auth: Option<Arc<dyn AuthPlugin>>,
}

impl fmt::Debug for TcpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpConfig")
            .field("limits", &self.limits)
            .field("tls", &self.tls)
            .field("auth", &self.auth.as_ref().map(|plugin| plugin.name()))
            .finish()
    }
}

/// The transport to real bookies: over TCP, in Apache BookKeeper's protocol.
///
/// There is one connection per bookie, made with the first request to it and again after it was lost; in v2 there is a
/// second one in v3, for what v2 has no words for: LAC reads, waits for the LAC, and telling it. Requests of one connection
/// arrive in order. The connections end with the value.
///
/// An answer is ascribed to the life of the bookie that the resolver named when the request was submitted. A bookie that
/// was set up anew must be named as such before it takes requests, as BookKeeper's cookies see to.
pub struct TcpBookies {
    resolver: Arc<dyn BookieResolver>,
    means: Means,
    runtime: Handle,
    bookies: Mutex<HashMap<BookieId, Lanes>>,
}

/// The connections to one bookie in one life at one address.
struct Lanes {
    address: BookieAddress,
    main: Arc<Mailbox<Asked>>,
    /// In v2: the connection in v3.
    side: Option<Arc<Mailbox<Asked>>>,
}

impl TcpBookies {
    /// A transport to the bookies that `resolver` can find. Nothing is connected yet.
    ///
    /// # Panics
    /// Outside of a tokio runtime. Connections live on the one it is called in.
    #[must_use]
    pub fn new(resolver: Arc<dyn BookieResolver>, config: TcpConfig) -> Self {
        let TcpConfig { mut limits, tls, auth } = config;
        limits.security = if tls.is_some() { Security::StartTls } else { Security::Plain };
        limits.auth_plugin = auth.as_ref().map(|plugin| plugin.name().to_owned());
        let means = Means { limits, tls, auth };
        Self { resolver, means, runtime: Handle::current(), bookies: Mutex::default() }
    }

    fn lanes(&self, bookie: &BookieId, address: BookieAddress) -> Lanes {
        let lane = |protocol| {
            let mailbox = Arc::new(Mailbox::new());
            let mut means = self.means.clone();
            means.limits.protocol = protocol;
            // Jitter, so that clients that have lost a bookie together do not come back together.
            means.limits.retry_first =
                means.limits.retry_first.mul_f64(0.75 + fastrand::f64() / 2.0);
            let run = driver::run(bookie.clone(), address.clone(), means, mailbox.clone());
            self.runtime.spawn(run);
            mailbox
        };
        let main = lane(self.means.limits.protocol);
        let side = (self.means.limits.protocol == Protocol::V2).then(|| lane(Protocol::V3));
        Lanes { address, main, side }
    }
}

impl BookieTransport for TcpBookies {
    fn submit(&self, bookie: &BookieId, batch: &mut Vec<Request>, sink: &Arc<dyn CompletionSink>) {
        let Some(address) = self.resolver.resolve(bookie) else {
            let unreachable = |request: Request| Response {
                id: request.id,
                bookie: bookie.clone(),
                instance: None,
                result: Err(BookieError::Unreachable),
            };
            return sink.complete(&mut batch.drain(..).map(unreachable).collect());
        };
        // Held until the requests are in the mailbox: one that is closed would drop them.
        let mut bookies = self.bookies.lock();
        let is_there = bookies.get(bookie).is_some_and(|lanes| lanes.address == address);
        if !is_there {
            bookies.insert(bookie.clone(), self.lanes(bookie, address));
        }
        let lanes = bookies.get(bookie).expect("it was put there if it was not");
        let asked = |request| (request, sink.clone());
        match &lanes.side {
            None => lanes.main.extend(batch.drain(..).map(asked)),
            Some(side) => {
                let beside = batch.extract_if(.., |request| needs_v3(&request.body));
                side.extend(beside.map(asked));
                lanes.main.extend(batch.drain(..).map(asked));
            }
        }
    }
}

/// Whether v2 has no words for a request, or says less by it.
const fn needs_v3(body: &RequestBody) -> bool {
    match body {
        RequestBody::ReadLac { fence } => fence.is_none(),
        RequestBody::WaitLac { .. } | RequestBody::WriteLac { .. } => true,
        RequestBody::Add { .. } | RequestBody::Read { .. } => false,
    }
}

impl Drop for Lanes {
    /// Ends the connections; what is unanswered on them is unreachable.
    fn drop(&mut self) {
        self.main.close();
        if let Some(side) = &self.side {
            side.close();
        }
    }
}

impl fmt::Debug for TcpBookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpBookies").field("limits", &self.means.limits).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
