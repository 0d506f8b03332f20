//! Predicted levels: on a server and through the router.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use server::{
    Cluster, ClusterOptions, Limits, Nodes, Options, Place, Role, Router, Server, Users, Wanted,
};
use testkit::Rng;

use crate::client::{Client, options, primary, reader};
use crate::commands::check;

/// The reads after which a predictor knows something.
const READS: usize = 1100;

fn predicting(folder: &Path, change: impl FnOnce(&mut Options)) -> Server {
    let mut options = options();
    options.predict = true;
    change(&mut options);
    Server::start(Place::folder(folder), Role::Reader, options).unwrap()
}

fn routed(servers: &[&Server]) -> Router {
    routed_with(servers, None)
}

/// With the user of the router's own questions.
fn routed_with(servers: &[&Server], login: Option<(String, String)>) -> Router {
    let addresses = servers.iter().map(|it| it.address().to_string()).collect();
    let mut options = ClusterOptions::new(Nodes::List(addresses));
    options.predict = true;
    options.login = login;
    Router::start("127.0.0.1:0", Cluster::new(options).unwrap(), Limits::default()).unwrap()
}

/// Reads ten keys in turns: they are the ones that are read often, and any other key is read least.
fn warm(client: &mut Client) {
    let keys: Vec<String> = (0..10).map(|key| format!("GET hot{key}")).collect();
    let lines: Vec<&str> = keys.iter().cycle().take(READS).map(String::as_str).collect();
    client.pipeline(&lines);
}

#[test]
fn a_predicted_level_is_named_and_a_second_read_corrects_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut writer = Client::new(&server);
    check(&mut writer, &[("MSET hot0 1 cold 1 cool 1", "OK"), ("SCID.LEVEL", "AUTO")]);
    check(&mut writer, &[("SCID.PREDICTIONS", "nil")]);
    let follower = predicting(folder.path(), |_| {});
    let mut client = Client::new(&follower);
    // Nothing is known yet.
    check(
        &mut client,
        &[("SCID.LEVEL", "PREDICTED"), ("GET cold", "1"), ("SCID.LAST", "[level 1~")],
    );
    warm(&mut client);
    check(&mut writer, &[("MSET hot0 2 cold 2 cool 2", "OK")]);
    check(
        &mut client,
        &[
            // Old data, and the reply names the level at which it was read.
            ("GET cold", "1"),
            ("SCID.LAST", "[level 5~"),
            ("SCID.GET cool", "1"),
            ("SCID.LAST", "[level 5~"),
            ("SCID.GET cool LEVEL 1", "2"),
            ("SCID.LAST", "[level 1~"),
        ],
    );
    check(&mut writer, &[("MSET hot0 3 cold 3 cool 3", "OK")]);
    check(
        &mut client,
        &[
            ("GET cold", "2"),
            ("SCID.LAST", "[level 5~"),
            // The level that it needed is remembered.
            ("GET cool", "3"),
            ("SCID.LAST", "[level 1~"),
        ],
    );
    check(&mut writer, &[("SET hot0 4", "OK")]);
    check(&mut client, &[("GET hot0", "4"), ("SCID.LAST", "[level 1~")]);
    let expected = "[predictions [79 0 0 0 3] corrections [0 0 0 0 1]]";
    check(&mut client, &[("SCID.PREDICTIONS", expected)]);
    let info = client.text("INFO");
    let lines = "scid_predictions:level1=79,level2=0,level3=0,level4=0,level5=3\r\n\
                 scid_corrections:level1=0,level2=0,level3=0,level4=0,level5=1\r\n";
    assert!(info.ends_with(lines), "{info}");
    follower.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn the_client_and_the_partition_come_before_the_prediction() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut writer = Client::new(&server);
    check(&mut writer, &[("SELECT strict", "OK"), ("SET cold 1", "OK"), ("SELECT 0", "OK")]);
    check(&mut writer, &[("SET cold 1", "OK")]);
    let follower = predicting(folder.path(), |options| {
        options.levels.insert("strict".to_owned(), Wanted::Number(1));
    });
    let mut client = Client::new(&follower);
    warm(&mut client);
    check(&mut client, &[("GET cold", "1"), ("SCID.LAST", "[level 5~"), ("SELECT strict", "OK")]);
    check(&mut client, &[("SCID.LEVEL", "1"), ("GET cold", "1"), ("SELECT 0", "OK")]);
    check(&mut writer, &[("SET cold 2", "OK"), ("SELECT strict", "OK"), ("SET cold 2", "OK")]);
    let strong = "[level 1~";
    check(&mut client, &[("GET cold", "1"), ("SCID.LAST", "[level 5~"), ("SELECT strict", "OK")]);
    check(&mut client, &[("GET cold", "2"), ("SCID.LAST", strong), ("SCID.GET cold", "2")]);
    // A router's prediction is one, too.
    check(&mut writer, &[("SET cold 3", "OK"), ("SELECT 0", "OK"), ("SET cold 3", "OK")]);
    check(&mut client, &[("SCID.GET cold PREDICTED 5", "3"), ("SCID.LAST", strong)]);
    check(&mut client, &[("SELECT 0", "OK"), ("SCID.GET cold LEVEL 5 PREDICTED 1", "1")]);
    // `AUTO` that a client has named is not predicted. Commands on several keys are not, either.
    check(&mut client, &[("SCID.GET cold LEVEL AUTO", "3"), ("SCID.LEVEL AUTO", "OK")]);
    check(&mut writer, &[("SET cold 4", "OK")]);
    check(&mut client, &[("GET cold", "4"), ("SCID.LEVEL", "AUTO")]);
    let mut other = Client::new(&follower);
    check(&mut writer, &[("SET fresh 5", "OK")]);
    check(&mut other, &[("MGET fresh", "[5]"), ("SCID.LAST", strong)]);
    check(&mut other, &[("SCID.GET cold PREDICTED AUTO", "-ERR a predicted level~")]);
    check(&mut other, &[("SCID.GET cold PREDICTED 6", "-ERR a level is~")]);
    follower.stop().unwrap();
    server.stop().unwrap();
}

/// With `AUTO` these reads would be served, so a prediction must not refuse them.
#[test]
fn a_predicted_level_that_is_not_to_be_had_refuses_no_read() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let follower = reader(folder.path());
    for at in [&server, &follower] {
        let mut client = Client::new(at);
        check(&mut Client::new(&server), &[("SET a 1", "OK")]);
        check(&mut client, &[("SCID.GET a LEVEL 1", "1"), ("SCID.TOKEN 9-1", "OK")]);
        check(&mut client, &[("SCID.GET a PREDICTED 3", "1"), ("SCID.LAST", "[level 5~")]);
        check(&mut client, &[("SCID.GET a PREDICTED 2", "1"), ("SCID.GET a PREDICTED 4", "1")]);
        let refused = client.text("SCID.GET a LEVEL 3");
        assert!(refused.starts_with("-NOTYET") || refused.starts_with("-SESSIONLOST"), "{refused}");
    }
    follower.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn the_router_predicts_before_it_chooses_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut writer = Client::new(&server);
    check(
        &mut writer,
        &[("MSET hot0 1 cold 1", "OK"), ("SELECT strict", "OK"), ("SET cold 1", "OK")],
    );
    let mut options: Options = options();
    options.levels.insert("strict".to_owned(), Wanted::Number(1));
    let follower = Server::start(Place::folder(folder.path()), Role::Reader, options).unwrap();
    let mut direct = Client::new(&follower);
    check(&mut direct, &[("GET cold", "1"), ("SELECT strict", "OK"), ("GET cold", "1")]);
    let router = routed(&[&server, &follower]);
    let mut client = Client::at(router.address());
    check(&mut client, &[("SCID.LEVEL", "PREDICTED"), ("SCID.ROUTE OPTIMAL", "OK")]);
    warm(&mut client);
    check(&mut writer, &[("SET cold 2", "OK"), ("SELECT 0", "OK"), ("MSET hot0 2 cold 2", "OK")]);
    check(
        &mut client,
        &[
            ("GET cold", "1"),
            ("SCID.LAST", "[level 5~"),
            // The correction goes to another node than the prediction.
            ("SCID.GET cold LEVEL 1", "2"),
            ("GET cold", "2"),
            ("SCID.LAST", "[level 1~"),
            ("GET hot0", "2"),
            // The node knows the level of the partition, and the router does not.
            ("SELECT strict", "OK"),
            ("GET cold", "2"),
            ("SCID.LAST", "[level 1~"),
        ],
    );
    // The predictions of a pipeline depend on the pieces in which it came.
    let counts = client.text("SCID.PREDICTIONS");
    assert!(counts.ends_with(" 0 0 0 2] corrections [0 0 0 0 1]]"), "{counts}");
    // A transaction reads at the primary, and the order of a pipeline stays.
    check(&mut client, &[("SELECT 0", "OK"), ("WATCH cold", "OK"), ("GET cool", "nil")]);
    check(&mut client, &[("MULTI", "OK"), ("GET cold", "QUEUED"), ("EXEC", "[2]")]);
    let lines = ["GET cool0", "SET own 7", "SCID.GET own LEVEL 1", "GET hot0", "GET cool1"];
    assert_eq!(client.pipeline(&lines), ["nil", "OK", "7", "2", "nil"]);
    router.stop();
    follower.stop().unwrap();
    server.stop().unwrap();
}

/// The router does not check users: nodes do.
#[test]
fn a_client_that_may_not_read_teaches_the_router_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut options: Options = options();
    options.users = Users::parse("reader key read=default").unwrap();
    let server = Server::start(Place::folder(folder.path()), Role::Primary, options).unwrap();
    let login = Some(("reader".to_owned(), "key".to_owned()));
    let router = routed_with(&[&server], login);
    let mut stranger = Client::at(router.address());
    warm(&mut stranger);
    check(&mut stranger, &[("GET cold", "-NOAUTH~"), ("SCID.GET cold LEVEL 1", "-NOAUTH~")]);
    let nothing = "[predictions [0 0 0 0 0] corrections [0 0 0 0 0]]";
    let mut client = Client::at(router.address());
    check(&mut client, &[("AUTH reader key", "OK"), ("GET cold", "nil")]);
    check(&mut client, &[("SCID.PREDICTIONS", nothing), ("SCID.LAST", "[level 1~")]);
    warm(&mut client);
    check(&mut stranger, &[("GET cool", "-NOAUTH~"), ("SCID.GET cool LEVEL 1", "-NOAUTH~")]);
    let counts = client.text("SCID.PREDICTIONS");
    assert!(counts.ends_with(" 0 0 0 0] corrections [0 0 0 0 0]]"), "{counts}");
    check(&mut client, &[("GET cool", "nil"), ("SCID.LAST", "[level 5~")]);
    // Nor is the right to one partition that to another.
    check(&mut client, &[("SELECT other", "OK"), ("GET cool", "-NOPERM~")]);
    let after = client.text("SCID.PREDICTIONS");
    assert!(after.ends_with(" 0 0 0 1] corrections [0 0 0 0 0]]"), "{after}");
    router.stop();
    server.stop().unwrap();
}

/// Reads by random clients: whatever is predicted, the level that the reply names is kept.
#[test]
fn a_reply_that_names_a_strong_level_is_never_old() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let follower = predicting(folder.path(), |_| {});
    let mut rng = Rng::from_env_or(61);
    let mut writer = Client::new(&server);
    let mut client = Client::new(&follower);
    check(&mut writer, &[("SET cold 0", "OK")]);
    warm(&mut client);
    let mut written = vec![0; 40];
    let mut weak = 0;
    for round in 1..600 {
        let at = rng.index(written.len());
        let key = if at < 10 { format!("hot{at}") } else { format!("cold{at}") };
        if rng.chance(1, 2) {
            written[at] = round;
            check(&mut writer, &[(&format!("SET {key} {round}"), "OK")]);
            continue;
        }
        let corrected = ["", " LEVEL 1", " LEVEL 2 MAXLAG 0"][rng.index(3)];
        let found: u64 = client.text(&format!("SCID.GET {key}{corrected}")).parse().unwrap_or(0);
        let last = client.text("SCID.LAST");
        assert!(found <= written[at], "{key}: {found} of {}", written[at]);
        let is_strong = last.starts_with("[level 1 ") || !corrected.is_empty();
        assert!(!is_strong || found == written[at], "{key}: {found} of {}, {last}", written[at]);
        weak += u32::from(!is_strong);
    }
    assert!(weak > 20, "{weak} reads at weak levels");
    follower.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn predictions_are_among_the_figures() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let follower =
        predicting(folder.path(), |options| options.http = Some("127.0.0.1:0".to_owned()));
    let mut client = Client::new(&follower);
    warm(&mut client);
    check(&mut client, &[("GET cold", "nil"), ("SCID.GET cold LEVEL 1", "nil")]);
    let mut stream = TcpStream::connect(follower.http_address().unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    for line in [
        "siltstone_server_predictions_total{level=\"1\"} 76\n",
        "siltstone_server_predictions_total{level=\"5\"} 1\n",
        "siltstone_server_corrections_total{level=\"5\"} 1\n",
        "siltstone_server_corrections_total{level=\"1\"} 0\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    follower.stop().unwrap();
    server.stop().unwrap();
}
