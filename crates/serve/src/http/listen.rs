//! Connections.

use super::engine::{ModelSource, Models};
use super::guard::Guard;
use super::metrics::Figures;
use super::{ServeOptions, Server, app};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use transformer_lite::{Error, Result, Stage};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port of this machine.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// True if only programs on this machine reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

/// Open connections at a time. More wait until one is closed.
const CONNECTIONS: usize = 4096;
/// Time for the header of a request.
const HEADER: Duration = Duration::from_secs(15);
/// How often idle models are looked for.
const IDLE_CHECK: Duration = Duration::from_secs(5);

/// Stops a server from another thread.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::channel(false).0)
    }
}

impl Stop {
    /// Stops the server: no new connections are taken, and running answers have
    /// [`ServeOptions::grace`] to end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether the server is being stopped.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    async fn stopped(&self) {
        let mut changes = self.0.subscribe();
        // An error means that the sender was dropped, and this is one.
        let _stopped = changes.wait_for(|stopped| *stopped).await;
    }
}

enum Listener {
    Tcp(tokio::net::TcpListener),
    #[cfg(unix)]
    Unix {
        listener: tokio::net::UnixListener,
        /// Removes the socket.
        _unlink: Unlink,
    },
}

/// Removes a socket when the server ends.
#[cfg(unix)]
struct Unlink(PathBuf);

#[cfg(unix)]
impl Drop for Unlink {
    fn drop(&mut self) {
        let _removed = std::fs::remove_file(&self.0);
    }
}

/// A socket that listens. Clients can connect and wait until [`serve`] answers them.
pub struct Bound {
    socket: Socket,
    address: Address,
}

/// As the standard library makes them, so that binding needs no runtime.
enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener, Unlink),
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bound to {}", self.address)
    }
}

impl Bound {
    /// Where it listens, with the port that the system chose for port 0.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

fn cannot(address: &dyn fmt::Display, e: std::io::Error) -> Error {
    Error::caused(Stage::Run, format!("cannot listen on {address}"), e)
}

/// Listens on `host`, an IP address, `localhost` or `unix:PATH`. A Unix socket that no server
/// listens on is replaced. Usage errors: another host. Other errors: the port is in use.
pub fn bind(host: &str, port: u16) -> Result<Bound> {
    if let Some(path) = host.strip_prefix("unix:") {
        return bind_unix(Path::new(path));
    }
    let name = if host == "localhost" { "127.0.0.1" } else { host };
    let ip = name.parse().map_err(|_| {
        let what = format!("{host:?}: expected an IP address, localhost or unix:PATH");
        Error::usage("host", what)
    })?;
    let address = SocketAddr::new(ip, port);
    let listener = TcpListener::bind(address).map_err(|e| cannot(&address, e))?;
    let address = listener.local_addr().map_err(|e| cannot(&address, e))?;
    Ok(Bound {
        socket: Socket::Tcp(listener),
        address: Address::Tcp(address),
    })
}

#[cfg(unix)]
fn bind_unix(path: &Path) -> Result<Bound> {
    use std::os::unix::fs::FileTypeExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    let failed = |e| cannot(&path.display(), e);
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    Ok(Bound {
        socket: Socket::Unix(listener, Unlink(path.to_owned())),
        address: Address::Unix(path.to_owned()),
    })
}

#[cfg(not(unix))]
fn bind_unix(path: &Path) -> Result<Bound> {
    let what = format!(
        "unix:{}: this system has no Unix sockets here; expected an IP address",
        path.display()
    );
    Err(Error::usage("host", what))
}

/// Answers requests until `stop` is called. The first model is loaded at once, the others when they
/// are first used; `ready` is called when the first is loaded. Returns its error if it cannot be
/// loaded.
pub fn serve(
    bound: Bound,
    models: Vec<ModelSource>,
    options: ServeOptions,
    stop: &Stop,
    ready: impl FnOnce(&super::Engine),
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_io()
        .enable_time()
        .thread_name("tlite-http")
        .build()
        .map_err(|e| Error::caused(Stage::Run, "cannot start threads", e))?;
    let grace = options.grace;
    let server = Arc::new(server(&bound.address, models, options));
    let result = runtime.block_on(async {
        let listener = listener(bound)?;
        let first = server.models.get(None).await;
        let (_, first) = first.map_err(|e| Error::other(Stage::Run, e.body.message))?;
        ready(&first);
        drop(first);
        run(listener, server, stop).await;
        Ok(())
    });
    // What still runs then waits for a step of a device.
    runtime.shutdown_timeout(grace.min(Duration::from_secs(5)));
    result
}

pub(super) fn server(address: &Address, models: Vec<ModelSource>, options: ServeOptions) -> Server {
    // With a key, names do not matter: pages of others do not have it.
    let checks = options.keys.is_empty() && matches!(address, Address::Tcp(_)) && address.is_local();
    let own = ["localhost", "127.0.0.1", "[::1]"];
    let guard = Guard {
        keys: options.keys.clone(),
        origins: options.origins.clone(),
        hosts: own
            .iter()
            .filter(|_| checks)
            .map(|name| (*name).to_owned())
            .collect(),
    };
    Server {
        models: Models::new(models),
        figures: Figures::new(),
        guard,
        compiling: Arc::new(Semaphore::new(2)),
        options,
    }
}

fn listener(bound: Bound) -> Result<Listener> {
    let failed = |e| cannot(&bound.address, e);
    Ok(match bound.socket {
        Socket::Tcp(listener) => {
            listener.set_nonblocking(true).map_err(failed)?;
            Listener::Tcp(tokio::net::TcpListener::from_std(listener).map_err(failed)?)
        }
        #[cfg(unix)]
        Socket::Unix(listener, unlink) => {
            listener.set_nonblocking(true).map_err(failed)?;
            Listener::Unix {
                listener: tokio::net::UnixListener::from_std(listener).map_err(failed)?,
                _unlink: unlink,
            }
        }
    })
}

async fn run(listener: Listener, server: Arc<Server>, stop: &Stop) {
    let (grace, idle) = (server.options.grace, server.options.idle);
    if let Some(idle) = idle {
        let server = server.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_CHECK.min(idle)).await;
                server.models.unload(idle).await;
            }
        });
    }
    let connections = Connections {
        app: app(server),
        open: Arc::new(Semaphore::new(CONNECTIONS)),
        graceful: GracefulShutdown::new(),
    };
    tokio::select! {
        () = connections.accept(&listener) => {}
        () = stop.stopped() => {}
    }
    drop(listener);
    let ended = tokio::time::timeout(grace, connections.graceful.shutdown());
    if ended.await.is_err() {
        log::warn!("answers that took more than {grace:?} were cut off");
    }
}

struct Connections {
    app: axum::Router,
    open: Arc<Semaphore>,
    graceful: GracefulShutdown,
}

impl Connections {
    async fn accept(&self, listener: &Listener) {
        loop {
            let Ok(place) = self.open.clone().acquire_owned().await else {
                return;
            };
            let accepted = match listener {
                Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                    // Tokens should not wait for more of them.
                    let _set = stream.set_nodelay(true);
                    self.answer(stream, place);
                }),
                #[cfg(unix)]
                Listener::Unix { listener, .. } => listener
                    .accept()
                    .await
                    .map(|(stream, _)| self.answer(stream, place)),
            };
            if let Err(e) = accepted {
                // Too many open files, for example.
                log::warn!("cannot accept a connection: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    fn answer(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        place: tokio::sync::OwnedSemaphorePermit,
    ) {
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.app.clone()));
        let connection = self.graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                log::debug!("a connection ended: {e}");
            }
            drop(place);
        });
    }
}
