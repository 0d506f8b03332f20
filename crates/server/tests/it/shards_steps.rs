//! Moves of slots, step by step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use server::{Mover, MoverOptions, Policy, Role, Shard, slot_of};
use siltstone::{Error, ErrorKind, PartitionOptions};
use testkit::Rng;

use crate::client::Client;
use crate::pages::get;
use crate::shards::{Service, maps, mover, node, service, shard, slots};
use crate::shards_linear::routed;

/// A client of the old owner that changes three keys before each step of a move, and the replies that it got.
struct Meddler {
    client: Client,
    known: Vec<String>,
    steps: u64,
}

impl Meddler {
    fn meddle(&mut self) {
        self.steps += 1;
        let step = self.steps;
        for key in 0..3 {
            let is_deletion = (step + key).is_multiple_of(3);
            let key = key as usize;
            let line = match is_deletion {
                true => format!("DEL {{foo}}{key}"),
                false => format!("SET {{foo}}{key} {step}"),
            };
            let reply = self.client.text(&line);
            if reply.starts_with('-') {
                assert!(reply.starts_with("-MOVED 12182 a"), "{reply}");
                continue;
            }
            self.known[key] = if is_deletion { "nil".to_owned() } else { step.to_string() };
        }
    }
}

#[test]
fn writes_before_each_step_of_a_move_are_kept() {
    let service = service(|options| options);
    let client = Client::new(&service.nodes[1]);
    let known = vec!["nil".to_owned(); 3];
    let meddler = Arc::new(Mutex::new(Meddler { client, known, steps: 0 }));
    let names = Arc::new(Mutex::new(Vec::new()));
    let seen = (meddler.clone(), names.clone());
    let mover = stepped(&service, move |step| {
        seen.0.lock().unwrap().meddle();
        seen.1.lock().unwrap().push(step.to_owned());
        Ok(())
    });
    mover.move_slots(&slots("12182"), "a").unwrap();
    let known = meddler.lock().unwrap().known.join(" ");
    let mut client = Client::at(service.router.address());
    assert_eq!(client.text("MGET {foo}0 {foo}1 {foo}2"), format!("[{known}]"));
    let mut names = names.lock().unwrap().clone();
    names.dedup();
    let expected =
        "begin expect note clear copy put changes give changes seal publish own done end";
    assert_eq!(names.join(" "), expected);
}

fn stepped(
    service: &Service,
    on_step: impl Fn(&str) -> siltstone::Result<()> + Send + Sync + 'static,
) -> Mover {
    let options = MoverOptions { on_step: Arc::new(on_step), ..MoverOptions::default() };
    Mover::new(maps(&service.folder.path().join("map")), options).unwrap()
}

/// It has read an old value when another mover takes over, and would write it after that one has copied the new value.
#[test]
fn a_mover_that_was_replaced_writes_nothing_more() {
    let service = service(|options| options);
    let mut client = Client::at(service.router.address());
    assert_eq!(client.text("SET foo old"), "OK");
    let (has_read, is_read) = std::sync::mpsc::channel();
    let (goes_on, may_go_on) = std::sync::mpsc::channel();
    let may_go_on = Mutex::new(may_go_on);
    let first = stepped(&service, move |step| {
        if step == "put" {
            has_read.send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
        }
        Ok(())
    });
    let replaced = std::thread::spawn(move || first.move_slots(&slots("12182"), "a"));
    is_read.recv().unwrap();
    assert_eq!(client.text("SET foo new"), "OK");
    let replaced = Mutex::new(Some(replaced));
    let second = stepped(&service, move |step| {
        if step == "give" {
            goes_on.send(()).unwrap();
            let refused = replaced.lock().unwrap().take().unwrap().join().unwrap().unwrap_err();
            assert!(refused.to_string().contains("another mover has taken over"), "{refused}");
        }
        Ok(())
    });
    assert_eq!(second.resume(false).unwrap().unwrap().entries, 1);
    assert_eq!(client.text("GET foo"), "new");
}

/// A mover that ends before a step.
fn ending(service: &Service, last: &'static str) -> Mover {
    stepped(service, move |step| match step == last {
        true => Err(Error::new(ErrorKind::Closed, "ended")),
        false => Ok(()),
    })
}

#[test]
fn slots_that_were_given_away_come_back_until_the_map_names_their_new_owner() {
    let service = service(|options| options);
    let mut old = Client::new(&service.nodes[1]);
    let mut new = Client::new(&service.nodes[0]);
    assert_eq!(old.text("SET foo 1"), "OK");
    assert!(ending(&service, "publish").move_slots(&slots("12182"), "a").is_err());
    assert_eq!(old.text("GET foo"), "-MOVED 12182 a");
    assert_eq!(new.text("GET foo"), "-TRYAGAIN slot 12182 is on its way to shard a");
    // Undone.
    let mover = mover(&service.folder.path().join("map"));
    assert_eq!(mover.resume(true).unwrap(), None);
    assert_eq!(old.pipeline(&["GET foo", "SET foo 2"]), ["1", "OK"]);
    assert!(new.text("GET foo").starts_with("-CLUSTERDOWN "));
    // Taken back by the next attempt, for the time of its copy.
    assert!(ending(&service, "publish").move_slots(&slots("12182"), "a").is_err());
    assert!(ending(&service, "give").resume(false).is_err());
    assert_eq!(old.pipeline(&["GET foo", "SET foo 3"]), ["2", "OK"]);
    assert!(ending(&service, "own").resume(false).is_err());
    let refused = mover.resume(true).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    assert!(mover.resume(false).unwrap().is_some());
    assert_eq!(new.text("GET foo"), "3");
    assert_eq!(old.text("GET foo"), "-MOVED 12182 a");
}

#[test]
fn a_token_keeps_a_session_from_a_router_with_an_older_map() {
    let folder = tempfile::tempdir().unwrap();
    let a = node(&folder.path().join("a"), Role::Primary, "a");
    let b = [Role::Primary, Role::Reader].map(|role| node(&folder.path().join("b"), role, "b"));
    let map = folder.path().join("map");
    mover(&map).create(vec![shard("a", &[&a]), shard("b", &[&b[0], &b[1]])]).unwrap();
    let routers = [routed(&map, Policy::Cost), routed(&map, Policy::Cost)];
    let mut clients = routers.each_ref().map(|router| Client::at(router.address()));
    assert_eq!(clients[0].text("SET foo old"), "OK");
    let mut reader = Client::new(&b[1]);
    assert_eq!(reader.text("SCID.GET foo LEVEL 1"), "old");
    mover(&map).move_slots(&slots("12182"), "a").unwrap();
    assert_eq!(clients[0].text("SET foo new"), "OK");
    let token = clients[0].text("SCID.TOKEN");
    assert!(token.starts_with("4/a="), "{token}");
    // The reader that knows nothing of the move may serve it at level 5 alone.
    assert_eq!(reader.text("SCID.GET foo LEVEL 5"), "old");
    assert_eq!(clients[1].text(&format!("SCID.GET foo TOKEN {token}")), "new");
    assert!(clients[1].text("SCID.TOKEN 99/a=1-1").starts_with("-NOTYET "));
    assert!(clients[1].text("SCID.TOKEN 1-1").starts_with("-ERR a token of shards is "));
}

/// The slot is back where a router with a map of before looks for it. Another router has the map between the two moves.
#[test]
fn a_token_of_a_router_with_an_older_map_shows_that_a_slot_has_returned() {
    let folder = tempfile::tempdir().unwrap();
    let a = [Role::Primary, Role::Reader].map(|role| node(&folder.path().join("a"), role, "a"));
    let b = node(&folder.path().join("b"), Role::Primary, "b");
    let map = folder.path().join("map");
    mover(&map).create(vec![shard("a", &[&a[0], &a[1]]), shard("b", &[&b])]).unwrap();
    let before = routed(&map, Policy::Offloaded);
    mover(&map).move_slots(&slots("12182"), "a").unwrap();
    let between = routed(&map, Policy::Offloaded);
    let mut client = Client::at(between.address());
    assert_eq!(client.text("SET foo old"), "OK");
    assert_eq!(Client::new(&a[1]).text("SCID.GET foo LEVEL 1"), "old");
    mover(&map).move_slots(&slots("12182"), "b").unwrap();
    let mut other = Client::at(before.address());
    assert_eq!(other.text("SET foo new"), "OK");
    let token = other.text("SCID.TOKEN");
    assert!(token.starts_with("1/b="), "{token}");
    assert_eq!(client.text(&format!("SCID.GET foo TOKEN {token}")), "new");
}

/// A reader that follows when it is asked alone has the first ownership of the slot, and the old value.
#[test]
fn a_session_does_not_go_back_when_its_slot_returns() {
    let folder = tempfile::tempdir().unwrap();
    let a = [Role::Primary, Role::Reader].map(|role| node(&folder.path().join("a"), role, "a"));
    let b = node(&folder.path().join("b"), Role::Primary, "b");
    let map = folder.path().join("map");
    mover(&map).create(vec![shard("a", &[&a[0], &a[1]]), shard("b", &[&b])]).unwrap();
    let router = routed(&map, Policy::Offloaded);
    let mut client = Client::at(router.address());
    assert_eq!(client.text("SET bar 1"), "OK");
    assert_eq!(Client::new(&a[1]).text("SCID.GET bar LEVEL 1"), "1");
    mover(&map).move_slots(&slots("5061"), "b").unwrap();
    assert_eq!(client.text("SET bar 2"), "OK");
    mover(&map).move_slots(&slots("5061"), "a").unwrap();
    assert_eq!(Client::new(&a[1]).text("SCID.GET bar LEVEL 5"), "1");
    assert_eq!(client.text("SCID.GET bar LEVEL 3"), "2");
}

/// Nodes know the end of the epoch before theirs, and of no earlier one.
#[test]
fn a_new_session_reads_at_level_3_although_the_primary_was_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let [mut a, b] = ["a", "b"].map(|name| node(&folder.path().join(name), Role::Primary, name));
    let map = folder.path().join("map");
    mover(&map).create(vec![shard("a", &[&a]), shard("b", &[&b])]).unwrap();
    assert_eq!(Client::new(&b).text("SET foo 1"), "OK");
    mover(&map).move_slots(&slots("12182"), "a").unwrap();
    for _ in 0..2 {
        a.stop().unwrap();
        a = node(&folder.path().join("a"), Role::Primary, "a");
    }
    mover(&map).add(shard("a", &[&a])).unwrap();
    for _ in 0..10 {
        // A router knows the epochs of its nodes after it has asked them once, and no request goes to a node before.
        let router = routed(&map, Policy::Optimal);
        assert_eq!(Client::at(router.address()).text("SCID.GET foo LEVEL 3"), "1");
    }
}

#[test]
fn a_transaction_ends_when_the_nodes_of_its_shard_change() {
    let service = service(|options| options);
    let mut clients = [(); 3].map(|()| Client::at(service.router.address()));
    assert_eq!(clients[0].pipeline(&["MULTI", "SET {foo}a 1"]), ["OK", "QUEUED"]);
    assert_eq!(clients[1].text("WATCH foo"), "OK");
    let reader = node(&service.folder.path().join("b"), Role::Reader, "b");
    let map = service.folder.path().join("map");
    mover(&map).add(shard("b", &[&service.nodes[1], &reader])).unwrap();
    // The router reads the map of the token.
    assert_eq!(clients[2].text("SCID.TOKEN 2/b=0-0"), "OK");
    let replies = clients[0].pipeline(&["SET {foo}b 1", "EXEC", "MGET {foo}a {foo}b"]);
    assert!(replies[0].starts_with("-ERR the connection to "), "{replies:?}");
    assert!(replies[1].starts_with("-EXECABORT "), "{replies:?}");
    assert_eq!(replies[2], "[nil nil]");
    assert_eq!(clients[2].text("SET foo 1"), "OK");
    let replies = clients[1].pipeline(&["MULTI", "SET foo 2", "EXEC", "GET foo"]);
    assert!(replies[2].starts_with("-EXECABORT "), "{replies:?}");
    assert_eq!(replies[3], "1");
}

/// The partition has no commit after the arrival of the slots.
#[test]
fn a_reader_serves_each_level_after_slots_have_come() {
    let folder = tempfile::tempdir().unwrap();
    let a = [Role::Primary, Role::Reader].map(|role| node(&folder.path().join("a"), role, "a"));
    let b = node(&folder.path().join("b"), Role::Primary, "b");
    let map = folder.path().join("map");
    mover(&map).create(vec![shard("a", &[&a[0], &a[1]]), shard("b", &[&b])]).unwrap();
    assert_eq!(Client::new(&a[0]).text("SET bar 1"), "OK");
    let mut reader = Client::new(&a[1]);
    assert_eq!(reader.text("SCID.GET bar LEVEL 1"), "1");
    for (slot, level) in [("12182", "LEVEL 1"), ("12183", "MAXLAG 0"), ("12184", "LEVEL 4")] {
        mover(&map).move_slots(&slots(slot), "a").unwrap();
        assert_eq!(reader.text(&format!("SCID.GET bar {level}")), "1", "{level}");
    }
    assert_eq!(reader.text("SCID.GET foo LEVEL 1"), "nil");
}

#[test]
fn a_transaction_does_not_write_the_record_of_slots() {
    let service = service(|options| options);
    let owner = usize::from(slot_of(b"shard") >= 8192);
    let mut client = Client::new(&service.nodes[owner]);
    let before = client.text("SCID.MAP");
    let replies = client.pipeline(&["SELECT scid", "SET shard x", "MULTI", "SET shard x", "EXEC"]);
    assert!(replies[1].starts_with("-NOPERM "), "{replies:?}");
    assert!(replies[3].starts_with("-NOPERM "), "{replies:?}");
    assert!(replies[4].starts_with("-EXECABORT "), "{replies:?}");
    assert!(!client.text("GET shard").starts_with('x') && client.text("SCID.MAP") == before);
}

/// A crash at the end of the move would leave the files that are copied here.
#[test]
#[expect(clippy::disallowed_methods, reason = "it copies files of a database")]
fn entries_without_a_log_are_durable_when_their_slots_have_come() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        let db = siltstone::Db::open(folder.path().join(name)).unwrap();
        db.partition_with("cache", PartitionOptions::new().logged(false)).unwrap();
        db.close().unwrap();
    }
    let nodes = ["a", "b"].map(|name| node(&folder.path().join(name), Role::Primary, name));
    let mover = mover(&folder.path().join("map"));
    let [a, b] = &nodes;
    mover.create(vec![shard("a", &[a]), shard("b", &[b])]).unwrap();
    assert_eq!(Client::new(b).pipeline(&["SELECT cache", "SET foo 1"])[1], "OK");
    assert_eq!(mover.move_slots(&slots("12182"), "a").unwrap().entries, 1);
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for file in std::fs::read_dir(folder.path().join("a")).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
    }
    let db = siltstone::Db::open(&copy).unwrap();
    assert_eq!(db.partition("cache").unwrap().get("foo").unwrap().unwrap(), "1");
}

#[test]
fn a_pipeline_whose_slot_has_gone_finds_it_the_next_time() {
    let service = service(|options| options);
    let mut client = Client::at(service.router.address());
    let lines = ["SET foo 1", "SET somekey 1"];
    assert_eq!(client.pipeline(&lines), ["OK", "OK"]);
    mover(&service.folder.path().join("map")).move_slots(&slots("12182"), "a").unwrap();
    // The second write has taken effect, so the first one is not sent again after it.
    assert_eq!(client.pipeline(&lines), ["-MOVED 12182 a", "OK"]);
    assert_eq!(client.pipeline(&lines), ["OK", "OK"]);
}

/// Replies that fill the buffer of the router are sent before the end of their pipeline.
#[test]
fn a_refusal_before_a_large_reply_leads_to_the_next_map() {
    let service = service(|options| options);
    let mut client = Client::at(service.router.address());
    let large = "x".repeat(2 << 20);
    assert_eq!(client.text(&format!("SET somekey {large}")), "OK");
    mover(&service.folder.path().join("map")).move_slots(&slots("12182"), "a").unwrap();
    let replies = client.pipeline(&["SET foo 1", "GET somekey", "SET somekey 1"]);
    assert_eq!((&*replies[0], &*replies[2]), ("-MOVED 12182 a", "OK"));
    assert_eq!(client.pipeline(&["SET foo 2", "SET somekey 2"]), ["OK", "OK"]);
}

/// The other shard is ahead with more than may wait in the memory of the router.
#[test]
fn a_refusal_before_large_replies_of_another_shard_is_passed_on() {
    let service = service(|options| options);
    let mut client = Client::at(service.router.address());
    let large = "x".repeat(2 << 20);
    assert_eq!(client.text(&format!("SET bar {large}")), "OK");
    assert_eq!(client.text("SET foo 1"), "OK");
    mover(&service.folder.path().join("map")).move_slots(&slots("12182"), "a").unwrap();
    let lines = ["GET foo", "GET bar", "GET bar", "STRLEN bar"];
    let replies = client.pipeline(&lines);
    assert!(replies[0].starts_with("-TRYAGAIN slots of this pipeline have moved"), "{replies:?}");
    assert!(replies[1] == large && replies[2] == large && replies[3] == "2097152");
    assert_eq!(client.pipeline(&lines)[0], "1");
}

/// One client writes each key, so the replies of its increments follow each other.
#[test]
fn a_pipeline_over_shards_keeps_the_order_of_each_key_while_slots_move() {
    let service = service(|options| options);
    let map = service.folder.path().join("map");
    let done = AtomicBool::new(false);
    let mut rng = Rng::from_env_or(44);
    let keys = ["foo", "bar", "hello", "somekey", "{foo}b"];
    let mut counts = [0_u64; 5];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..6 {
                let [foo, bar] = if round % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
                mover(&map).move_slots(&slots("12182"), foo).unwrap();
                mover(&map).move_slots(&slots("5061"), bar).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        let mut client = Client::at(service.router.address());
        let mut effects = 0;
        while !done.load(Ordering::Acquire) || effects < 1_000 {
            let asked: Vec<usize> = (0..30).map(|_| rng.index(keys.len())).collect();
            let lines: Vec<String> = asked.iter().map(|at| format!("INCR {}", keys[*at])).collect();
            let lines: Vec<&str> = lines.iter().map(|line| &line[..]).collect();
            for (at, reply) in asked.into_iter().zip(client.pipeline(&lines)) {
                if reply.starts_with("-MOVED ") || reply.starts_with("-TRYAGAIN ") {
                    continue;
                }
                counts[at] += 1;
                effects += 1;
                assert_eq!(reply, counts[at].to_string(), "{}", keys[at]);
            }
        }
    });
}

#[test]
fn an_undo_reaches_the_shards_whose_primaries_run() {
    let mut service = service(|options| options);
    let mut old = Client::new(&service.nodes[1]);
    assert_eq!(old.text("SET foo 1"), "OK");
    assert!(ending(&service, "publish").move_slots(&slots("12182"), "a").is_err());
    assert_eq!(old.text("GET foo"), "-MOVED 12182 a");
    drop(service.nodes.remove(0));
    let options = MoverOptions { wait: Duration::from_millis(300), ..MoverOptions::default() };
    let mover = Mover::new(maps(&service.folder.path().join("map")), options).unwrap();
    let refused = mover.resume(true).unwrap_err().to_string();
    assert!(refused.contains("no primary of shard a"), "{refused}");
    assert_eq!(old.text("GET foo"), "1");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it writes a list of nodes")]
fn a_list_that_cannot_be_read_holds_up_its_shard_alone() {
    let service = service(|options| options);
    let list = service.folder.path().join("list");
    let address = service.nodes[1].address().to_string();
    std::fs::write(&list, &address).unwrap();
    let listed = Shard { name: "b".to_owned(), nodes: vec![format!("@{}", list.display())] };
    mover(&service.folder.path().join("map")).add(listed).unwrap();
    std::fs::remove_file(&list).unwrap();
    let mut client = Client::at(service.router.address());
    assert_eq!(client.pipeline(&["SCID.TOKEN 2/a=0-0", "SET bar 1"]), ["OK", "OK"]);
    std::fs::write(&list, &address).unwrap();
    assert_eq!(client.text("SET foo 1"), "OK");
    // A map that is not sound changes nothing, and is counted.
    let third = service.folder.path().join(format!("map/shards/{:020}", 3));
    std::fs::write(third, "no map").unwrap();
    assert_eq!(client.text("SCID.TOKEN 2/a=0-0"), "OK");
    for number in [1, 3] {
        let refused = client.text(&format!("SCID.TOKEN {number}/a=0-0"));
        assert!(refused.starts_with("-NOTYET the token is of another map"), "{refused}");
    }
    let text = get(service.router.http_address().unwrap(), "/metrics");
    let looks = "siltstone_router_failed_map_looks_total ";
    let looks = text.lines().find_map(|line| line.strip_prefix(looks)).unwrap();
    assert!(looks.parse::<u64>().unwrap() > 0, "{text}");
    assert!(text.contains("siltstone_router_map_number 2\n"), "{text}");
}

#[test]
fn a_token_in_a_pipeline_is_the_routers() {
    let service = service(|options| options);
    let mut client = Client::at(service.router.address());
    assert_eq!(client.text("SET foo 1"), "OK");
    let token = client.text("SCID.TOKEN");
    let with_token = format!("SCID.GET foo TOKEN {token}");
    assert_eq!(client.pipeline(&["GET foo", &with_token]), ["1", "1"]);
}

#[test]
fn a_transaction_whose_slot_has_moved_is_refused_as_moved() {
    let service = service(|options| options);
    let mut clients = [(); 2].map(|()| Client::at(service.router.address()));
    assert_eq!(clients[0].pipeline(&["MULTI", "SET foo 1"]), ["OK", "QUEUED"]);
    mover(&service.folder.path().join("map")).move_slots(&slots("12182"), "a").unwrap();
    assert_eq!(clients[1].text("GET foo"), "nil");
    let replies = clients[0].pipeline(&["SET foo 2", "EXEC"]);
    assert_eq!(replies[0], "-MOVED 12182 a");
    assert!(replies[1].starts_with("-EXECABORT "), "{replies:?}");
}

/// Shards whose maps are lost know of later ones.
#[test]
fn a_first_map_of_shards_with_later_maps_is_not_made() {
    let service = service(|options| options);
    let folder = service.folder.path();
    mover(&folder.join("map")).move_slots(&slots("12182"), "a").unwrap();
    let both = vec![shard("a", &[&service.nodes[0]]), shard("b", &[&service.nodes[1]])];
    let refused = mover(&folder.join("other")).create(both).unwrap_err().to_string();
    assert!(refused.contains("map 3") && refused.contains("map 1"), "{refused}");
    assert_eq!(maps(&folder.join("other")).latest().unwrap(), None);
}
