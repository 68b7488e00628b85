//! A path to ZooKeeper that can be cut, also between a request and its answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What a request of ZooKeeper's protocol asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Request {
    /// Remove a znode.
    Delete = 2,
    /// Replace what a znode has.
    SetData = 5,
    /// Make a znode.
    Create = 15,
}

/// Passes on what a client and a server say to each other.
pub struct Proxy {
    address: String,
    path: watch::Sender<Path>,
    doomed: Arc<Mutex<Option<Request>>>,
    task: AbortHandle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    There,
    Cut,
}

impl Proxy {
    /// A path to `server`, `host:port`.
    ///
    /// # Panics
    /// If this machine has no port for it.
    pub async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (path, server) = (watch::Sender::new(Path::There), server.to_owned());
        let (paths, doomed) = (path.clone(), Arc::<Mutex<Option<Request>>>::default());
        let lost = doomed.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mut path, server) = (paths.subscribe(), server.clone());
                let lost = lost.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        // A connection that ends is what is wanted.
                        _ = carry(client, &server, &lost) => {}
                        _ = path.wait_for(|path| *path == Path::Cut) => {}
                    }
                });
            }
        });
        Self { address, path, doomed, task: task.abort_handle() }
    }

    /// `host:port` of the near end.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends all connections, and all new ones at once.
    pub fn cut(&self) {
        self.path.send_replace(Path::Cut);
    }

    /// Lets connections through again.
    pub fn mend(&self) {
        self.path.send_replace(Path::There);
    }

    /// Ends the connection that carries the next such request, when the server has answered and before the client sees
    /// that.
    pub fn lose_answer_to(&self, request: Request) {
        *self.doomed.lock() = Some(request);
    }

    /// Whether the answer that was to be lost is lost.
    #[must_use]
    pub fn has_lost_it(&self) -> bool {
        self.doomed.lock().is_none()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn carry(client: TcpStream, server: &str, doomed: &Mutex<Option<Request>>) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let loses_answers = AtomicBool::new(false);
    let requests = async {
        // The first frame opens the session; the others begin with a number and what they ask for.
        let mut first = true;
        loop {
            let bytes = from_client.read_u32().await?;
            let mut frame = vec![0; bytes as usize];
            from_client.read_exact(&mut frame).await?;
            loses_answers.fetch_or(!first && is_doomed(&frame, doomed), Ordering::Relaxed);
            first = false;
            to_server.write_u32(bytes).await?;
            to_server.write_all(&frame).await?;
        }
    };
    let answers = async {
        let mut answers = vec![0; 1 << 16];
        loop {
            let bytes = from_server.read(&mut answers).await?;
            if loses_answers.load(Ordering::Relaxed) {
                *doomed.lock() = None;
            }
            if bytes == 0 || loses_answers.load(Ordering::Relaxed) {
                return Ok(());
            }
            to_client.write_all(&answers[..bytes]).await?;
        }
    };
    tokio::select! {
        ended = requests => ended,
        ended = answers => ended,
    }
}

fn is_doomed(frame: &[u8], doomed: &Mutex<Option<Request>>) -> bool {
    let code = frame.get(4..8).and_then(|code| code.try_into().ok()).map(i32::from_be_bytes);
    doomed.lock().is_some_and(|request| code == Some(request as i32))
}
