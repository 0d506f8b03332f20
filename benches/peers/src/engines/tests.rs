//! Every engine has the behaviour that the workloads need.

use super::*;
use testkit::bench::{Ack, ScanDirection};

fn check<P: Peer>() {
    let folder = std::env::temp_dir().join(format!(
        "siltstone-peers-{}-{}",
        std::process::id(),
        std::any::type_name::<P>().replace([':', '<', '>'], "-"),
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let engine = P::open(&folder, &Settings::new(0)).unwrap();
    let value = vec![b'v'; 2000];
    for round in 0..2 {
        engine.put(b"b", &value, Ack::Os).unwrap();
        engine.put(b"d", b"sync", Ack::Sync).unwrap();
        engine.put(b"e", b"gone", Ack::Os).unwrap();
        let pairs = [(b"a".to_vec(), b"1".to_vec()), (b"c".to_vec(), b"22".to_vec())];
        engine.put_all(&pairs, Ack::Sync).unwrap();
        engine.put_all(&pairs, Ack::Os).unwrap();
        engine.delete(b"e", Ack::Os).unwrap();
        engine.delete(b"f", Ack::Sync).unwrap();
        // Once from memory, once from files.
        if round == 1 {
            engine.settle().unwrap();
        }

        assert_eq!(engine.get(b"b").unwrap(), Some(2000));
        let mut buf = vec![0; 3000];
        assert_eq!(engine.read_into(b"b", &mut buf).unwrap(), Some(2000));
        assert_eq!(buf[..2000], value);
        assert_eq!(buf[2000..], [0; 1000]);
        assert_eq!(engine.read_into(b"e", &mut buf).unwrap(), None);
        let mut lent = Vec::new();
        if let Some(is_there) =
            engine.lend(b"b", &mut |found| lent.extend_from_slice(found)).unwrap()
        {
            assert!(is_there && lent == value);
            assert_eq!(engine.lend(b"e", &mut |_| panic!("it was deleted")).unwrap(), Some(false));
        }
        assert!(engine.read_into(b"b", &mut buf[..1999]).is_err(), "the value does not fit");
        assert_eq!(engine.get(b"d").unwrap(), Some(4));
        assert_eq!(engine.get(b"e").unwrap(), None);
        assert_eq!(engine.count().unwrap(), 4);
        let mut seen = Vec::new();
        engine.seek(b"bb", 2, |key, value| seen.push((key.to_vec(), value.len()))).unwrap();
        assert_eq!(seen, [(b"c".to_vec(), 2), (b"d".to_vec(), 4)]);
        let mut keys = Vec::new();
        let down = |key: &[u8], _: &[u8]| {
            keys.extend_from_slice(key);
            key > &b"b"[..]
        };
        engine.scan(ScanDirection::Down, down).unwrap();
        assert_eq!(keys, b"dcb");
    }
    engine.reclaim().unwrap();
    let other = engine.clone();
    std::thread::spawn(move || {
        other.put(b"g", b"", Ack::Os).unwrap();
        assert_eq!(other.get(b"d").unwrap(), Some(4));
    })
    .join()
    .unwrap();
    assert_eq!(engine.get(b"g").unwrap(), Some(0));
    assert_eq!(engine.count().unwrap(), 5);
    engine.close().unwrap();
    let engine = P::open(&folder, &Settings::new(0)).unwrap();
    assert_eq!(engine.get(b"b").unwrap(), Some(2000));
    assert_eq!(engine.get(&[0; 16]).unwrap(), None);
    assert_eq!(engine.count().unwrap(), 5);
    engine.close().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The calls that few engines have.
fn check_features<P: Peer>() {
    let name = std::any::type_name::<P>().replace([':', '<', '>'], "-");
    let folder = std::env::temp_dir()
        .join(format!("siltstone-peers-features-{}-{name}", std::process::id()));
    std::fs::create_dir_all(folder.join("store")).unwrap();
    let features = crate::settings::Features {
        counters: true,
        prefix_bytes: Some(2),
        keeps_log: true,
        ..Default::default()
    };
    let engine =
        P::open(&folder.join("store"), &Settings { features, ..Settings::new(0) }).unwrap();
    engine.put(b"aa1", b"value", Ack::Os).unwrap();
    engine.put(b"ab1", b"value", Ack::Sync).unwrap();
    let mut followed = Vec::new();
    if engine
        .follow(&mut |key, value| followed.push((key.to_vec(), value.to_vec())))
        .unwrap()
        .is_some()
    {
        let puts = [b"aa1", b"ab1"].map(|key| (key.to_vec(), b"value".to_vec()));
        assert_eq!(followed, puts);
    }
    assert_eq!(engine.multi_get(&[b"ab1".to_vec(), b"b".to_vec(), b"aa1".to_vec()]).unwrap(), 2);
    for is_flushed in [false, true] {
        if is_flushed && engine.flush().unwrap().is_none() {
            break;
        }
        assert!(engine.count_prefix(b"aa").unwrap().is_none_or(|count| count == 1));
        assert!(engine.count_prefix(b"ac").unwrap().is_none_or(|count| count == 0));
    }
    for key in [b"c1", b"c2"] {
        let mut buf = [0; 8];
        let call = if key == b"c1" { P::merge } else { P::update };
        if call(&engine, key).unwrap().is_some() {
            call(&engine, key).unwrap();
            assert_eq!(engine.read_into(key, &mut buf).unwrap(), Some(8));
            assert_eq!(buf, 2i64.to_le_bytes());
        }
    }
    for _ in 0..2 {
        if engine.back_up(&folder.join("backups")).unwrap().is_some() {
            assert!(std::fs::read_dir(folder.join("backups")).unwrap().next().is_some());
        }
    }
    if engine.delete_range(b"aa", b"ab1").unwrap().is_some() {
        assert_eq!(engine.get(b"aa1").unwrap(), None);
        assert_eq!(engine.get(b"ab1").unwrap(), Some(5));
    }
    engine.close().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn hex_digits_are_read_in_pairs() {
    assert_eq!(bytes_of_hex("00fF7a"), Some(vec![0, 0xff, 0x7a]));
    assert_eq!(bytes_of_hex(""), Some(vec![]));
    // A temporary file of `files` has such a name.
    for digits in ["0", "0g", "+1", "\u{e9}", "new-12"] {
        assert_eq!(bytes_of_hex(digits), None, "{digits}");
    }
}

struct Check;

impl Task for Check {
    type Outcome = ();

    fn with<P: Peer>(self) {
        check::<P>();
        check_features::<P>();
    }
}

fn is_left_out(name: &str) -> bool {
    cfg!(not(feature = "rocksdb")) && name.starts_with("rocksdb")
        || cfg!(not(feature = "berkeley")) && name == "berkeley"
}

#[test]
fn every_engine_does_what_is_asked() {
    for name in NAMES {
        println!("{name}");
        assert_eq!(with_engine(name, Check).is_none(), is_left_out(name), "{name}");
    }
}

#[test]
fn versions_are_known() {
    for name in NAMES {
        let version = version(name);
        assert_eq!(version.is_none(), is_left_out(name), "{name}");
        assert!(version.is_none_or(|v| v.starts_with(|c: char| c.is_ascii_digit())), "{name}");
    }
}
