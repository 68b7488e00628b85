//! A session with ZooKeeper, and the next one when it has expired.

use std::fmt;
use std::time::Duration;

use tokio::sync::Mutex;
use zookeeper_client as zk;

use crate::metadata::service_uri::MetadataServiceUri;
use crate::metadata::store::MetadataError;

/// How to reach the metadata of a cluster, and how long that may take.
#[derive(Clone, Debug)]
pub struct ZooKeeperConfig {
    /// Where it is.
    pub uri: MetadataServiceUri,
    /// How long ZooKeeper keeps a session of which it hears nothing. Longer: what is ephemeral outlives a dead holder
    /// for longer. Shorter: pauses of this process or of the network end sessions. ZooKeeper has bounds of its own.
    pub session_timeout: Duration,
    /// How long one operation may take, repetitions after lost connections included. Somewhat shorter than
    /// [`ClientConfig::metadata_timeout`](crate::ClientConfig::metadata_timeout), so that the reason is told.
    pub operation_timeout: Duration,
    /// What the session is known by; what it makes is then for the same user alone. None where everybody may do
    /// everything, which is what clusters do unless they are told otherwise.
    pub digest_auth: Option<DigestAuth>,
}

impl ZooKeeperConfig {
    /// The metadata there, with default settings.
    #[must_use]
    pub const fn new(uri: MetadataServiceUri) -> Self {
        Self {
            uri,
            session_timeout: Duration::from_secs(10),
            operation_timeout: Duration::from_secs(8),
            digest_auth: None,
        }
    }
}

/// A user and a password, for ZooKeeper's scheme `digest`. The password is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct DigestAuth {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for DigestAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DigestAuth").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Whoever needs a session at all gets one from here; there is one at a time.
pub(crate) struct Session {
    config: ZooKeeperConfig,
    current: Mutex<Option<zk::Client>>,
}

impl Session {
    pub(crate) fn new(config: ZooKeeperConfig) -> Self {
        Self { config, current: Mutex::new(None) }
    }

    pub(crate) const fn config(&self) -> &ZooKeeperConfig {
        &self.config
    }

    /// The session, a new one if the last one has ended. Cancel-safe.
    pub(crate) async fn connect(&self) -> Result<zk::Client, zk::Error> {
        let mut current = self.current.lock().await;
        if let Some(client) = current.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(client.clone());
        }
        let mut connector =
            zk::Client::connector().with_session_timeout(self.config.session_timeout);
        if let Some(DigestAuth { user, password }) = &self.config.digest_auth {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        let client = connector.connect(&self.config.uri.servers().join(",")).await?;
        if current.is_some() {
            tracing::warn!(session = %client.session_id(), "the session with ZooKeeper had ended; here is another");
        }
        *current = Some(client.clone());
        Ok(client)
    }

    /// The same, for as long as it takes. Whoever calls this has a timeout around it.
    pub(super) async fn client(&self, key: &str) -> Result<zk::Client, MetadataError> {
        loop {
            match self.connect().await {
                Ok(client) => return Ok(client),
                Err(error) => self.after(key, &error).await?,
            }
        }
    }

    /// What to do after a request failed: nothing, when it may be made again, and to give up otherwise.
    pub(super) async fn after(&self, key: &str, error: &zk::Error) -> Result<(), MetadataError> {
        if !is_lost(error) {
            return Err(unavailable(key, error));
        }
        tokio::time::sleep(RETRY_PAUSE).await;
        Ok(())
    }

    /// Bounds an operation in time.
    pub(super) async fn in_time<T>(
        &self,
        key: &str,
        operation: impl Future<Output = Result<T, MetadataError>>,
    ) -> Result<T, MetadataError> {
        let timeout = self.config.operation_timeout;
        tokio::time::timeout(timeout, operation).await.unwrap_or_else(|_| {
            Err(unavailable(key, format!("ZooKeeper did not answer within {timeout:?}")))
        })
    }

    /// Who may do what with what this session makes.
    pub(super) const fn acls(&self) -> zk::Acls<'static> {
        match self.config.digest_auth {
            Some(_) => zk::Acls::creator_all(),
            None => zk::Acls::anyone_all(),
        }
    }

    /// Makes a folder and all above it.
    pub(super) async fn make_folder(
        &self,
        client: &zk::Client,
        path: &str,
    ) -> Result<(), zk::Error> {
        let options = zk::CreateMode::Persistent.with_acls(self.acls());
        client.mkdir(path, &options).await
    }

    /// Ends the session, and with it what is ephemeral, if ZooKeeper can be told so in time.
    pub(super) async fn close(&self) {
        let Some(client) = self.current.lock().await.take() else { return };
        let mut states = client.state_watcher();
        let mut state = client.state();
        drop(client);
        let ended = async {
            while !state.is_terminated() {
                state = states.changed().await;
            }
        };
        // If it does not end in time, it expires.
        let _ = tokio::time::timeout(self.config.operation_timeout, ended).await;
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("uri", &self.config.uri).finish_non_exhaustive()
    }
}

/// Whether nobody knows what came of the request, so that it may have been carried out. All that ZooKeeper itself
/// answers is certain; what is left are connections and sessions that ended.
pub(super) const fn is_lost(error: &zk::Error) -> bool {
    !matches!(
        error,
        zk::Error::NoNode
            | zk::Error::NodeExists
            | zk::Error::BadVersion
            | zk::Error::NotEmpty
            | zk::Error::NoAuth
            | zk::Error::AuthFailed
            | zk::Error::InvalidAcl
            | zk::Error::NoChildrenForEphemerals
            | zk::Error::BadArguments(_)
            | zk::Error::QuotaExceeded
            | zk::Error::NotReadOnly
            | zk::Error::Unimplemented
            | zk::Error::MarshallingError
    )
}

pub(super) fn unavailable(key: &str, reason: impl ToString) -> MetadataError {
    MetadataError::Unavailable { key: key.into(), reason: reason.to_string() }
}

/// How long to wait before a request is made again. The client itself waits until it is connected; this keeps failures
/// that come at once from making a processor busy.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
