//! [`Server`]: its start, its threads and its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use siltstone::Result;
use siltstone::secondary::Secondary;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::connection;
use crate::expiry::Expiring;
use crate::front::{self, Front};
use crate::http;
use crate::newest::Newest;
use crate::node::{Node, NodeOptions};
use crate::options::Options;
use crate::place::Place;
use crate::route::dialer::Dialer;
use crate::shards::leftover::{Leftover, remove_leftover};
use crate::shared::Shared;
use crate::tls::{Acceptor, Connector};

/// The role in which a server starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It opens the database for writing.
    Primary,
    /// It follows the primary, and may be promoted.
    Reader,
}

/// A running server. Dropping it ends it as [`Server::stop`] does.
pub struct Server {
    shared: Arc<Shared>,
    http: Option<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

impl Server {
    /// Opens the database, and serves it.
    ///
    /// # Errors
    /// Those of the open; [`Io`](siltstone::ErrorKind::Io) if an address is taken. With TLS those of its files:
    /// [`InvalidArgument`](siltstone::ErrorKind::InvalidArgument) names the file, and what is wrong with it.
    pub fn start(place: Place, role: Role, options: Options) -> Result<Server> {
        let runtime = front::runtime("siltstone-serve", options.threads)?;
        let listener = front::bound(&runtime, &options.listen)?;
        let front = Front::new(options.limits, acceptor(&options)?);
        let http = options.http.as_deref().map(|at| front::bound(&runtime, at)).transpose()?;
        let address = front::local(&listener)?;
        let announced = options.announce.clone().unwrap_or_else(|| address.to_string());
        let is_primary = role == Role::Primary;
        let of_node = NodeOptions {
            address: Some(announced),
            expiring: Expiring {
                names: options.expiring.iter().chain(&options.expiring_stored).cloned().collect(),
                confirmed: options.expiring_stored.iter().cloned().collect(),
            },
            large: options.large_values.clone(),
            shard: options.shard.clone(),
            background_rate: options.background_bytes_per_second,
        };
        // Before the wait of a reader.
        of_node.check()?;
        let node = if is_primary {
            Node::open(place, is_primary, of_node)?
        } else {
            let secondary = follower(&runtime, &place, &options)?;
            Node::following(place, secondary, of_node)?
        };
        let dialer = Dialer::new(connector(&options)?);
        let login = options.login.clone();
        let mut shared = Shared::new(options, front, node, address);
        shared.newest = Newest::new(dialer, login);
        let shared = Arc::new(shared);
        let http_address = http.as_ref().map(front::local).transpose()?;
        let accepting = front::accept(shared.front.clone(), listener, {
            let shared = shared.clone();
            move |stream| connection::serve(shared.clone(), stream)
        });
        let watching = front::watch(shared.front.clone());
        let mut tasks = vec![runtime.spawn(accepting), runtime.spawn(watching)];
        tasks.extend(http.map(|listener| {
            let front = shared.front.clone();
            runtime.spawn(http::serve(shared.clone(), front, listener))
        }));
        if let Some(interval) = shared.options.follow {
            tasks.push(runtime.spawn(follow(shared.clone(), interval)));
        }
        tasks.push(runtime.spawn(clean(shared.clone())));
        Ok(Server { shared, http: http_address, tasks, runtime: Some(runtime) })
    }

    /// The address of the protocol.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The address of metrics and health.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Waits until the process gets SIGTERM or SIGINT, as a service manager and Ctrl-C send them.
    ///
    /// # Errors
    /// [`Io`](siltstone::ErrorKind::Io) if the signals cannot be received.
    pub fn wait_for_signal(&self) -> Result<()> {
        self.runtime.as_ref().map_or(Ok(()), front::wait_for_signal)
    }

    /// Ends the server: it accepts no connection, answers the requests that it has received, closes the connections, and
    /// then the database. Requests that run longer than [`Limits::drain`](crate::Limits::drain) are not answered.
    ///
    /// # Errors
    /// Those of [`Db::close`](siltstone::Db::close).
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(runtime) = self.runtime.take() else { return Ok(()) };
        self.shared.front.end(runtime, &self.tasks);
        self.shared.node.close()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Reported by `stop`, for those who ask.
        let _ = self.end();
    }
}

#[cfg(feature = "tls")]
fn acceptor(options: &Options) -> Result<Option<Acceptor>> {
    options.tls.clone().map(|tls| Acceptor::open(tls, options.clock.clone())).transpose()
}

#[cfg(not(feature = "tls"))]
#[expect(clippy::unnecessary_wraps, reason = "it is as that of the feature")]
fn acceptor(_: &Options) -> Result<Option<Acceptor>> {
    Ok(None)
}

#[cfg(feature = "tls")]
fn connector(options: &Options) -> Result<Option<Connector>> {
    let tls = options.nodes_tls.clone();
    tls.map(|tls| Connector::open(tls, options.clock.clone())).transpose()
}

#[cfg(not(feature = "tls"))]
#[expect(clippy::unnecessary_wraps, reason = "it is as that of the feature")]
fn connector(_: &Options) -> Result<Option<Connector>> {
    Ok(None)
}

/// The time between two looks for a database.
const LOOK: Duration = Duration::from_millis(50);

/// Opens a reader, once there is a database or the start may wait no longer.
fn follower(runtime: &Runtime, place: &Place, options: &Options) -> Result<Secondary> {
    let until = options.clock.now().saturating_add(options.start_wait);
    loop {
        match place.reader() {
            // No folder, or no database in it: only this passes by a wait.
            Err(error) if error.is_missing() && options.clock.now() < until => {
                runtime.block_on(async { tokio::time::sleep(LOOK).await });
            }
            opened => return opened,
        }
    }
}

/// Makes a reader follow its primary.
async fn follow(shared: Arc<Shared>, interval: Duration) {
    loop {
        let node = shared.clone();
        let followed = tokio::task::spawn_blocking(move || node.node.follow()).await;
        shared.metrics.followed(match followed {
            Ok(followed) => followed.err().map(|error| error.to_string()),
            Err(_) => Some("it panicked; this is a bug of the server".to_owned()),
        });
        tokio::time::sleep(interval).await;
    }
}

/// The time between two looks for entries of slots that were given away.
const CLEANING: Duration = Duration::from_secs(1);

/// Removes entries of slots that were given away.
async fn clean(shared: Arc<Shared>) {
    loop {
        let node = shared.clone();
        let cleaned = tokio::task::spawn_blocking(move || {
            let mut place = Leftover::default();
            // A failure shows at the next command, and the next look tries again.
            while !node.front.is_draining() && remove_leftover(&node, &mut place).unwrap_or(false) {
            }
        });
        let _ = cleaned.await;
        tokio::time::sleep(CLEANING).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A start waits for them, and for no other error.
    #[test]
    fn a_folder_or_database_that_is_absent_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("db")] {
            let absent = Place::folder(&path).reader().map(drop).unwrap_err();
            assert!(absent.is_missing(), "{absent}");
        }
    }
}
