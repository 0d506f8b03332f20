//! [`ApiServer`]: the part of an API server of Kubernetes that the launcher uses, in memory. Objects have versions, pods a
//! grace period, and a write with an old version is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// The objects by their paths, and the number of the last change.
#[derive(Default)]
struct Objects {
    by_path: BTreeMap<String, Value>,
    changes: u64,
    /// Those that are not deleted.
    kept: BTreeSet<String>,
}

/// A running server.
pub(super) struct ApiServer {
    address: SocketAddr,
    objects: Arc<Mutex<Objects>>,
    is_ending: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A request: method, path, query, body.
struct Request {
    method: String,
    path: String,
    query: String,
    body: Value,
}

fn refusal(code: u16, message: &str) -> (u16, Value) {
    let reason = if code == 404 { "NotFound" } else { "Conflict" };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {}, "code": code, "message": message,
        "reason": reason,
    });
    (code, status)
}

impl Objects {
    fn write(&mut self, path: &str, mut object: Value) -> (u16, Value) {
        self.changes += 1;
        object["metadata"]["resourceVersion"] = json!(self.changes.to_string());
        self.by_path.insert(path.to_owned(), object.clone());
        (200, object)
    }

    fn create(&mut self, folder: &str, mut object: Value) -> (u16, Value) {
        let number = self.changes + 1;
        let metadata = &mut object["metadata"];
        if let Some(prefix) = metadata["generateName"].as_str() {
            metadata["name"] = json!(format!("{prefix}{number:05}"));
        }
        metadata["uid"] = json!(format!("uid-{number}"));
        let path = format!("{folder}/{}", metadata["name"].as_str().unwrap());
        if self.by_path.contains_key(&path) {
            return refusal(409, "it already exists");
        }
        self.write(&path, object)
    }

    fn list(&self, folder: &str, query: &str) -> (u16, Value) {
        let selector = query.split('&').find_map(|it| it.strip_prefix("labelSelector="));
        let selector = selector.map(|it| it.replace("%2F", "/").replace("%3D", "="));
        let items = self.by_path.iter().filter(|(path, object)| {
            let is_here = path.rsplit_once('/').is_some_and(|(before, _)| before == folder);
            let wanted = selector.as_deref().and_then(|it| it.split_once('='));
            let labels = &object["metadata"]["labels"];
            is_here && wanted.is_none_or(|(name, value)| labels[name] == value)
        });
        let items: Vec<&Value> = items.map(|(_, object)| object).collect();
        (200, json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items }))
    }

    fn delete(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let Some(mut object) = self.by_path.get(path).cloned() else {
            return refusal(404, "the object is not found");
        };
        if self.kept.iter().any(|name| path.ends_with(name)) {
            return refusal(500, "the storage does not answer");
        }
        let own = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
        let grace = body["gracePeriodSeconds"].as_i64().unwrap_or(own);
        if grace == 0 {
            self.by_path.remove(path);
            return (200, object);
        }
        object["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:00:00Z");
        object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        self.write(path, object)
    }

    fn answer(&mut self, request: Request) -> (u16, Value) {
        let Request { method, path, query, body } = request;
        let object = self.by_path.get(path.trim_end_matches("/status")).cloned();
        match (method.as_str(), object) {
            ("POST", _) => self.create(&path, body),
            ("DELETE", _) => self.delete(&path, &body),
            ("GET", Some(object)) => (200, object),
            ("GET", None) if path.ends_with("/pods") => self.list(&path, &query),
            ("PUT", Some(object)) => {
                let version = &body["metadata"]["resourceVersion"];
                if *version == object["metadata"]["resourceVersion"] {
                    self.write(&path, body)
                } else {
                    refusal(409, "the object was changed meanwhile")
                }
            }
            ("PATCH", Some(mut object)) => {
                object["status"] = body["status"].clone();
                self.write(path.trim_end_matches("/status"), object)
            }
            _ => refusal(404, &format!("{path} is not found")),
        }
    }
}

fn request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let [method, target] = [words.next()?, words.next()?];
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let [path, query] = [path.to_owned(), query.to_owned()];
    Some(Request { method, path, query, body: serde_json::from_slice(&body).unwrap_or_default() })
}

/// Answers the requests of a connection.
fn serve(stream: TcpStream, objects: &Mutex<Objects>) {
    let Ok(mut answers) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    while let Some(request) = request(&mut reader) {
        let (code, object) = objects.lock().unwrap().answer(request);
        let text = object.to_string();
        let length = text.len();
        let head = format!(
            "HTTP/1.1 {code} Answer\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        if answers.write_all((head + &text).as_bytes()).is_err() {
            return;
        }
    }
}

impl ApiServer {
    pub(super) fn start() -> ApiServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_ending = Arc::new(AtomicBool::new(false));
        let ends = is_ending.clone();
        let objects: Arc<Mutex<Objects>> = Arc::default();
        let held = objects.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let objects = objects.clone();
                // It ends with the connection, which its client closes.
                std::thread::spawn(move || serve(stream.unwrap(), &objects));
            }
        });
        ApiServer { address, objects: held, is_ending, thread: Some(thread) }
    }

    /// Refuses to delete the pods of these names alone, from now on.
    pub(super) fn keep(&self, names: &[&str]) {
        self.objects.lock().unwrap().kept = names.iter().map(|name| format!("/{name}")).collect();
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
