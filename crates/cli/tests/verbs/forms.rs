//! The forms of keys and values that are no text, in the arguments and the output of the verbs.

use siltstone::{Db, Durability};

use super::{printed, refused};

/// A key that is no text, and its forms in JSON.
const KEY: &str = "/1w=";
const KEY_JSON: &str = "\"key_base64\":\"/1w=\"";

#[test]
fn keys_that_are_no_text_can_be_read_back_from_the_json_of_each_verb() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let key = [KEY, "--base64", "--json"];
    for (verb, rest) in [
        (&["put", "db"][..], &["MQ=="][..]),
        (&["merge", "merged"], &["MQ==", "--operator", "append"]),
        (&["explain", "db"], &[]),
    ] {
        let text = printed(at, &[verb, &key, rest].concat(), 0);
        assert!(text.contains(KEY_JSON), "{verb:?}: {text}");
    }
    printed(at, &["put", "other", "a", "1"], 0);
    let text = printed(at, &["diff", "db", "other", "--json"], 1);
    assert!(text.contains(&format!("{KEY_JSON},\"partition\"")), "{text}");
    printed(at, &["put", "db", "a\tb\\", "1"], 0);
    printed(at, &["compact", "db"], 0);
    let text = printed(at, &["levels", "db", "--json"], 0);
    assert!(text.contains("\"first_key\":\"a\\tb\\\\\""), "{text}");
    assert!(text.contains("\"last_key_base64\":\"/1w=\""), "{text}");
    let text = printed(at, &["delete", "db", "--prefix", "/1w=", "--base64", "--json"], 0);
    assert_eq!(text, "{\"done\":\"deleted\",\"prefix_base64\":\"/1w=\"}\n");
    printed(at, &["partition", "create", "db", "large", "--large-values"], 0);
    let large = ["--partition", "large", &"A".repeat(100_000)];
    printed(at, &[&["put", "db"], &key[..], &large].concat(), 0);
    let text = printed(at, &["chunks", "db", "--partition", "large", "--json"], 0);
    assert!(text.contains("\"first_key_base64\":\"/1w=\""), "{text}");
    assert!(text.contains("\"last_key_base64\":\"/1w=\""), "{text}");
}

#[test]
fn changes_are_watched_in_the_form_of_keys_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let db = Db::open(at.join("db")).unwrap();
    let users = db.partition("users").unwrap();
    users.put(b"a", b"1").unwrap();
    users.put(b"\xff\\", b"\0").unwrap();
    users.delete_range_with(&b"\xff"[..].., Durability::Sync).unwrap();
    // A writer that rests attests its last sync.
    db.flush().unwrap();
    for (arguments, put, range) in [
        (&[][..], "2\tusers\tput\t\\xff\\\\\t\\x00\n", "3\tusers\tdelete\t\\xff..\n"),
        (
            &["--hex", "--prefix", "ff5c", "--json"],
            r#""key_hex":"ff5c","operation":"put","partition":"users","value_hex":"00"}"#,
            r#""operation":"delete_range","partition":"users","start_hex":"ff"}"#,
        ),
        (
            &["--base64", "--prefix", "/1w=", "--json"],
            r#""key_base64":"/1w=","operation":"put","partition":"users","value_base64":"AA=="}"#,
            r#""operation":"delete_range","partition":"users","start_base64":"/w=="}"#,
        ),
        (
            &["--json"],
            r#""key_base64":"/1w=","operation":"put","partition":"users","value":"\u0000"}"#,
            r#""operation":"delete_range","partition":"users","start_base64":"/w=="}"#,
        ),
    ] {
        let watch = [&["watch", "db", "--from", "1", "--once"], arguments].concat();
        let text = printed(at, &watch, 0);
        assert!(text.contains(put) && text.contains(range), "{arguments:?}: {text}");
    }
    refused(at, &["watch", "db", "--hex", "--prefix", "f"], 2, "hex digits");
    db.close().unwrap();
}
