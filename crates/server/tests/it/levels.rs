//! The levels of a primary and two readers.

use resp_rs::resp3::Frame;
use server::{Options, Place, Role, Server, Wanted};
use testkit::Rng;

use crate::client::{Client, options, primary, reader, text};
use crate::commands::check;

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

#[test]
fn each_level_sees_what_it_promises() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let follower = reader(folder.path());
    let mut writer = Client::new(&server);
    let mut client = Client::new(&follower);
    check(&mut writer, &[("SET a 1", "OK")]);
    check(&mut client, &[("SCID.GET a LEVEL 1", "1"), ("SCID.SYNC", "1-~")]);
    let token = writer.text("SCID.TOKEN");
    check(&mut writer, &[("SET a 2", "OK"), ("SET a 3", "OK")]);
    let newest = writer.text("SCID.TOKEN");
    assert_ne!(token, newest);
    let session = format!("SCID.GET a TOKEN {token}");
    let unborn = format!("SCID.GET a TOKEN {}-999999999", newest.split('-').next().unwrap());
    check(
        &mut client,
        &[
            ("SCID.GET a LEVEL 5", "1"),
            ("SCID.GET a LEVEL 4", "1"),
            (&session, "1"),
            ("SCID.LAST", "[level 3 token 1-~"),
            ("SCID.GET a MAXLAG 100", "1"),
            ("SCID.GET a MAXLAG 1", "3"),
            ("SCID.GET a LEVEL 4", "1"),
            ("SCID.GET a LEVEL 5", "3"),
            (&unborn, "-NOTYET~"),
            ("SCID.GET a TOKEN 9-1", "-SESSIONLOST~"),
            ("SCID.GET a LEVEL 1 MAXAGE 5", "-ERR MAXAGE~"),
            ("SCID.GET a LEVEL", "-ERR syntax error"),
            ("SCID.SYNC default", "1-~"),
            ("SCID.SYNC nothing", "-ERR there is no partition~"),
            ("SCID.SYNC", "1-~"),
            ("SCID.GET a LEVEL 4", "3"),
            ("SCID.LAG default", "[default [operations 0 bytes 0 milliseconds 0]]"),
        ],
    );
    // A token of another connection is one of this one, too.
    check(
        &mut client,
        &[("SCID.LEVEL 3", "OK"), (&format!("SCID.TOKEN {newest}"), "OK"), ("GET a", "3")],
    );
    check(&mut writer, &[("SCID.GET a LEVEL 1", "3"), ("SCID.LAST", "[level 1 token 1-~")]);
    check(&mut client, &[("SCID.GET a ATTRIBUTE", "3")]);
    client.run("HELLO 3");
    check(&mut client, &[("SCID.GET a LEVEL 1", "3")]);
    let Frame::Attribute(pairs) = client.run("SCID.GET a LEVEL 1 ATTRIBUTE") else {
        panic!("no attribute")
    };
    assert_eq!(text(&pairs[0].1), "1");
    assert_eq!(text(&client.receive().unwrap()), "3");
    follower.stop().unwrap();
    server.stop().unwrap();
}

#[test]
fn a_session_whose_token_is_lost_has_no_level_3() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut client = Client::new(&server);
    check(&mut client, &[("SET a 1", "OK"), ("SCID.TOKEN lost", "OK"), ("GET a", "1")]);
    let token = client.text("SCID.TOKEN");
    check(
        &mut client,
        &[
            ("SCID.GET a LEVEL 3", "-NOTYET the newest commit~"),
            ("SCID.GET a PREDICTED 3", "1"),
            ("SCID.LAST", "[level 5~"),
            (&format!("SCID.GET a TOKEN {token}"), "1"),
            ("SCID.LEVEL 3", "OK"),
            ("GET a", "-NOTYET the newest commit~"),
            (&format!("SCID.TOKEN {token}"), "OK"),
            ("GET a", "1"),
            ("SCID.LAST", "[level 3~"),
        ],
    );
    server.stop().unwrap();
}

#[test]
fn a_partition_has_a_level_and_a_connection_overrides_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let mut options: Options = options();
    options.levels.insert("cold".to_owned(), Wanted::Number(5));
    let follower = Server::start(Place::folder(folder.path()), Role::Reader, options).unwrap();
    let mut writer = Client::new(&server);
    let mut client = Client::new(&follower);
    check(&mut writer, &[("SELECT cold", "OK"), ("SET a 1", "OK")]);
    check(
        &mut client,
        &[("SELECT cold", "OK"), ("SCID.LEVEL", "5"), ("SCID.SYNC", "1-~"), ("GET a", "1")],
    );
    check(&mut writer, &[("SET a 2", "OK")]);
    check(
        &mut client,
        &[("GET a", "1"), ("SCID.LEVEL AUTO", "OK"), ("GET a", "2"), ("SCID.LAST", "[level 1~")],
    );
    // Reads in a transaction are of one moment; writes are refused.
    check(
        &mut client,
        &[
            ("MULTI", "OK"),
            ("GET a", "QUEUED"),
            ("MGET a b", "QUEUED"),
            ("EXEC", "[2 [2 nil]]"),
            ("MULTI", "OK"),
            ("SET a 1", "-READONLY~"),
            ("EXEC", "-EXECABORT~"),
            ("WATCH a", "-READONLY~"),
        ],
    );
    follower.stop().unwrap();
    server.stop().unwrap();
}

/// Writes count up, so a value says how much of the history a read saw.
#[test]
fn random_reads_keep_sessions_and_prefixes() {
    let folder = tempfile::tempdir().unwrap();
    let server = primary(folder.path());
    let followers = [reader(folder.path()), reader(folder.path())];
    let mut rng = Rng::from_env_or(31);
    let mut writer = Client::new(&server);
    let mut clients: Vec<Client> = followers.iter().map(Client::new).collect();
    // The tokens of the writes, by their number; of each reader the newest that a level 4 and a level 5 returned.
    let mut tokens = vec!["0-0".to_owned()];
    let mut prefixes = [0; 2];
    let mut seen = [0; 2];
    for _ in 0..600 {
        let written = tokens.len() as u64 - 1;
        let at = rng.index(2);
        let client = &mut clients[at];
        match rng.below(8) {
            0..=2 => {
                let next = written + 1;
                assert_eq!(writer.text(&format!("MSET a {next} b {next}")), "OK");
                tokens.push(writer.text("SCID.TOKEN"));
            }
            3 => {
                let of = 1 + rng.below(written.max(1));
                if of <= written {
                    let found =
                        number(&client.text(&format!("SCID.GET a TOKEN {}", tokens[of as usize])));
                    assert!((of..=written).contains(&found), "{found} of {of}");
                    seen[at] = seen[at].max(found);
                }
            }
            4 => {
                // One moment for both, and never an older one.
                client.run("SCID.LEVEL 4");
                let both = client.text("MGET a b");
                let words: Vec<&str> = both.trim_matches(['[', ']']).split(' ').collect();
                assert_eq!(words[0], words[1]);
                let found = number(words[0]);
                assert!(
                    (prefixes[at]..=written).contains(&found),
                    "{found} after {}",
                    prefixes[at]
                );
                prefixes[at] = found;
            }
            5 => {
                let found = number(&client.text("SCID.GET a LEVEL 5"));
                assert!((seen[at]..=written).contains(&found), "{found} after {}", seen[at]);
                seen[at] = found;
            }
            6 => {
                let most = rng.below(6);
                let found = number(&client.text(&format!("SCID.GET a MAXLAG {most}")));
                // Each write is two operations.
                assert!(
                    found <= written && 2 * (written - found) <= most,
                    "{found} of {written}, {most}"
                );
                seen[at] = seen[at].max(found);
            }
            _ if rng.chance(1, 2) => {
                client.run("SCID.SYNC");
                seen[at] = seen[at].max(written);
                prefixes[at] = written;
            }
            _ => {
                assert_eq!(number(&client.text("SCID.GET a LEVEL 1")), written);
                seen[at] = written;
            }
        }
    }
    followers.into_iter().for_each(|follower| follower.stop().unwrap());
    server.stop().unwrap();
}
