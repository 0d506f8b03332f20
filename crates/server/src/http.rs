//! [`serve`]: pages on a port of their own, by a few lines of HTTP. `httparse` reads the requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::front::{Front, next_connection};
use crate::page::POLICY;
use crate::stream::Stream;
use crate::tls::of_pages;

const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
const REQUESTS_MAX: usize = 64;
/// A request that is not over by then is dropped. It begins after the handshake.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The answer to a request.
pub(crate) struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    /// Text, also that of Prometheus.
    pub(crate) fn text(status: &'static str, body: impl Into<String>) -> Answer {
        Answer { status, kind: "text/plain; version=0.0.4; charset=utf-8", body: body.into() }
    }

    /// The page for people.
    pub(crate) fn page(html: String) -> Answer {
        Answer { status: "200 OK", kind: "text/html; charset=utf-8", body: html }
    }

    /// The answer of `/readyz`: the reason why requests should go elsewhere, if there is one.
    pub(crate) fn readiness(reason: Option<&str>) -> Answer {
        match reason {
            None => Answer::text("200 OK", "ready\n"),
            Some(reason) => Answer::text("503 Service Unavailable", format!("{reason}\n")),
        }
    }
}

/// The pages of a port. `/healthz` and `/readyz` are answered at once, and others on a thread that may wait.
pub(crate) trait Pages: Send + Sync + 'static {
    /// The answer for a path; `None` if there is no such page.
    fn answer(&self, path: &str) -> Option<Answer>;
}

/// Serves until the task is aborted.
pub(crate) async fn serve(pages: Arc<impl Pages>, front: Arc<Front>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(REQUESTS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (stream, _) = next_connection(&front, &listener).await;
        let pages = pages.clone();
        let front = front.clone();
        tokio::spawn(async move {
            // A handshake has a limit of its own, which counts what fails by it.
            if let Ok(stream) = of_pages(&front, stream).await {
                let _ = timeout(TIME_MAX, answer(pages, stream)).await;
            }
            drop(place);
        });
    }
}

async fn answer(pages: Arc<impl Pages>, mut stream: Stream) -> std::io::Result<()> {
    let mut bytes = BytesMut::new();
    let path = loop {
        bytes.reserve(1 << 10);
        if stream.read(&mut bytes).await? == 0 || bytes.len() > REQUEST_BYTES_MAX {
            return Ok(());
        }
        match path_of(&bytes) {
            Ok(None) => {}
            Ok(Some(path)) => break path,
            Err(status) => return send(&mut stream, &Answer::text(status, "")).await,
        }
    };
    let found = match path.as_str() {
        // Whether the process lives must not depend on others that wait.
        "/healthz" | "/readyz" => pages.answer(&path),
        // They look at all partitions. A panic ends the connection.
        _ => {
            let looking = spawn_blocking(move || pages.answer(&path));
            looking.await.map_err(std::io::Error::other)?
        }
    };
    let answer =
        found.unwrap_or_else(|| Answer::text("404 Not Found", "/, /metrics, /healthz, /readyz\n"));
    send(&mut stream, &answer).await
}

/// Returns the path; `None` if the request is not complete.
pub(crate) fn path_of(bytes: &[u8]) -> Result<Option<String>, &'static str> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => Ok(None),
        Ok(httparse::Status::Complete(_)) if request.method != Some("GET") => {
            Err("405 Method Not Allowed")
        }
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or_default();
            Ok(Some(path.split('?').next().unwrap_or_default().to_owned()))
        }
        Err(_) => Err("400 Bad Request"),
    }
}

async fn send(stream: &mut Stream, answer: &Answer) -> std::io::Result<()> {
    let Answer { status, kind, body } = answer;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    );
    stream.send(head.as_bytes()).await?;
    stream.send(body.as_bytes()).await?;
    stream.end().await
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use parking_lot::Mutex;

    use super::*;
    use crate::options::Limits;

    /// The page at `/` waits for a question for `/healthz`.
    struct Waiting(Mutex<Receiver<()>>, SyncSender<()>);

    impl Pages for Waiting {
        fn answer(&self, path: &str) -> Option<Answer> {
            if path == "/healthz" {
                self.1.send(()).unwrap();
                return Some(Answer::text("200 OK", "alive"));
            }
            let waited = self.0.lock().recv_timeout(TIME_MAX / 2);
            Some(Answer::text("200 OK", if waited.is_ok() { "in time" } else { "late" }))
        }
    }

    async fn get(at: std::net::SocketAddr, path: &str) -> String {
        let mut stream = Stream::Plain(tokio::net::TcpStream::connect(at).await.unwrap());
        stream.send(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        let mut bytes = BytesMut::with_capacity(1 << 12);
        while stream.read(&mut bytes).await.unwrap() > 0 {
            bytes.reserve(1 << 12);
        }
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn a_page_that_waits_keeps_no_thread_of_the_others() {
        let (sender, receiver) = sync_channel(1);
        let pages = Arc::new(Waiting(Mutex::new(receiver), sender));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            let front = Arc::new(Front::new(Limits::default(), None));
            tokio::spawn(serve(pages, front, listener));
            let page = tokio::spawn(get(at, "/"));
            // It waits by now, or has not come yet.
            tokio::task::yield_now().await;
            assert!(get(at, "/healthz").await.ends_with("alive"));
            assert!(page.await.unwrap().ends_with("in time"));
        });
    }

    #[test]
    fn requests_are_read_as_they_come() {
        let request = b"GET /readyz?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";
        for end in 0..request.len() {
            assert_eq!(path_of(&request[..end]), Ok(None), "{end}");
        }
        assert_eq!(path_of(request), Ok(Some("/readyz".to_owned())));
        assert_eq!(path_of(b"POST / HTTP/1.1\r\n\r\n"), Err("405 Method Not Allowed"));
        assert_eq!(path_of(b"\xff\r\n\r\n"), Err("400 Bad Request"));
    }
}
