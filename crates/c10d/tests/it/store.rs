//! Stores, their prefixes and timeouts.

use std::{thread, time::Duration};

use c10d::{Error, Store};

use crate::common::{SOON, ranks};

const SHORT: Duration = Duration::from_millis(300);

fn pair() -> (Store, Store) {
    let hosted = Store::host("127.0.0.1:0").expect("a free port");
    let client = Store::connect(hosted.address(), SOON).expect("it is there");
    (hosted, client)
}

#[test]
fn keys_are_shared_and_prefixes_are_apart() {
    let (hosted, client) = pair();
    let (old, new) = (client.prefix("gen1").expect("a prefix"), client.prefix("gen2").expect("a prefix"));
    old.set("key", b"old").expect("it is there");
    new.set("key", &[0, 255, 0]).expect("bytes need not be text");
    new.set("empty", b"").expect("nor be any");
    assert_eq!(old.get("key", SOON).expect("it was set"), b"old");
    assert_eq!(hosted.get("gen2/key", SOON).expect("it was set"), [0, 255, 0]);
    assert_eq!(hosted.get("gen2/empty", SOON).expect("it was set"), b"");
    assert!(hosted.contains(&["gen1/key", "gen2/key"]).expect("it is there"));
    assert!(!hosted.contains(&["gen1/key", "key"]).expect("it is there"));
    assert!(old.delete("key").expect("it is there"));
    assert!(!old.delete("key").expect("it is gone"));
    let nested = new.prefix("a").and_then(|a| a.prefix("b")).expect("prefixes nest");
    nested.set("c", b"1").expect("it is there");
    assert!(hosted.contains(&["gen2/a/b/c"]).expect("it is there"));
}

#[test]
fn counters_count_for_all() {
    let (hosted, client) = pair();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    client.add("counter", 1).expect("it is there");
                }
            });
        }
    });
    assert_eq!(hosted.add("counter", -1).expect("it is there"), 399);
}

#[test]
fn a_wait_ends_when_the_key_comes() {
    let (hosted, client) = pair();
    let waiter = thread::spawn(move || client.get("late", SOON));
    hosted.set("late", b"now").expect("it is ours");
    assert_eq!(waiter.join().expect("it ends"), Ok(b"now".to_vec()));
}

#[test]
fn keys_that_never_come_are_timeouts() {
    ranks("store::keys_that_never_come_are_timeouts", 1, |_| {
        let (hosted, client) = pair();
        let prefixed = client.prefix("gen0").expect("a prefix");
        for store in [&hosted, &client, &prefixed] {
            for result in
                [store.get("never", SHORT).map(drop), store.wait(&["never", "ever"], Duration::ZERO)]
            {
                assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
            }
            assert_eq!(store.add("still", 0), Ok(0), "it can still be used");
        }
    });
}

#[test]
fn a_store_that_never_comes_is_a_timeout() {
    ranks("store::a_store_that_never_comes_is_a_timeout", 1, |_| {
        let address = Store::host("127.0.0.1:0").expect("a free port").address().to_owned();
        let error = Store::connect(&address, SHORT).expect_err("it is gone");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
    });
}

#[test]
fn bad_arguments_are_errors() {
    let (hosted, _) = pair();
    for result in [
        Store::connect("nowhere", SHORT).map(drop),
        Store::connect("127.0.0.1:70000", SHORT).map(drop),
        Store::host(hosted.address()).map(drop),
        hosted.set("a\0b", b"").map(drop),
        hosted.prefix("a\0b").map(drop),
    ] {
        assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
    }
}

#[test]
fn the_host_lives_as_long_as_its_prefixes() {
    let (hosted, client) = pair();
    let prefixed = hosted.prefix("gen0").expect("a prefix");
    drop(hosted);
    prefixed.set("key", b"value").expect("it is there");
    assert_eq!(client.get("gen0/key", SOON).expect("it is there"), b"value");
}
