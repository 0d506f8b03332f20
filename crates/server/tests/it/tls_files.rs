//! The files of TLS: errors at the start, warnings, and renewal.

#![expect(clippy::disallowed_methods, reason = "the files are outside every database")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use server::{Cluster, ClusterOptions, Limits, NodeTls, Nodes, Place, Role, Server, ServerTls};

use crate::tls_client::{Secure, file, log, metric, of_server, secure, serve};

/// Copies files of the tests, under the names `cert` and `key`.
fn copy(folder: &Path, certificate: &str, key: &str) -> ServerTls {
    replace(&folder.join("cert"), &file(certificate));
    replace(&folder.join("key"), &file(key));
    ServerTls::new(folder.join("cert"), folder.join("key"))
}

/// Moves a copy into place, as tools that renew certificates do.
fn replace(path: &Path, from: &Path) {
    let new = path.with_extension("new");
    std::fs::copy(from, &new).unwrap();
    std::fs::rename(new, path).unwrap();
}

fn refused(tls: ServerTls) -> String {
    let folder = tempfile::tempdir().unwrap();
    let options = secure(tls, Limits::default());
    let place = Place::folder(folder.path().join("db"));
    let Err(error) = Server::start(place, Role::Primary, options) else { panic!("it starts") };
    // The database was not touched.
    assert!(!folder.path().join("db").exists());
    error.to_string()
}

fn write(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn errors_name_the_file_and_what_is_wrong_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let pem = std::fs::read_to_string(file("server.pem")).unwrap();
    let key = std::fs::read_to_string(file("server.key")).unwrap();
    let cut = write(&folder, "cut.pem", &pem[..pem.len() / 2]);
    let odd = write(&folder, "odd.pem", &pem.replacen("MII", "AAA", 1));
    let locked = write(&folder, "locked.key", &key.replace("PRIVATE", "ENCRYPTED PRIVATE"));
    let unknown = write(&folder, "unknown.key", &key.replacen("MIG", "AAA", 1));
    let server = (file("server.pem"), file("server.key"));
    let cases: [(PathBuf, PathBuf, &str); 8] = [
        (file("none.pem"), server.1.clone(), "none.pem"),
        (server.0.clone(), file("none.key"), "none.key"),
        (server.1.clone(), server.1.clone(), "server.key has no certificate"),
        (server.0.clone(), server.0.clone(), "server.pem has no private key"),
        (server.0.clone(), file("renewed.key"), "renewed.key is not the key of the certificate in"),
        (cut, server.1.clone(), "cut.pem is no PEM"),
        (odd, server.1.clone(), "odd.pem has a first certificate that is none"),
        (server.0.clone(), locked, "locked.key has an encrypted key"),
    ];
    for (certificate, key, expected) in cases {
        let text = refused(ServerTls::new(certificate, key));
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let text = refused(ServerTls::new(server.0.clone(), unknown));
    assert!(text.contains("unknown.key has a key of no known kind"), "{text}");
    let mut tls = of_server("server");
    tls.client_ca = Some(file("server.key"));
    assert!(refused(tls).contains("server.key has no certificate"));
}

fn check(tls: NodeTls, expected: &str) {
    let mut options = ClusterOptions::new(Nodes::List(vec!["localhost:1".to_owned()]));
    options.tls = Some(tls);
    let Err(error) = Cluster::new(options) else { panic!("{expected}") };
    assert!(error.to_string().contains(expected), "{expected}: {error}");
}

#[test]
fn errors_of_the_files_for_nodes_name_them() {
    check(NodeTls::new(file("none.pem")), "none.pem");
    check(NodeTls::new(file("server.key")), "server.key has no certificate");
    let identity = Some((file("client.pem"), file("server.key")));
    check(NodeTls { identity, ..NodeTls::new(file("ca.pem")) }, "server.key is not the key of");
    let name = Some("a b".to_owned());
    check(NodeTls { name, ..NodeTls::new(file("ca.pem")) }, "\"a b\" is no name of a host");
}

#[test]
fn an_expired_certificate_is_named_and_served() {
    let mut tls = of_server("expired");
    let (taken, lines) = log();
    tls.log = Some(taken);
    let (_folder, server) = serve(tls, Limits::default());
    let lines = std::mem::take(&mut *lines.lock().unwrap());
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("expired.pem has expired at 2021-01-01"), "{lines:?}");
    let Err(error) = Secure::connect(server.address(), None) else { panic!("it has expired") };
    assert!(error.to_string().contains("expired"), "{error}");
    server.stop().unwrap();
}

#[test]
fn a_renewed_certificate_is_taken_up_and_a_broken_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut tls = copy(folder.path(), "server.pem", "server.key");
    let (taken, lines) = log();
    tls.log = Some(taken);
    tls.interval = Duration::from_millis(10);
    let (_folder, server) = serve(tls.clone(), Limits::default());
    let http = server.http_address().unwrap();
    let mut before = Secure::connect(server.address(), None).unwrap();
    let first = before.certificate();

    // The key comes after the certificate; meanwhile the pair is wrong.
    replace(&tls.certificate, &file("renewed.pem"));
    while metric(http, "siltstone_server_tls_renewal_failures_total") < 2 {
        std::thread::yield_now();
    }
    assert_eq!(Secure::connect(server.address(), None).unwrap().certificate(), first);
    assert_eq!(metric(http, "siltstone_server_tls_renewals_total"), 0);
    replace(&tls.key, &file("renewed.key"));
    while metric(http, "siltstone_server_tls_renewals_total") == 0 {
        std::thread::yield_now();
    }
    let renewed = Secure::connect(server.address(), None).unwrap().certificate();
    assert_ne!(renewed, first);
    before.call("PING", "+PONG\r\n").unwrap();

    std::fs::remove_file(&tls.certificate).unwrap();
    let failed = metric(http, "siltstone_server_tls_renewal_failures_total");
    while metric(http, "siltstone_server_tls_renewal_failures_total") == failed {
        std::thread::yield_now();
    }
    assert_eq!(Secure::connect(server.address(), None).unwrap().certificate(), renewed);
    server.stop().unwrap();

    let lines = lines.lock().unwrap();
    let kept: Vec<&String> = lines.iter().filter(|it| it.contains("keeps the files")).collect();
    // A failure that stays has one line.
    assert_eq!(kept.len(), 2, "{lines:?}");
    assert!(kept[0].contains("key is not the key of the certificate in"), "{lines:?}");
    assert!(lines.iter().any(|it| it.contains("took up new files: ")), "{lines:?}");
}

#[test]
fn the_expiry_is_that_of_the_certificate_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let mut tls = copy(folder.path(), "server.pem", "server.key");
    let ca = folder.path().join("ca");
    std::fs::copy(file("ca.pem"), &ca).unwrap();
    let (taken, lines) = log();
    tls.client_ca = Some(ca.clone());
    tls.log = Some(taken);
    tls.interval = Duration::from_millis(10);
    let (_folder, server) = serve(tls.clone(), Limits::default());
    let http = server.http_address().unwrap();
    // The new pair is right, and the CA for clients is not.
    replace(&ca, &file("server.key"));
    replace(&tls.certificate, &file("expired.pem"));
    replace(&tls.key, &file("expired.key"));
    let failed = metric(http, "siltstone_server_tls_renewal_failures_total");
    while metric(http, "siltstone_server_tls_renewal_failures_total") < failed + 3 {
        std::thread::yield_now();
    }
    assert_eq!(metric(http, "siltstone_server_tls_certificate_expiry_seconds"), 4_733_510_400);
    server.stop().unwrap();
    let lines = lines.lock().unwrap().join("\n");
    assert!(lines.contains("ca has no certificate"), "{lines}");
    assert!(!lines.contains("has expired"), "{lines}");
}
